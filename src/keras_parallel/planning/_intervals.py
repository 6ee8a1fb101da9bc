"""Spans of time: what they cover, and events laid out in lanes."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Protocol
from typing import TypeVar


class Placed(Protocol):
    """What has a begin and an end, and may be a part of another."""

    @property
    def begin_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def depth(self) -> int: ...


_P = TypeVar("_P", bound=Placed)


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """How much time spans cover together; what overlaps counts once."""
    total, reached = 0, None
    for begin, end in sorted(spans):
        if reached is None or begin > reached:
            reached = begin
        if end > reached:
            total += end - reached
            reached = end
    return total


def in_lanes(events: Iterable[_P]) -> tuple[tuple[_P, ...], ...]:
    """Lays events out in as few lanes as they need.

    In a lane an event begins when the last one has ended, or lies inside one
    that it is a part of.
    """
    lanes: list[list[_P]] = []
    opened: list[list[_P]] = []  # For each lane what has not ended.
    for event in sorted(events, key=lambda e: (e.begin_ns, -e.end_ns, e.depth)):
        begin = event.begin_ns
        for stack in opened:
            while stack and stack[-1].end_ns <= begin:
                stack.pop()
        lane = _lane_for(event, opened)
        if lane == len(lanes):
            lanes.append([])
            opened.append([])
        lanes[lane].append(event)
        opened[lane].append(event)
    return tuple(map(tuple, lanes))


def _lane_for(event: Placed, opened: Sequence[Sequence[Placed]]) -> int:
    if event.depth:
        for lane, stack in enumerate(opened):
            if (
                stack
                and stack[-1].depth < event.depth
                and event.end_ns <= stack[-1].end_ns
            ):
                return lane
    for lane, stack in enumerate(opened):
        if not stack:
            return lane
    return len(opened)


def without_parts(lane: Iterable[_P]) -> Iterator[tuple[_P, int, int]]:
    """The spans of each event of a lane in which no part of it ran."""
    # What is open, each with the time up to which it is told.
    stack: list[tuple[_P, int]] = []
    for event in lane:
        while stack and stack[-1][0].end_ns <= event.begin_ns:
            yield from _close(stack)
        if stack:
            outer, told = stack[-1]
            if told < event.begin_ns:
                yield outer, told, event.begin_ns
            stack[-1] = outer, event.begin_ns
        stack.append((event, event.begin_ns))
    while stack:
        yield from _close(stack)


def _close(stack: list[tuple[_P, int]]) -> Iterator[tuple[_P, int, int]]:
    event, told = stack.pop()
    if told < event.end_ns:
        yield event, told, event.end_ns
    if stack:
        outer, _ = stack[-1]
        stack[-1] = outer, event.end_ns
