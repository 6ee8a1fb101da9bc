"""How long devices were busy, read from a timeline."""

import dataclasses

from keras_parallel.planning._intervals import covered
from keras_parallel.planning.timeline import Timeline


@dataclasses.dataclass(frozen=True)
class Busy:
    """What one device did in the whole of a recording, in seconds.

    Args:
        compute: It computed.
        communication: It exchanged with other devices or waited for them, and
            did not compute at the time.
    """

    compute: float
    communication: float


def busy_together(timeline: Timeline) -> Busy:
    """Reads how long at least one device computed, or communicated."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for event in timeline.events:
        if event.device in timeline.devices:
            span = event.begin_ns, event.end_ns
            spans.setdefault(event.kind, []).append(span)
    compute = covered(spans.get("compute", []))
    communication = spans.get("communication", [])
    both = covered([*spans.get("compute", []), *communication])
    return Busy(compute / 1e9, (both - compute) / 1e9)


def busy_devices(timeline: Timeline) -> dict[str, Busy]:
    """Reads how long each device computed and communicated."""
    busy: dict[str, Busy] = {}
    for device in timeline.devices:
        compute = timeline.seconds(device, "compute")
        beside = max(timeline.busy(device) - compute, 0.0)
        communication = timeline.seconds(device, "communication")
        busy[device] = Busy(compute, min(communication, beside))
    return busy
