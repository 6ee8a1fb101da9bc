"""Does a parallel model train like the same model on one device?"""

import dataclasses
import itertools
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import keras

from keras_parallel._errors import NotEqualError
from keras_parallel.engines import active_engine
from keras_parallel.planning import choose_devices
from keras_parallel.strategies.data import data_parallel
from keras_parallel.testing import _state
from keras_parallel.testing._compared import Compared
from keras_parallel.testing._one_step import ONE_STEP
from keras_parallel.testing._one_step import YARDSTICKS
from keras_parallel.testing._one_step import differences_of_step
from keras_parallel.testing._run import anew
from keras_parallel.testing._run import run_of_new
from keras_parallel.testing._yardstick import Yardstick

# Relative to the largest entry of a tensor, float32. Many steps differ by what
# has been amplified since the first, on one device as on several.
TRAJECTORY = 1e-5


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
            f"devices={self.devices}: one step differs by "
            f"{_shown(self.one_step)} (allowed {ONE_STEP:.0e}, or {YARDSTICKS} "
            f"times what one device differs from itself), {self.steps} steps "
            f"by {_shown(self.trajectory)} (yardstick "
            f"{_shown(self.yardstick)}: one device against itself with "
            f"{self.yardstick_of}){noise}"
        )


def _shown(difference):
    # See `_state.differences` for what counts as 0.
    return f"{difference:.1e}" if difference else "rounding only"


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
    the last place of the largest of its kind that the step changed (all
    weights, or all slots of one name), which is what a sum that cancels
    leaves, if one device does not reproduce it either. *The trajectory*:
    after all steps without copying, all must agree to the larger of 1e-5 and
    4 times the yardstick. The yardstick is what one device differs from
    itself when the rows inside each batch are permuted and the weights are
    rounded differently at the start; it is measured here and printed, with
    dropout off. If that does not explain a difference, also what one device
    differs from itself with each operation compiled for itself
    (`jit_compile=False`): sums are taken in another order then. Rows keep
    their order in a model that draws other random numbers, keeps a state for
    each row, or in which their order matters: permuted they are another task.

    The same holds for one step: a tensor that one device itself does not
    reproduce to 2.5e-7, a squared gradient for example, may differ by 4 times
    what it differs there. If that is more than 1e-3, the tensor is nothing
    but rounding noise (the gradient of a bias before BatchNormalization is)
    and has no digits to agree in: it is named in the report and left out.

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
            differs, the step, and by how much; also if one device itself
            reproduces the loss in no step, so that nothing was shown.
        ValueError: for arguments of another kind, if there are no batches, if
            the model is not compiled, and if it does not stay finite on one
            device.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(
            "`steps` is an integer of at least 1. "
            f"Received: steps={steps!r}. A call that works: `steps=20`."
        )
    for name, function in (
        ("make_model", make_model),
        ("make_batches", make_batches),
    ):
        if isinstance(function, keras.Model) or not callable(function):
            raise ValueError(
                f"`{name}` is a function without arguments that makes what "
                f"it is named after, anew at each call. Received: "
                f"{name}={function!r}. A call that works: "
                f"`{name}=lambda: ...`."
            )
    batches = _first_batches(make_batches, steps)
    if parallelize is data_parallel:
        # Before one device has trained.
        for chosen in _device_choices(devices):
            choose_devices(chosen, active_engine().list_devices())
    make_model = anew(make_model)
    one = run_of_new(make_model, batches, seed)
    one.train()
    if not one.is_finite():
        raise ValueError(
            "What is not finite cannot be compared. Received: a model whose "
            f"losses on one device are {[_values(logs) for logs in one.logs]}"
            ", or whose weights are not finite at the end. Other batches or a "
            "smaller learning rate may work: "
            "`model.compile(keras.optimizers.SGD(1e-3), ...)`."
        )
    yardstick = Yardstick(one, lambda b: run_of_new(make_model, b, seed))
    reports = []
    for chosen in _device_choices(devices):
        many = run_of_new(
            make_model, batches, seed, lambda m, d=chosen: parallelize(m, d)
        )
        many.train()
        report = _compare(one, many, yardstick, chosen)
        print(report)
        reports.append(report)
    return reports


def _values(logs):
    return {name: float(entry.value) for name, entry in logs.items()}


def _first_batches(make_batches, steps):
    made = make_batches()
    if not isinstance(made, Iterable):
        raise ValueError(
            "`make_batches` returns batches to go through. Received: "
            f"make_batches() returned {made!r}. A call that works: "
            "`make_batches=lambda: [(x, y)]`."
        )
    # No more than needed: a generator may have no end.
    batches = list(itertools.islice(made, steps))
    if not batches:
        raise ValueError(
            "At least one batch is needed. Received: make_batches() returned "
            "none. A call that works: `make_batches=lambda: [(x, y)]`."
        )
    return list(itertools.islice(itertools.cycle(batches), steps))


def _device_choices(devices: Any) -> list[Any]:
    several = isinstance(devices, Sequence) and not isinstance(devices, str)
    if several and all(isinstance(d, int) for d in devices):
        return list(devices)
    return [devices]


def _compare(one, many, yardstick, devices):
    names, expected_names = (_unnumbered(run.logs[0]) for run in (many, one))
    if names != expected_names:
        raise NotEqualError(
            f"One device logs {list(one.logs[0])}, the parallel model "
            f"{list(many.logs[0])}. Received: {devices=}."
        )
    steps = len(one.batches)
    compared = Compared()
    one_step = max(
        _check_one_step(one, many, yardstick, step, devices, compared)
        for step in range(steps)
    )
    if gap := compared.gap_of_loss():
        raise NotEqualError(f"Nothing was shown: {gap}. Received: {devices=}.")
    measured = yardstick.trajectory
    allowed = max(TRAJECTORY, YARDSTICKS * measured)
    found = {
        name: difference
        for name, difference in _state.differences(
            one.after(steps - 1), many.after(steps - 1)
        ).items()
        if name not in yardstick.noise
    }
    if max(found.values(), default=0.0) > allowed:
        measured = max(measured, yardstick.trajectory_one_by_one)
        allowed = max(TRAJECTORY, YARDSTICKS * measured)
    for name, difference in found.items():
        if difference > allowed:
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
        max(found.values(), default=0.0),
        measured,
        yardstick.of,
        tuple(sorted(yardstick.noise)),
    )


def _unnumbered(names):
    """Names without the numbers that Keras gives to unnamed layers."""
    return [re.sub(r"_\d+(?=_|/|$)", "", name) for name in names]


def _check_one_step(one, many, yardstick, step, devices, compared):
    """Raises, or returns the largest difference of one step."""
    largest = 0.0
    for found in differences_of_step(one, many, lambda: yardstick, step):
        compared.add(found, step + 1)
        if not found.ok:
            raise NotEqualError(
                f"In step {step + 1} {found.name!r} differs by "
                f"{found.difference:.1e} of its largest entry, from the same "
                f"state (allowed {found.allowed:.1e}; one device differs from "
                f"itself by {found.own:.1e} with {yardstick.of}). "
                f"Received: {devices=}."
            )
        if not found.is_noise:
            largest = max(largest, found.difference)
    return largest
