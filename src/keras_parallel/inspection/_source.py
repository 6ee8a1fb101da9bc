"""What a check reads its batches from."""

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_parallel.strategies import _data_mistakes
from keras_parallel.strategies._wording import error
from keras_parallel.strategies._wording import shown

_CALL = "keras_parallel.check(model, {})"


class Batches(keras.utils.PyDataset):
    """Gives batches of an iterator for one epoch.

    Keras reads a generator two batches ahead before the first step; a dataset
    without workers it reads step by step, but for the first batch, of which it
    may ask the shape before.
    """

    def __init__(self, batches, count):
        super().__init__(workers=0)
        self._batches = iter(batches)
        self._count = count
        self._read = []

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        while len(self._read) <= index:
            self._read.append(next(self._batches))
        return self._read[index]


class Source:
    """The data of a user, as arguments of `fit`.

    Args:
        x: What `fit` takes.
        y: What `fit` takes.
        sample_weight: What `fit` takes.
        batch_size: Rows of a batch, for arrays.
        steps: How many batches to read.
    """

    def __init__(self, x: Any, y, sample_weight, batch_size: int, steps: int):
        self.steps = steps
        self._arguments: dict[str, Any] = {
            "x": x,
            "y": y,
            "sample_weight": sample_weight,
        }
        self.batch_size = batch_size
        # After how many batches the data came to its end, if it did.
        self.ended_after: int | None = None
        # Read already, from an iterator that gives each batch once.
        self._first = None
        _check_data(x, y)
        # What holds a table has a shape and no one dtype.
        self._is_arrays = _data_mistakes.is_arrays(x) or (
            y is not None and hasattr(x, "shape")
        )
        if self._is_arrays:
            self._cut_arrays()
        elif isinstance(x, Iterator):
            self._first = next(x, None)
            if self._first is None:
                raise error(
                    "A check trains on at least one batch.",
                    f"x={shown(x)}, which gives none",
                    _CALL.format("iter([(x, y)])"),
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
    def is_iterator(self):
        """Whether it gives each batch once, and warms up with the first."""
        return self._first is not None

    def one_batch(self):
        """A batch to build a model with."""
        if self._first is not None:
            return self._first
        if self._is_arrays:
            one = _rows_of(self._arguments, slice(1))
            return keras.utils.pack_x_y_sample_weight(**one)
        x = self._arguments["x"]
        batch = x[0] if hasattr(x, "__getitem__") else next(iter(x))
        return keras.tree.map_structure(np.asarray, batch)

    def warm_up(self):
        """Arguments of `fit` for what compiles all that the data needs."""
        if self._first is not None:
            return _dataset([self._first] * 2, 2)
        return self.measured()

    def measured(self):
        """Arguments of `fit` for the steps to be measured."""
        if self._first is not None:
            return _dataset(self._once(), self.steps)
        if self._is_arrays and self.ended_after is not None:
            batches = self._again_and_again(self.ended_after)
            return _dataset(batches, self.steps)
        if self._is_arrays:
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

    def _again_and_again(self, count):
        size = self.batch_size
        for i in itertools.cycle(range(count)):
            cut = _rows_of(self._arguments, slice(i * size, (i + 1) * size))
            yield keras.utils.pack_x_y_sample_weight(**cut)


def dataset(x):
    """What of the data has hooks of its own, such as `on_epoch_end`."""
    return [x] if isinstance(x, keras.utils.PyDataset) else []


def _check_data(x, y):
    for name, value in (("x", x), ("y", y)):
        wanted = name == "x" or value is not None
        if wanted and not isinstance(value, Iterator):
            wrong = _data_mistakes.no_data(name, value, _CALL)
            wrong = wrong or _data_mistakes.no_rows(value, _CALL)
            if wrong is not None:
                raise wrong
    if isinstance(x, Iterator) and y is not None:
        raise error(
            "An iterator gives batches of inputs and targets.",
            f"x={shown(x)}, y={shown(y)}",
            _CALL.format("iter([(x, y)])"),
        )


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
