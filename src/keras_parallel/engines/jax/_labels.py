"""Where an equation of a traced step was asked to run.

JAX notes for each equation the names of the scopes in which it was traced
(`jax.named_scope`), and hands them on to the equations that differentiation
makes of it. So the name of a device is with the gradient too.
"""

import re

import jax
from jax.extend.core import JaxprEqn

from keras_parallel.planning import Device

_LABEL = re.compile(r"keras_parallel\.on\.([a-z]+)\.(\d+)\b")


def labelled(device: Device):
    """The context in which what is traced gets the label of a device."""
    return jax.named_scope(f"keras_parallel.on.{device.kind}.{device.index}")


def label_of(equation: JaxprEqn) -> Device | None:
    """The device of the innermost label."""
    found = _LABEL.findall(str(equation.source_info.name_stack))
    if not found:
        return None
    kind, index = found[-1]
    return Device(kind, int(index))
