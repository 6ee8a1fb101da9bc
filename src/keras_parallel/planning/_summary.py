"""Prints a timeline as a table."""

import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_parallel.planning.timeline import Run
    from keras_parallel.planning.timeline import Timeline

_KINDS = ("compute", "communication", "transfer")
# Programs in a table. Beside the steps there are small ones without end, such
# as a division for each metric.
_SHOWN = 4


def of_timeline(timeline: "Timeline") -> str:
    """What each device did for how long, and how often each program ran."""
    lines = ["Nothing ran on a device."]
    if timeline.devices:
        lines = _device_table(timeline)
    programs = timeline.programs
    if programs:
        runs = [_row(p, timeline.runs(p)) for p in programs[:_SHOWN]]
        head = ("program", "runs", "devices", "median run", "longest")
        lines += ["", *_aligned([head, *runs])]
    if len(programs) > _SHOWN:
        lines.append(f"and {len(programs) - _SHOWN} more")
    if programs and not any("step" in program for program in programs):
        lines.append("No program is a step: steps were not compiled as one.")
    return "\n".join([*lines, *(f"Note: {note}" for note in timeline.notes)])


def _device_table(timeline: "Timeline") -> list[str]:
    whole, count = timeline.duration, len(timeline.devices)
    rows: list[tuple[str, ...]] = [("", "busy", *_KINDS, "idle")]
    for device in timeline.lanes:
        busy = timeline.busy(device)
        seconds = [timeline.seconds(device, kind) for kind in _KINDS]
        parts = [_part(s, whole) for s in (busy, *seconds, whole - busy)]
        if device not in timeline.devices:
            # The host does more than what is recorded of it.
            parts[-1] = "-"
        rows.append((device, *parts))
    first = f"{_time(whole)} on {count} device{'s' * (count > 1)}"
    return [first, *_aligned(rows)]


def _row(program: str, runs: "tuple[Run, ...]") -> tuple[str, ...]:
    durations = [run.duration for run in runs]
    return (
        program,
        str(len(runs)),
        str(max(len(run.devices) for run in runs)),
        _time(statistics.median(durations)),
        _time(max(durations)),
    )


def _aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def _part(seconds: float, whole: float) -> str:
    if seconds <= 0 or not whole:
        return "-"
    return f"{_time(seconds)} {100 * seconds / whole:3.0f}%"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms"
