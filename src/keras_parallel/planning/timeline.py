"""What ran when on each device."""

import dataclasses
import functools
import math
from typing import IO
from typing import TYPE_CHECKING
from typing import Any

from keras_parallel.planning import _chrome
from keras_parallel.planning import _intervals
from keras_parallel.planning import _summary
from keras_parallel.planning.devices import Device
from keras_parallel.planning.stage_names import step_of

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure

# What an event was: arithmetic, an exchange between devices (waiting for the
# others included), a transfer between host and device, what the host does for
# the devices, and where it waits for them.
EVENT_KINDS = ("compute", "communication", "transfer", "host", "wait")

HOST = "host"


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
        depth: How many other events of its device it is a part of, as an
            operation in the body of a loop is a part of the loop.
    """

    device: str
    kind: str
    name: str
    start: float
    duration: float
    program: str | None = None
    run: int | None = None
    depth: int = 0

    def __post_init__(self) -> None:
        _check_name(self.device)
        if self.kind not in EVENT_KINDS:
            raise ValueError(
                f"The kind of an event is one of {list(EVENT_KINDS)}. "
                f"Received: {self.kind!r}."
            )
        for name in ("start", "duration"):
            seconds = getattr(self, name)
            if not math.isfinite(seconds) or seconds < 0:
                raise ValueError(
                    f"The {name} of an event is in seconds, from 0. "
                    f"Received: {name}={seconds!r}."
                )
        if self.run is not None and (self.program is None or self.run < 0):
            raise ValueError(
                "The runs of a program count from 0. Received: "
                f"run={self.run} of program={self.program!r}."
            )

    # Whole nanoseconds: of two events, the one that ends in the other or
    # before it does so in whatever is computed or written of them.

    @property
    def begin_ns(self) -> int:
        """When it began, in nanoseconds since the recording did."""
        return round(self.start * 1e9)

    @property
    def end_ns(self) -> int:
        """When it ended, in nanoseconds since the recording began."""
        return round((self.start + self.duration) * 1e9)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a program, over all devices that took part.

    Args:
        program: The program.
        number: Which of its runs, counted from 0.
        start: When the first device began, in seconds since the recording
            began.
        duration: Until the last device ended, in seconds.
        devices: The devices that took part.
    """

    program: str
    number: int
    start: float
    duration: float
    devices: tuple[str, ...]

    @property
    def end(self) -> float:
        """When the last device ended, in seconds."""
        return self.start + self.duration


