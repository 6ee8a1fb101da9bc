"""What a step in stages was compiled to, as a `Program`."""

import re

from keras_parallel.planning import Program
from keras_parallel.planning import Transfer

_OF_SCOPES = re.compile(r"keras_parallel\.[\w.]+|jit\(|transpose\(|jvp\(|\)")


def program_of(name, staged, arguments, seconds) -> Program:
    """Describes a `StagedStep`.

    Args:
        name: Of the step.
        staged: The step.
        arguments: The names of what it takes, as far as they have some.
        seconds: How long its compilation took.
    """
    costs = [compiled.cost_analysis() or {} for compiled in staged.compiled]
    sizes = [compiled.memory_analysis() for compiled in staged.compiled]

    def together(kind):
        return sum(getattr(size, kind, 0) for size in sizes)

    return Program(
        name=name,
        collectives=(),
        flops=sum(max(cost.get("flops", 0.0), 0.0) for cost in costs),
        argument_bytes=together("argument_size_in_bytes"),
        output_bytes=together("output_size_in_bytes"),
        temporary_bytes=together("temp_size_in_bytes"),
        compile_seconds=seconds,
        transfers=tuple(_transfers(staged, arguments)),
        parts=len(staged.stages),
    )


def _transfers(staged, arguments):
    names = dict(zip(staged.arguments, arguments))
    makers = {
        variable: equation
        for equation in staged.equations
        for variable in equation.outvars
    }
    for variable, source, target in staged.crossings():
        aval, maker = variable.aval, makers.get(variable)
        yield Transfer(
            names.get(variable, "batch") if maker is None else _what(maker),
            _purpose(maker, source),
            source,
            target,
            aval.size * aval.dtype.itemsize,
            tuple(aval.shape),
            aval.dtype.name,
        )


def _purpose(maker, source):
    if source is None:
        return "input"
    if maker is None:
        return "weight"
    stack = str(maker.source_info.name_stack)
    return "gradient" if "transpose" in stack else "activation"


def scopes_of(equation):
    """Where in the model something is computed: names of layers."""
    path = _OF_SCOPES.sub("", str(equation.source_info.name_stack))
    return [name for name in path.split("/") if name]


def _what(maker):
    return "/".join([*scopes_of(maker), maker.primitive.name])
