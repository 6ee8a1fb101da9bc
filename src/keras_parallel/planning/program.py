"""What the compiler made of a step, and what was compiled at all."""

import dataclasses

from keras_parallel.planning.plan import Collective


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
    """

    name: str
    collectives: tuple[Collective, ...]
    flops: float | None
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    compile_seconds: float


@dataclasses.dataclass(frozen=True)
class Compilation:
    """One function that was compiled.

    Args:
        name: Its name, such as `"train_step"`.
        seconds: How long that took, tracing included.
    """

    name: str
    seconds: float