@dataclasses.dataclass(frozen=True)
class Timeline:
    """What ran when, in the order in which it began.

    Args:
        events: What ran.
        notes: What a reader should know, in sentences, such as that a
            profiler could not keep everything.
    """

    events: tuple[Event, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        starts = [event.start for event in self.events]
        if starts != sorted(starts):
            raise ValueError(
                "The events of a timeline come in the order in which they "
                "began. Received: events in another order. Sort them by "
                "their start."
            )

    @functools.cached_property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices on which something ran, best kind first."""
        return tuple(name for name in self.lanes if name != HOST)

    @functools.cached_property
    def lanes(self) -> dict[str, tuple[tuple[Event, ...], ...]]:
        """For the host and each device, its events in lanes.

        In one lane events come one after the other or one in another, where
        the outer one has the inner ones as its parts. What a device did at
        the same time is in several lanes.
        """
        by_name: dict[str, list[Event]] = {}
        for event in self.events:
            by_name.setdefault(event.device, []).append(event)
        names = sorted(by_name, key=_order)
        return {name: _intervals.in_lanes(by_name[name]) for name in names}

    @functools.cached_property
    def _runs(self) -> dict[str, tuple[Run, ...]]:
        parts: dict[tuple[str, int], list[Event]] = {}
        for event in self.events:
            if event.device != HOST and event.program is not None:
                if event.run is not None:
                    # The stages of a step run once in each of its runs.
                    key = (step_of(event.program), event.run)
                    parts.setdefault(key, []).append(event)
        runs: dict[str, list[Run]] = {}
        for (program, number), events in sorted(parts.items()):
            run = _run(program, number, events)
            runs.setdefault(program, []).append(run)
        longest = sorted(
            runs, key=lambda p: -sum(run.duration for run in runs[p])
        )
        return {program: tuple(runs[program]) for program in longest}

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that ran on devices, the one that took longest first.

        A step that runs in stages, each a program, is one of them.
        """
        return tuple(self._runs)

    def runs(self, program: str) -> tuple[Run, ...]:
        """The runs of a program on devices, in order."""
        return self._runs.get(program, ())

    @property
    def duration(self) -> float:
        """Seconds from the first event to the end of the last."""
        if not self.events:
            return 0.0
        ends = max(event.end_ns for event in self.events)
        return (ends - self.events[0].begin_ns) / 1e9

    def seconds(self, device: str, kind: str) -> float:
        """How long a device did something of one kind, in seconds.

        What ran at the same time counts once, and what has parts counts
        where no part of it ran: an exchange inside a loop is communication,
        not computation.

        Args:
            device: Name of the device, or `"host"`.
            kind: One of `EVENT_KINDS`.
        """
        if kind not in EVENT_KINDS:
            raise ValueError(
                f"The kind of an event is one of {list(EVENT_KINDS)}. "
                f"Received: kind={kind!r}."
            )
        return self._seconds.get((device, kind), 0.0)

    @functools.cached_property
    def _seconds(self) -> dict[tuple[str, str], float]:
        spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for device, lanes in self.lanes.items():
            for lane in lanes:
                for event, begin, end in _intervals.without_parts(lane):
                    key = (device, event.kind)
                    spans.setdefault(key, []).append((begin, end))
        return {
            key: _intervals.covered(of_kind) / 1e9
            for key, of_kind in spans.items()
        }

    def busy(self, device: str) -> float:
        """How long anything but a wait ran on a device or the host, in seconds.

        Of the host that is what it does for the devices: Python code beside
        that is not recorded.
        """
        lanes = self.lanes.get(device, ())
        spans = [
            (event.begin_ns, event.end_ns)
            for lane in lanes
            for event in lane
            if event.kind != "wait"
        ]
        return _intervals.covered(spans) / 1e9

    def to_chrome(self) -> dict[str, Any]:
        """The timeline in the trace event format of Chrome.

        Returns:
            A dict to write as JSON; Perfetto and `chrome://tracing` open it.
            Times are in microseconds. The host is the first lane; a device
            that did several things at the same time has several lanes.
        """
        return {
            **_chrome.head(self.notes),
            "traceEvents": list(_chrome.events(self.lanes)),
        }

    def write_chrome(self, file: IO[str]) -> None:
        """Writes `to_chrome()` as JSON, an event at a time."""
        _chrome.write(self.notes, self.lanes, file)

    def __str__(self) -> str:
        return _summary.of_timeline(self)

    def plot(
        self,
        path: "str | os.PathLike[str] | None" = None,
        steps: int | range | None = None,
        program: str | None = None,
    ) -> "Figure":
        """Draws a lane for the host and for each device.

        Args:
            path: Where to write it; the suffix says how, such as `.png` or
                `.svg`. Defaults to `None`, to write nothing.
            steps: Which runs of the program to show: the last so many, or
                those of a range such as `range(10, 13)`. Defaults to the last
                few, and to all that ran where no program is a step.
            program: Its name or a part of it. Defaults to the training step,
                else the step that took longest.

        Returns:
            The `matplotlib.figure.Figure`.

        Raises:
            InputError: if there are no such runs, or no such place for a
                picture.
            PlotError: if Matplotlib is missing; it is the extra `[plot]`.
        """
        from keras_parallel.planning import _lanes

        return _lanes.draw(self, path, steps, program)


@functools.cache
def _check_name(device: str) -> None:
    if device != HOST:
        Device.parse(device)


def _order(name: str) -> tuple[int, str, int]:
    if name == HOST:
        return (0, "", 0)
    kind, index = name.split(":")
    # Best kind first, as devices are listed: gpu, tpu, cpu.
    return (1 + (kind == "cpu"), kind, int(index))


def _run(program: str, number: int, events: list[Event]) -> Run:
    start = min(event.start for event in events)
    end = max(event.end_ns for event in events) / 1e9
    devices = sorted({event.device for event in events}, key=_order)
    return Run(program, number, start, max(end - start, 0), tuple(devices))
