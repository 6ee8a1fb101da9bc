"""How long devices were busy, read from a timeline."""

import dataclasses
from collections.abc import Iterable

from keras_parallel.planning.timeline import Timeline


@dataclasses.dataclass(frozen=True)
class Busy:
    """What one device did in the whole of a recording, in seconds.

    Args:
        compute: It computed.
        communication: It exchanged with other devices or waited for them, and
            did nothing else at the time.
    """

    compute: float
    communication: float


def busy_devices(timeline: Timeline) -> dict[str, Busy]:
    """Reads how long each device computed and communicated.

    Events may overlap, and an event may hold others: time counts once, and as
    computing where a device did both.
    """
    spans: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for event in timeline.events:
        if event.kind in ("compute", "communication"):
            span = (event.start, event.start + event.duration)
            kinds = spans.setdefault(event.device, {})
            kinds.setdefault(event.kind, []).append(span)
    busy: dict[str, Busy] = {}
    for device, kinds in spans.items():
        compute = kinds.get("compute", [])
        both = [*compute, *kinds.get("communication", [])]
        computing = _covered(compute)
        busy[device] = Busy(computing, _covered(both) - computing)
    return busy


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
