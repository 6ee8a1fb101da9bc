"""Devices that a layer chooses itself, which a compiled stage cannot obey."""

import warnings

import jax
from jax.extend.core import jaxprs_in_params

from keras_parallel._errors import RefusedModelError
from keras_parallel.engines.jax._staged_program import scopes_of

_WORKS = (
    "for the part that shall run elsewhere as a layer of its own, with a name "
    "of `keras_parallel.list_devices()`: `with keras_parallel.device_scope("
    "name): x = layer(x)`."
)


def check_puts(staged, jax_devices):
    """Looks for arrays that a stage puts on a device other than its own.

    Warns of those that XLA, which compiles a stage for one device, leaves out.

    Args:
        staged: The `StagedStep`, not compiled yet.
        jax_devices: `Device` -> `jax.Device`.

    Raises:
        RefusedModelError: if a sharding is asked for, with which the stage
            would be compiled for that device.
    """
    found = {}
    for stage in staged.stages:
        own = jax_devices[stage.place]
        for index in stage.operations:
            equation = staged.equations[index]
            for wanted in _wanted_by(equation):
                if _devices_of(wanted) != {own}:
                    where = "/".join(scopes_of(equation)) or "the step"
                    found[where, wanted] = stage.place.name
    for (where, wanted), place in found.items():
        if not isinstance(wanted, jax.Device):
            raise RefusedModelError(
                "What a layer does in its `call` is compiled for one device. "
                f"Received: a `jax.device_put` to {wanted} inside {where!r}, "
                f"which runs on {place}. A call that works, {_WORKS}"
            )
        warnings.warn(
            f"`jax.device_put` inside {where!r} asks for {wanted!r}, and has "
            f"no effect: that part is compiled for one device, {place}. What "
            f"works, {_WORKS}",
            stacklevel=2,
        )


def _devices_of(wanted):
    return {wanted} if isinstance(wanted, jax.Device) else wanted.device_set


def _wanted_by(equation):
    """The devices and shardings to which an equation, or its parts, put."""
    if equation.primitive.name == "device_put":
        for wanted in equation.params["devices"]:
            if isinstance(wanted, jax.Device | jax.sharding.Sharding):
                yield wanted
    for jaxpr in jaxprs_in_params(equation.params):
        for inner in jaxpr.eqns:
            yield from _wanted_by(inner)
