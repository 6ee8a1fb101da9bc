"""Where the parts of a model in stages lie, and where they compute."""

import re

import jax
from jax.extend.core import jaxprs_in_params

from keras_parallel.engines.jax import _stage_programs

# What JAX calls the device that is `cpu:0` here.
HOST = f"cpu:{jax.device_count() - 1}"


def name_of(device):
    """The name of a virtual device: `cpu:0` is the last one."""
    last = jax.devices()[-1]
    return "cpu:0" if device == last else f"gpu:{device.id}"


def home(variable):
    """The name of the device on which the array of a variable lies."""
    (device,) = variable.value.devices()
    return name_of(device)


def homes(model, with_slots=True):
    """The path of each weight, state and slot -> where it lies."""
    slots = model.optimizer.variables if with_slots else []
    return {v.path: home(v) for v in [*model.variables, *slots]}


class Programs:
    """What is compiled for stages while `monkeypatch` is there."""

    def __init__(self, monkeypatch):
        self._made = []
        make = _stage_programs.StagedStep._compile

        def kept(step, name, stage, donated):
            compiled = make(step, name, stage, donated)
            (device,) = compiled.runtime_executable().local_devices()
            equations = [step.equations[i] for i in stage.operations]
            self._made.append((name, name_of(device), [*_paths(equations)]))
            return compiled

        monkeypatch.setattr(_stage_programs.StagedStep, "_compile", kept)

    def of(self, layer, operation="", step=""):
        """The devices on which something of a layer is computed.

        Args:
            layer: The name of the layer.
            operation: What JAX calls the operation, if it is to be one.
            step: `"train"`, `"test"` or `"predict"`, if it is to be one.
        """
        return {
            device
            for program, device, paths in self._made
            for path in paths
            if program.startswith(step)
            and re.search(rf"\b{layer}\b", path)
            and path.endswith(operation)
        }


def _paths(equations, before=""):
    """The layers around each operation, and the operation.

    Not read from what XLA made: it keeps no names of what it finds compiled.
    """
    for equation in equations:
        path = f"{before}/{equation.source_info.name_stack}"
        inside = [*jaxprs_in_params(equation.params)]
        for jaxpr in inside:
            yield from _paths(jaxpr.eqns, path)
        if not inside:
            yield f"{path}/{equation.primitive.name}"
