"""Where the time of a training step goes."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The parts of one step, in seconds. Without `compilation` they add up.

    Time in which the devices worked is `compute` or `communication`, whatever
    the host did meanwhile; in the rest they waited for the host.

    Args:
        total: From the begin of one step to the begin of the next.
        input: The devices waited for the data of the user.
        callbacks: They waited for callbacks of the user.
        host: They waited for the rest: Keras's loop, placing a batch, starting
            the step.
        compute: They computed.
        communication: They exchanged, or waited for one another.
        compilation: Compilation, beside the total.
    """

    total: float
    input: float
    callbacks: float
    host: float
    compute: float
    communication: float
    compilation: float = 0.0

    def share(self, *parts: str) -> float:
        """The share of some parts in the total, from 0 to 1."""
        seconds: float = sum(getattr(self, part) for part in parts)
        return seconds / self.total if self.total else 0.0


PARTS = ("input", "callbacks", "host", "compute", "communication")


def split_step(
    total: float,
    *,
    input: float,
    callbacks: float,
    compute: float,
    communication: float,
    compilation: float = 0.0,
) -> StepTime:
    """Splits the time of a step by what the devices did or waited for.

    Args:
        total: Seconds of a step.
        input: Seconds in which the host was in the user's data.
        callbacks: Seconds in which it was in the user's callbacks.
        compute: Seconds in which a device computed.
        communication: Seconds in which it communicated.
        compilation: Seconds of compilation, not in `total`.
    """
    busy = compute + communication
    if busy > total:
        # A recording slows down what it records.
        compute, communication = (
            compute * total / busy,
            total * (communication / busy),
        )
        busy = total
    idle = total - busy
    for_input = min(input, idle)
    for_callbacks = min(callbacks, idle - for_input)
    return StepTime(
        total=total,
        input=for_input,
        callbacks=for_callbacks,
        host=idle - for_input - for_callbacks,
        compute=compute,
        communication=communication,
        compilation=compilation,
    )
