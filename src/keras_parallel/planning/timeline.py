"""What ran when on each device."""

import dataclasses

# What an event was: arithmetic, an exchange between devices (waiting for the
# others included), a transfer between host and device, work of the host.
EVENT_KINDS = ("compute", "communication", "transfer", "host")


@dataclasses.dataclass(frozen=True)
class Event:
    """One thing that ran.

    Args:
        device: Name of the device it ran on; `"host"` for the host.
        kind: One of `EVENT_KINDS`.
        name: The backend's name for it.
        start: Seconds since the recording began.
        duration: Seconds.
        program: The compiled program it was a part of, if any.
        run: Which run of that program, counted from 0.
    """

    device: str
    kind: str
    name: str
    start: float
    duration: float
    program: str | None = None
    run: int | None = None


@dataclasses.dataclass(frozen=True)
class Timeline:
    """What ran when, in the order in which it began."""

    events: tuple[Event, ...]
