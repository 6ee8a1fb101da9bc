"""What one device differs from itself by rounding."""

import contextlib
import dataclasses
import functools

import keras
import ml_dtypes
import numpy as np

from keras_parallel.strategies._keras import COMPILED_FUNCTIONS
from keras_parallel.testing import _state
from keras_parallel.testing._run import rows_of

# A tensor that one device reproduces no better than this in one step holds
# rounding noise only: this, or so many units in the last place of what the
# model computes in.
_NOISE = 1e-3
_NOISE_UNITS = 16

# Each yardstick is the largest of this many changes: one may be lucky.
_CHANGES = 3

# The order of rows matters if permuting them moves the loss by more than these
# units in the last place and this many times what rounding moves it: a mean
# over rows does not move so far.
_ORDER_UNITS = 32
_ORDER_FACTOR = 8


class Yardstick:
    """Measures how much a change that should not matter does matter.

    The rows inside each batch are permuted, so that sums are taken in
    another order, and the weights are rounded differently at the start, as
    another program for the same computation rounds them: in the precision
    that the layers compute in, which is where two devices round what one does
    not, each its part of a sum. Dropout is off for
    that: it would meet other rows. Where more random numbers are drawn, or a
    variable keeps a state for each row, rows keep their order. So they do
    where their order matters, which is measured: what permuted rows change
    there is no rounding.

    Args:
        one: The one-device run, trained.
        other: Returns another one-device run of the same model, for the
            batches that it is given.
    """

    def __init__(self, one, other):
        self.noise = set()
        self._one = one
        self._compiled_apart = False
        dropout = one.draws_numbers()
        self._scope = _without_dropout if dropout else contextlib.nullcontext
        with self._scope():
            self._other = other(one.batches[:1] * 2)
            self._other.train()
        self.permutes = not (one.keeps_rows() or self._other.draws_numbers())
        self._unit, self._dtype = _coarsest_rounding(one.model)
        self._dropout = dropout
        self.noise_level = max(_NOISE, _NOISE_UNITS * self._unit)

    @property
    def of(self):
        """What is changed, in words."""
        permuted = "rows permuted and " * self.permutes
        off = ", dropout off" * self._dropout
        apart = ", or with operations compiled one by one"
        return (
            f"{permuted}weights rounded{self._dtype} differently{off}"
            + apart * self._compiled_apart
        )

    @functools.cached_property
    def trajectory(self):
        """The largest difference after all steps, without noise."""
        found = self._of_trajectory()
        if max(found.values(), default=0.0) > self.noise_level:
            self.one_step(len(self._one.batches) - 1)
        return self._largest_of(found)

    @functools.cached_property
    def trajectory_one_by_one(self):
        """That of steps that are not compiled whole. See `one_by_one`."""
        start = 0 if self._one.state_before(0) is not None else 1
        steps = len(self._one.batches)
        return self._largest_of(
            self._one_by_one(start, steps, _state.differences)
        )

    def _largest_of(self, found):
        known = (d for name, d in found.items() if name not in self.noise)
        return max(known, default=0.0)

    def _of_trajectory(self):
        steps = len(self._one.batches)
        start = 0 if self._one.state_before(0) is not None else 1
        if start == steps:
            return {}
        # Whether the order of rows matters shows in single steps: over many
        # all that differs is amplified.
        for step in {start, steps - 1} if self.permutes else ():
            self.one_step(step)
        expected = self._train(start, steps)
        return self._largest(
            expected, start, steps, _state.differences, self.permutes
        )

    @functools.cache  # noqa: B019  lives as long as one check
    def one_step(self, step):
        """Differences by name, for one step from the same state."""
        if self._one.state_before(step) is None:
            return {}
        expected = self._train(step, step + 1)

        # Every digit counts here: this is compared with tensors of which
        # one device itself may reproduce few.
        def largest(permute, differences=_state.raw_differences):
            return self._largest(expected, step, step + 1, differences, permute)

        found = largest(self.permutes)
        if self.permutes:
            rounded = largest(False)
            if self._order_matters(rounded, found):
                self.permutes = False
                found = rounded
            elif suspects := self._suspects(step, rounded, found):
                # A statistic that is next to nothing is moved by any order
                # of sums.
                far = largest(True, _state.differences)
                found |= {n: rounded[n] for n in suspects if far[n] > 0.0}
        self.noise |= {n for n, d in found.items() if d > self.noise_level}
        return found

    @functools.cache  # noqa: B019  lives as long as one check
    def one_by_one(self, step):
        """Differences by name, for one step that is not compiled whole.

        A sum that is compiled together with what it adds up is taken in
        another order than one that is not, however exact its terms are.
        """
        if self._one.state_before(step) is None:
            return {}
        return self._one_by_one(step, step + 1, _state.raw_differences)

    def _one_by_one(self, start, stop, differences):
        model = self._other.model
        if start == stop or not model.jit_compile:
            return {}
        self._compiled_apart = True
        expected = self._train(start, stop)
        with _not_compiled(model):
            return differences(expected, self._train(start, stop))

    def _order_matters(self, rounded, permuted):
        logs = self._one.logs[-1]
        losses = [name for name in logs if name == "loss"] or list(logs)
        return any(
            permuted[name] > _ORDER_UNITS * _state.UNIT
            and permuted[name] > _ORDER_FACTOR * rounded[name]
            for name in losses
        )

    def _suspects(self, step, rounded, permuted):
        """What no weight depends on, and only permuting moves."""
        return [
            name
            for name, entry in self._one.after(step).items()
            if entry.kind in ("log", "state")
            and permuted[name] > self.noise_level >= rounded[name]
        ]

    def _largest(self, expected, start, stop, differences, permute):
        largest = {}
        for change in range(_CHANGES):
            actual = self._train(start, stop, change, permute)
            for name, d in differences(expected, actual).items():
                largest[name] = max(d, largest.get(name, 0.0))
        return largest

    def _train(self, start, stop, change=None, permute=False):
        state, shifts = self._one.states[start], {}
        batches = self._one.batches[start:stop]
        if change is not None:
            state, shifts = _rounded(state, change, self._unit)
            if permute:
                batches = [_permuted(batch, change) for batch in batches]
        with self._scope():
            reached = self._other.steps_from(state, batches)
        # Keras numbers the unnamed layers of a second model on.
        after = dict(zip(self._one.after(start), reached.values()))
        if self._unit > _state.UNIT:
            # The weights themselves are kept in float32: what counts is what
            # the steps made of it.
            for name, shift in shifts.items():
                value = after[name].value - shift
                after[name] = dataclasses.replace(after[name], value=value)
        return after


