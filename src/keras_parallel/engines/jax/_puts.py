"""Devices that a layer chooses itself, which a compiled stage cannot obey."""

import warnings

import jax
from jax.extend.core import jaxprs_in_params

from keras_parallel.engines.jax._staged_program import scopes_of


def warn_of_puts(staged, jax_devices):
    """Warns where a stage puts an array on a device other than its own.

    XLA compiles a stage for one device, and leaves such a request out.

    Args:
        staged: The `StagedStep`.
        jax_devices: `Device` -> `jax.Device`.
    """
    found = {}
    for stage in staged.stages:
        own = jax_devices[stage.place]
        for index in stage.operations:
            equation = staged.equations[index]
            for device in _puts_to(equation) - {own}:
                where = "/".join(scopes_of(equation)) or "the step"
                found[where, device] = stage.place.name
    for (where, device), place in found.items():
        warnings.warn(
            f"`jax.device_put` inside {where!r} asks for {device!r}, and has "
            f"no effect: that part is compiled for one device, {place}. What "
            "works, for the part that shall run elsewhere as a layer of its "
            "own and with a name of `keras_parallel.list_devices()`: "
            "`with keras_parallel.device_scope(name): x = layer(x)`.",
            stacklevel=2,
        )


def _puts_to(equation):
    """The devices on which an equation, or one inside it, puts arrays."""
    found = set()
    if equation.primitive.name == "device_put":
        for wanted in equation.params["devices"]:
            if isinstance(wanted, jax.Device):
                found.add(wanted)
            else:  # A sharding, or nothing in particular.
                found |= getattr(wanted, "device_set", set())
    for jaxpr in jaxprs_in_params(equation.params):
        for inner in jaxpr.eqns:
            found |= _puts_to(inner)
    return found
