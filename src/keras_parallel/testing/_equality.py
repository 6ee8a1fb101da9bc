"""Does a parallel model train like the same model on one device?"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_parallel._errors import NotEqualError
from keras_parallel.strategies.data import data_parallel
from keras_parallel.testing import _state

# Relative to the largest entry of a tensor, float32. One step from one state
# differs by the order of a sum only.
ONE_STEP = 1e-6
# After many steps rounding has been amplified, on one device as on several:
# at least this is allowed, and YARDSTICKS times what one device differs from
# itself.
TRAJECTORY = 1e-5
YARDSTICKS = 4

# A tensor that one device reproduces no better than this in one step holds
# rounding noise only.
NOISE = 1e-3

# The yardstick is the largest of this many changes: one alone may be lucky.
_CHANGES = 3


@dataclasses.dataclass(frozen=True)
class EqualityReport:
    """How far a parallel model was from one device.

    Args:
        devices: The devices, as they were passed.
        steps: Number of steps.
        one_step: Largest difference of one step from the same state.
        trajectory: Largest difference after all steps.
        yardstick: What one device differs from itself after all steps.
        yardstick_of: What was changed for it, in words.
        noise: Names of tensors that hold rounding noise only.
    """

    devices: Any
    steps: int
    one_step: float
    trajectory: float
    yardstick: float
    yardstick_of: str
    noise: tuple[str, ...] = ()

    def __str__(self):
        noise = f"; rounding noise only: {list(self.noise)}" * bool(self.noise)
        return (
            f"devices={self.devices}: one step differs by {self.one_step:.1e} "
            f"(allowed {ONE_STEP:.0e}), {self.steps} steps by "
            f"{self.trajectory:.1e} (yardstick {self.yardstick:.1e}: one "
            f"device against itself with {self.yardstick_of}){noise}"
        )


def assert_trains_like_one_device(
    make_model: Callable[[], keras.Model],
    make_batches: Callable[[], Iterable[Any]],
    *,
    devices: int | Sequence[int] | Sequence[str] | None = None,
    steps: int = 20,
    seed: int = 0,
    parallelize: Callable[[keras.Model, Any], keras.Model] = data_parallel,
) -> list[EqualityReport]:
    """Asserts that a parallel model trains like the same model on one device.

    Losses, metrics, every weight, every non-trainable variable and every
    optimizer slot are compared, in two ways. *One step from the same state*:
    before each step the state of the one-device run is copied over; then all
    must agree to 1e-6 of the largest entry of a tensor, or to two units in
    the last place of the largest of its kind (all weights, or all slots of
    one name), which is what a sum that cancels leaves. *The trajectory*:
    after all steps without copying, all must agree to the larger of 1e-5 and
    4 times the yardstick. The yardstick is what one device differs from
    itself when the rows inside each batch are permuted; it is measured here
    and printed. For a model that draws random numbers or keeps a state for
    each row, where permuted rows are another task, its first weights are
    rounded differently instead.

    A tensor that one device itself does not reproduce in one step may differ
    by 4 times what it differs there. If that is more than 1e-3, the tensor is
    nothing but rounding noise (the gradient of a bias before
    BatchNormalization is) and has no digits to agree in: it is named in the
    report and left out.

    Example:

    ```python
    def test_my_model():
        keras_parallel.testing.assert_trains_like_one_device(
            make_model, make_batches, devices=[1, 2, 3, 8]
        )
    ```

    Args:
        make_model: Returns a new, compiled model. Called several times with
            the random seed set.
        make_batches: Returns the batches, each as `train_on_batch` takes it:
            `(x, y)`, `(x, y, sample_weight)`, `(x,)`, or `x`. Repeated if
            there are fewer than `steps`.
        devices: What `data_parallel` takes, or a list of numbers of devices
            to try one after the other. Defaults to `None`, for all.
        steps: Number of training steps.
        seed: The random seed.
        parallelize: Makes the parallel model from a model and `devices`.

    Returns:
        An `EqualityReport` for each number of devices, which is printed too.

    Raises:
        NotEqualError: an `AssertionError` that names the first tensor that
            differs, the step, and by how much.
        ValueError: if there are no batches, or the model is not compiled.
    """
    batches = list(itertools.islice(_endless(make_batches), steps))
    one = _Run(make_model, batches, seed)
    one.train()
    yardstick = _Yardstick(one)
    reports = []
    for chosen in _device_choices(devices):
        many = _Run(
            make_model, batches, seed, lambda m, d=chosen: parallelize(m, d)
        )
        many.train()
        report = _compare(one, many, yardstick, chosen)
        print(report)
        reports.append(report)
    return reports


def _endless(make_batches):
    batches = list(make_batches())
    if not batches:
        raise ValueError(
            "At least one batch is needed. Received: make_batches() returned "
            "none."
        )
    return itertools.cycle(batches)


def _device_choices(devices):
    several = isinstance(devices, Sequence) and not isinstance(devices, str)
    if several and all(isinstance(d, int) for d in devices):
        return list(devices)
    return [devices]


class _Run:
    """One training, with the state before the first and after each step."""

    def __init__(self, make_model, batches, seed, parallelize=None):
        keras.utils.set_random_seed(seed)
        self.model = make_model()
        if not self.model.compiled:
            raise ValueError(
                "`make_model` returns a compiled model. Received: "
                f"{self.model.name!r}, on which `compile` was not called."
            )
        if parallelize is not None:
            # Kept, as a user would keep it.
            self.template = self.model
            self.model = parallelize(self.model)
        self.make_model = make_model
        self.batches = batches
        self.seed = seed
        if self.model.built and getattr(self.model, "optimizer", None):
            self.model.optimizer.build(self.model.trainable_variables)
        self.states = [_state.snapshot(self.model)]
        self.logs = []

    def train(self):
        keras.utils.set_random_seed(self.seed)
        for batch in self.batches:
            self.logs.append(self.step(batch))
            self.states.append(_state.snapshot(self.model))

    def step(self, batch):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        logs = self.model.train_on_batch(
            x, y, sample_weight=sample_weight, return_dict=True
        )
        return _state.entries_of_logs(logs)

    def step_from(self, state, batch):
        """One step from `state`: its logs, and the state after it."""
        _state.restore(self.model, state)
        logs = self.step(batch)
        return logs, _state.snapshot(self.model)

    def state_before(self, step):
        """The state before a step, `None` if not all of it existed yet."""
        state = self.states[step]
        return state if len(state) == len(self.states[-1]) else None


def _compare(one, many, yardstick, devices):
    if list(one.logs[0]) != list(many.logs[0]):
        raise NotEqualError(
            f"One device logs {list(one.logs[0])}, the parallel model "
            f"{list(many.logs[0])}. Received: {devices=}."
        )
    steps = len(one.batches)
    one_step = max(
        _check_one_step(one, many, yardstick, step, devices)
        for step in range(steps)
    )
    measured = yardstick.trajectory
    allowed = max(TRAJECTORY, YARDSTICKS * measured)
    found = _differences(
        one.logs[-1], many.logs[-1], one.states[-1], many.states[-1]
    )
    for name, difference in found.items():
        if difference > allowed and name not in yardstick.noise:
            raise NotEqualError(
                f"After {steps} steps {name!r} differs by {difference:.1e} of "
                f"its largest entry (allowed {allowed:.1e}; one device "
                f"differs from itself by {measured:.1e} with {yardstick.of})."
                f" Received: {devices=}."
            )
    return EqualityReport(
        devices,
        steps,
        one_step,
        max(d for name, d in found.items() if name not in yardstick.noise),
        measured,
        yardstick.of,
        tuple(sorted(yardstick.noise)),
    )


def _check_one_step(one, many, yardstick, step, devices):
    """Raises, or returns the largest difference of one step."""
    before = one.state_before(step)
    if before is None:
        # The step itself made the variables, on both sides from one seed.
        logs, after = many.logs[step], many.states[step + 1]
    else:
        logs, after = many.step_from(before, one.batches[step])
    found = _differences(one.logs[step], logs, one.states[step + 1], after)
    largest = 0.0
    for name, difference in found.items():
        if difference > ONE_STEP:
            own = yardstick.one_step(step).get(name, 0.0)
            if own > NOISE:
                continue
            if own <= ONE_STEP or difference > YARDSTICKS * own:
                raise NotEqualError(
                    f"In step {step + 1} {name!r} differs by "
                    f"{difference:.1e} of its largest entry, from the same "
                    f"state (allowed {ONE_STEP:.0e}; one device differs from "
                    f"itself by {own:.1e} with {yardstick.of}). "
                    f"Received: {devices=}."
                )
        largest = max(largest, difference)
    return largest


def _differences(expected_logs, logs, expected_state, state):
    return _state.differences(expected_logs, logs) | _state.differences(
        expected_state, state
    )


class _Yardstick:
    """What one device differs from itself by rounding."""

    def __init__(self, one):
        self.noise = set()
        self._one = one
        self._permute = not _rows_matter(one)
        self.of = (
            "the rows of each batch permuted"
            if self._permute
            else "its weights rounded differently"
        )

    @functools.cached_property
    def _other(self):
        """One more one-device run, after its first step."""
        batches = self._batches(0)[:1]
        other = _Run(self._one.make_model, batches, self._one.seed)
        other.train()
        return other

    @functools.cached_property
    def trajectory(self):
        """The largest difference after all steps, without noise."""
        # All of the state exists before the first step, or else after it.
        start = 0 if self._one.state_before(0) is not None else 1
        found = {}
        for change in range(_CHANGES):
            state = self._state(start, change)
            _state.restore(self._other.model, state)
            for batch in self._batches(change)[start:]:
                logs = self._other.step(batch)
            state = _state.snapshot(self._other.model)
            for name, difference in self._differences(-1, logs, state).items():
                found[name] = max(difference, found.get(name, 0.0))
        if max(found.values()) > NOISE:
            self.one_step(len(self._one.batches) - 1)
        return max(
            (d for name, d in found.items() if name not in self.noise),
            default=0.0,
        )

    @functools.cache  # noqa: B019  lives as long as one check
    def one_step(self, step):
        """Differences by name, for one step from the same state."""
        if self._one.state_before(step) is not None:
            logs, after = self._other.step_from(
                self._state(step, 0), self._batches(0)[step]
            )
        elif self._permute:
            logs, after = self._other.logs[0], self._other.states[1]
        else:
            return {}
        found = self._differences(step, logs, after)
        self.noise |= {name for name, d in found.items() if d > NOISE}
        return found

    def _differences(self, step, logs, state):
        one = self._one
        expected = one.states[-1] if step == -1 else one.states[step + 1]
        return _differences(one.logs[step], logs, expected, state)

    def _batches(self, change):
        if not self._permute:
            return self._one.batches
        return [_permuted(batch, change) for batch in self._one.batches]

    def _state(self, step, change):
        state = self._one.states[step]
        if self._permute:
            return state
        generator = np.random.default_rng(change)
        rounded = dict(state)
        for name, entry in state.items():
            value = entry.value
            if entry.kind == "weight" and value.dtype.kind == "f":
                sign = generator.choice([-1.0, 1.0], value.shape)
                value = value + value * (_state.UNIT * sign)
                rounded[name] = dataclasses.replace(
                    entry, value=value.astype(entry.value.dtype)
                )
        return rounded


def _rows_matter(run):
    """Whether the order of rows is part of the task.

    It is where random numbers are drawn for each row, or where a variable
    keeps a state for each row.
    """
    rows = {len(_first_array(batch)) for batch in run.batches}
    return any(
        "seed_generator_state" in name
        or (
            entry.kind == "state"
            and entry.value.ndim > 1
            and entry.value.shape[0] in rows
        )
        for name, entry in run.states[-1].items()
    )


def _first_array(batch):
    return next(leaf for leaf in keras.tree.flatten(batch) if leaf is not None)


def _permuted(batch, change):
    rows = len(_first_array(batch))
    order = np.random.default_rng(change).permutation(rows)
    return keras.tree.map_structure(
        lambda a: a[order] if a is not None and len(a) == rows else a, batch
    )