def _permuted(batch, change):
    rows = rows_of(batch)
    order = np.random.default_rng(change).permutation(rows)
    return keras.tree.map_structure(
        lambda a: a[order] if a is not None and len(a) == rows else a, batch
    )


def _rounded(state, change, unit):
    """Another state, and what was added to each weight."""
    generator = np.random.default_rng(change)
    rounded, shifts = dict(state), {}
    for name, entry in state.items():
        value = entry.value
        if entry.kind == "weight" and value.dtype.kind == "f":
            sign = generator.choice([-1.0, 1.0], value.shape)
            shifted = (value + value * (unit * sign)).astype(value.dtype)
            rounded[name] = dataclasses.replace(entry, value=shifted)
            shifts[name] = shifted - value
    return rounded, shifts


def _coarsest_rounding(model):
    """A unit in the last place of what `model` computes in, and its name."""
    dtypes = {layer.compute_dtype for layer in model._flatten_layers()}
    for name in ("bfloat16", "float16"):
        if name in dtypes:
            return float(ml_dtypes.finfo(name).eps), f" to {name}"
    return _state.UNIT, ""


@contextlib.contextmanager
def _not_compiled(model):
    """Lets a model train with each operation compiled for itself."""
    compiled = {name: getattr(model, name) for name in COMPILED_FUNCTIONS}
    model.jit_compile = False
    for name in COMPILED_FUNCTIONS:
        setattr(model, name, None)
    try:
        yield
    finally:
        model.jit_compile = True
        for name, function in compiled.items():
            setattr(model, name, function)


@contextlib.contextmanager
def _without_dropout():
    # All layers of Keras that drop values, masks of recurrent cells among
    # them, call this one private function.
    from keras.src.backend import random

    dropout = random.dropout
    random.dropout = lambda inputs, *args, **kwargs: inputs
    try:
        yield
    finally:
        random.dropout = dropout
