"""How far a parallel model is from one device, in a few steps."""

import dataclasses
import functools

from keras_parallel.inspection._report import LargestDifference
from keras_parallel.strategies import _twin
from keras_parallel.testing import _state
from keras_parallel.testing._compared import Compared
from keras_parallel.testing._one_step import ONE_STEP
from keras_parallel.testing._one_step import differences_of_step
from keras_parallel.testing._run import Run
from keras_parallel.testing._yardstick import Yardstick

_ORDER = ("log", "weight", "slot", "state")


def largest(model, one, many, batches, start):
    """Compares steps, each from the state that one device has reached.

    Args:
        model: The user's model.
        one: A twin on one device.
        many: A parallel twin.
        batches: What to train on.
        start: The state before the first step.

    Returns:
        A tuple of `LargestDifference`, one for each kind of tensor, and a
        tuple of the names of tensors that were left out.
    """
    found, compared = {}, Compared()
    _state.restore(one, start)
    for step, batch in enumerate(batches):
        before = Run(one, [batch])
        before.train()
        if before.state_before(0) is None:
            continue  # The step itself made variables: there was no state.
        yardstick = functools.cache(
            lambda run=before: Yardstick(
                run, lambda b: Run(_twin.one_device_twin(model, many), b)
            )
        )
        for d in differences_of_step(before, Run(many, [batch]), yardstick, 0):
            compared.add(d, step + 1)
            if d.is_noise or (d.is_vacuous and d.ok):
                continue
            kind = d.kind.partition(" ")[0]
            new = LargestDifference(
                kind, d.difference, d.allowed, d.own, d.name, step + 1
            )
            if kind not in found or _rank(new) > _rank(found[kind]):
                found[kind] = new
        if compared.gap_after():  # NaN spreads.
            break
        _state.restore(one, before.states[-1])
    if gap := compared.gap():
        logs = found.get("log", LargestDifference("log", 0.0, ONE_STEP))
        found["log"] = dataclasses.replace(logs, gap=gap)
    return (
        tuple(found[kind] for kind in _ORDER if kind in found),
        compared.left_out(),
    )


def _rank(difference):
    return difference.difference / difference.allowed, difference.difference
