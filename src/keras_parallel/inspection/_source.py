"""What a check reads its batches from."""

import itertools
from collections.abc import Iterator

import keras
import numpy as np

from keras_parallel._errors import InputError
from keras_parallel.strategies import _data_mistakes


class Batches(keras.utils.PyDataset):
    """Gives batches in order, whatever is asked for, for one epoch.

    Keras reads a generator two batches ahead before the first step; a dataset
    without workers it reads step by step.
    """

    def __init__(self, batches, count):
        super().__init__(workers=0)
        self._batches = iter(batches)
        self._count = count

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        return next(self._batches)


class Source:
    """The data of a user, as arguments of `fit`.

    Args:
        x: What `fit` takes.
        y: What `fit` takes.
        sample_weight: What `fit` takes.
        batch_size: Rows of a batch, for arrays.
        steps: How many batches to read.
    """

    def __init__(self, x, y, sample_weight, batch_size, steps):
        self.steps = steps
        self._arguments = {"x": x, "y": y, "sample_weight": sample_weight}
        self.batch_size = None
        self.ended_after = None
        # Read already, from an iterator that gives each batch once.
        self._first = None
        if _data_mistakes.is_arrays(x):
            self.batch_size = batch_size
            self._cut_arrays()
        elif isinstance(x, Iterator):
            self._first = next(x, None)
            if self._first is None:
                raise InputError(
                    "A check trains on at least one batch. Received: x="
                    f"{x!r}, which gives none. A call that works: "
                    "`keras_parallel.check(model, iter([(x, y)]))`."
                )
        else:
            self._cut_dataset()

    def _cut_arrays(self):
        wanted = self.steps * self.batch_size
        leaves = _data_mistakes.leaves_of(self._arguments["x"])
        rows = leaves[0].shape[0]
        if rows >= wanted:
            self._arguments = _rows_of(self._arguments, slice(wanted))
            return
        count = max(-(-rows // self.batch_size), 1)
        self.ended_after = count if count < self.steps else None

    def _cut_dataset(self):
        try:
            count = len(self._arguments["x"])
        except TypeError:
            return
        if 0 < count < self.steps:
            self.steps = count

    @property
    def is_read_once(self):
        """Whether each batch can be had once only."""
        return self._first is not None

    def warm_up(self):
        """Arguments of `fit` for what compiles all that the data needs."""
        if self._first is not None:
            return _dataset([self._first] * 2, 2)
        return self.measured()

    def measured(self):
        """Arguments of `fit` for the steps to be measured."""
        if self._first is not None:
            return _dataset(self._once(), self.steps)
        if self.ended_after is not None:
            return _dataset(self._again_and_again(), self.steps)
        if self.batch_size is not None:
            return {**self._arguments, "batch_size": self.batch_size}
        return {**self._arguments, "steps_per_epoch": self.steps}

    def _once(self):
        read = [self._first]
        yield self._first
        for batch in self._arguments["x"]:
            read.append(batch)
            yield batch
        self.ended_after = len(read)
        yield from itertools.cycle(read)

    def _again_and_again(self):
        size = self.batch_size
        for i in itertools.cycle(range(self.ended_after)):
            cut = _rows_of(self._arguments, slice(i * size, (i + 1) * size))
            yield keras.utils.pack_x_y_sample_weight(**cut)


def replayed(batches):
    """Arguments of `fit` for batches in memory."""
    packed = [
        keras.utils.pack_x_y_sample_weight(
            *keras.utils.unpack_x_y_sample_weight(batch)
        )
        for batch in batches
    ]
    packed = [b if isinstance(b, tuple) else (b,) for b in packed]
    return _dataset(packed, len(packed))


def _dataset(batches, count):
    return {"x": Batches(batches, count), "shuffle": False}


def _rows_of(arguments, rows):
    return {
        name: None
        if data is None
        else keras.tree.map_structure(
            lambda a: a if a is None else a[rows], data
        )
        for name, data in arguments.items()
    }


def shape_of(batch):
    """The shapes of a batch, to tell batches apart."""
    return tuple(
        None if leaf is None else tuple(np.shape(leaf))
        for leaf in keras.tree.flatten(batch)
    )
