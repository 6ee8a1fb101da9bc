"""One step from one state, on one device and on several."""

import dataclasses
from collections.abc import Callable
from collections.abc import Iterator

import numpy as np

from keras_parallel.testing import _state
from keras_parallel.testing._run import Run
from keras_parallel.testing._yardstick import Yardstick

# Relative to the largest entry of a tensor, float32. One step from one state
# differs by the order of its sums, on one device as on several.
ONE_STEP = 1e-6
# Allowed is the larger of that and this many times what one device differs
# from itself.
YARDSTICKS = 4
# What is small beside the largest of its kind may differ by two units in the
# last place of that one, if it is what a sum leaves that cancels. Then one
# device does not reproduce it either, but for this factor: or it differs by
# no more than this share, which the step of an optimizer makes of rounding.
CANCELS = 64
CANCELS_SHARE = 1e-4


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far one tensor is from one device after one step.

    Args:
        name: Its name.
        kind: See `_state.Entry`.
        difference: Relative to its largest entry.
        own: What one device differs from itself, 0 if that was not needed.
        is_noise: Whether the tensor holds rounding noise only.
        is_vacuous: Whether nothing in it is finite on one device.
    """

    name: str
    kind: str
    difference: float
    own: float = 0.0
    is_noise: bool = False
    is_vacuous: bool = False

    @property
    def allowed(self) -> float:
        """What the difference may be."""
        return max(ONE_STEP, YARDSTICKS * self.own)

    @property
    def ok(self) -> bool:
        """Whether the difference is what rounding explains."""
        return self.is_noise or self.difference <= self.allowed


def differences_of_step(
    one: Run, many: Run, yardstick: Callable[[], Yardstick], step: int
) -> Iterator[Difference]:
    """Compares one step of two runs, from the state that `one` had before it.

    Args:
        one: The one-device run, trained.
        many: The parallel run.
        yardstick: Returns the yardstick of `one`. Called where a difference
            is larger than that of another order of sums.
        step: The step, counted from 0.

    Yields:
        A `Difference` for each tensor.
    """
    before = one.state_before(step)
    if before is None:
        # The step itself made the variables, on both sides from one seed.
        actual = many.after(step)
    else:
        actual = many.steps_from(before, one.batches[step : step + 1])
    expected = one.after(step)
    raw = _state.raw_differences(expected, actual)
    found = _state.differences_of_step(before, expected, actual)
    for name, value in found.items():
        kind = expected[name].kind if name in expected else "state"
        if value == 0.0 and raw[name] > ONE_STEP and before is not None:
            own = yardstick().one_step(step).get(name, 0.0)
            if not cancels(raw[name], own, yardstick()):
                value = raw[name]
        vacuous = name in expected and _is_vacuous(expected[name].value)
        found = Difference(name, kind, value, is_vacuous=vacuous)
        for measured in (Yardstick.one_step, Yardstick.one_by_one):
            if not found.ok:
                own = max(found.own, measured(yardstick(), step).get(name, 0.0))
                noise = own > yardstick().noise_level
                found = dataclasses.replace(found, own=own, is_noise=noise)
        yield found


def _is_vacuous(value):
    return value.size > 0 and not np.isfinite(value).any()


def cancels(raw, own, yardstick):
    """Whether a difference that is small for its kind is one of rounding."""
    allowed = max(CANCELS_SHARE, CANCELS * own)
    if not yardstick.permutes:
        # Sums were taken in one order only.
        allowed = max(allowed, yardstick.noise_level)
    return raw <= allowed
