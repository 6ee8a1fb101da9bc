"""Datasets of Keras that processes load: they import this file, and little."""

import os
import sys
import threading

import keras


class Rows(keras.utils.PyDataset):
    """The rows of some arrays in batches of `size`, the last one as it is."""

    def __init__(self, a, b, y, size=24, form=None, **options):
        super().__init__(**options)
        self.arrays, self.size = (a, b, y), size
        self.form = form
        self.epoch = 0

    def __len__(self):
        return -(-len(self.arrays[0]) // self.size)

    def __getitem__(self, index):
        start = self.size * index
        a, b, y = (x[start : start + self.size] for x in self.arrays)
        if self.form == "dicts and weights":
            return {"a": a, "b": b}, y, 1.0 + a[:, 0] ** 2
        return [a, b], y


class Endless(Rows):
    """The rows again and again."""

    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        return super().__getitem__(index % len(self))


class Watched(Rows):
    """Says how it is read, and changes from epoch to epoch."""

    def __init__(self, *arrays, **options):
        super().__init__(*arrays, **options)
        self.calls = []

    def on_epoch_begin(self):
        self.calls.append("begin")
        self.epoch += 1

    def on_epoch_end(self):
        self.calls.append("end")

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x, y + self.epoch


class Failing(Rows):
    """Goes wrong at batch 1, in the way it is told."""

    def __init__(self, *arrays, how, **options):
        super().__init__(*arrays, **options)
        self.how = how
        if how == "lock":
            self.lock = threading.Lock()

    def __getitem__(self, index):
        if index == 1 and self.how == "raise":
            raise LookupError("no such picture")
        if index == 1 and self.how == "raise at the end of a file":
            raise EOFError("no data left in file")
        if index == 1 and self.how == "raise what cannot travel":
            raise Untold("no such picture", self)
        if index == 1 and self.how == "die":
            os._exit(3)
        if index == 1 and self.how == "be killed":
            os.kill(os.getpid(), 9)
        return super().__getitem__(index)

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.how == "load":
            raise ImportError("no module named 'pictures'")


class Untold(Exception):
    """Cannot be unpickled: its arguments are not those of its constructor."""

    def __init__(self, text, dataset):
        super().__init__(text)
        self.lock = threading.Lock()


class Surroundings(Rows):
    """Gives what a worker process sees of its surroundings."""

    def __getitem__(self, index):
        import jax

        loaded = [m for m in ("tensorflow", "torch") if m in sys.modules]
        started = list(jax._src.xla_bridge._backends)
        return dict(os.environ), loaded, started, os.getppid()
