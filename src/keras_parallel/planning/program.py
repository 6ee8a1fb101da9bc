"""What the compiler made of a step, and what was compiled at all."""

import dataclasses
from collections.abc import Iterable

from keras_parallel.planning._intervals import covered
from keras_parallel.planning.plan import Collective
from keras_parallel.planning.stage_plan import Transfer


@dataclasses.dataclass(frozen=True)
class Program:
    """One compiled step, as each device runs it.

    Args:
        name: The name of the backend for it.
        collectives: What crosses. The purpose is what the compiler says: the
            name of the operation in the model, where it kept one.
        flops: Floating-point operations on each device, if known.
        argument_bytes: Size on each device of what goes in.
        output_bytes: Size on each device of what comes out.
        temporary_bytes: What it needs beside, on each device.
        compile_seconds: How long the compilation took; about 0 for a step that
            the backend had compiled before.
        transfers: What goes from one device to another between the parts of
            a step that runs as several programs; what the host sends too.
        parts: In how many programs the step runs. The sizes above, and the
            operations, are those of all of them together.
    """

    name: str
    collectives: tuple[Collective, ...]
    flops: float | None
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    compile_seconds: float
    transfers: tuple[Transfer, ...] = ()
    parts: int = 1


@dataclasses.dataclass(frozen=True)
class Compilation:
    """One function that was compiled.

    Args:
        name: Its name, such as `"train_step"`.
        seconds: How long that took, tracing included.
        end: When it was done, in seconds of `time.perf_counter`.
    """

    name: str
    seconds: float
    end: float


def compile_seconds(compilations: Iterable[Compilation]) -> float:
    """How long compilations took together; what overlaps counts once."""
    spans = [
        (int(1e9 * (c.end - c.seconds)), int(1e9 * c.end)) for c in compilations
    ]
    return covered(spans) / 1e9
