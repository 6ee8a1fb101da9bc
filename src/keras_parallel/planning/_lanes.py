"""Draws a timeline: a lane for the host and for each device."""

import os
from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING
from typing import Any

from keras_parallel._errors import InputError
from keras_parallel.planning import _intervals
from keras_parallel.planning._figure import check_picture_path
from keras_parallel.planning._figure import new_figure
from keras_parallel.planning.timeline import HOST
from keras_parallel.planning.timeline import Run
from keras_parallel.planning.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Distinct for the color-blind too (Okabe and Ito).
_COLORS = {
    "compute": "#0072b2",
    "communication": "#e69f00",
    "transfer": "#009e73",
    "host": "#7f7f7f",
    "wait": "#d9d9d9",
}
_MEANINGS = {"wait": "wait of the host"}
_BANDS = ("#eef4f8", "#dfe9f1")
_LAST = 3  # Steps shown unless the caller chooses.
_STEP = "step"
_NO_STEPS = "the steps were not compiled as one program"
# The part of the width that can be seen: a pixel or two.
_LEAST = 1 / 800
# What is drawn on top where several lanes of a device are drawn as one.
_FROM_BEHIND = ("wait", "host", "compute", "transfer", "communication")


def draw(
    timeline: Timeline,
    path: "str | os.PathLike[str] | None",
    steps: int | range | None,
    program: str | None,
) -> "Figure":
    """See `Timeline.plot`."""
    if path is not None:
        check_picture_path(path, 'trace.plot("run.png")')
    shown = _chosen(timeline, steps, program)
    begin, end = _window(timeline, shown)
    names = list(timeline.lanes)
    # Its methods are typed in part only.
    figure = new_figure(
        figsize=(10, 1.4 + 0.38 * max(len(names), 1)), layout="constrained"
    )
    axes = figure.subplots()
    kinds = _draw_lanes(axes, timeline, begin, end)
    _mark_steps(axes, shown, begin)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.set_xlim(0, max((end - begin) * 1e3, 1e-6))
    axes.set_xlabel("ms")
    axes.set_title(_title(timeline, shown), loc="left", fontsize=10)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _add_legend(figure, kinds)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _chosen(
    timeline: Timeline, steps: int | range | None, program: str | None
) -> tuple[Run, ...]:
    """The runs to show."""
    runs = _runs_of(timeline, program)
    if steps is None:
        return runs[-_LAST:]
    if isinstance(steps, range):
        if (
            not steps
            or steps.step != 1
            or steps.start < 0
            or steps.stop > len(runs)
        ):
            raise _no_such_steps(steps, runs)
        return runs[steps.start : steps.stop]
    # NumPy's integers count too; `True` is none.
    if isinstance(steps, bool) or not isinstance(steps, Integral):
        raise _no_such_steps(steps, runs)
    if not 0 < int(steps) <= len(runs):
        raise _no_such_steps(steps, runs)
    return runs[-int(steps) :]


def _runs_of(timeline: Timeline, program: object) -> tuple[Run, ...]:
    """The runs of a program; by default of what looks like a step."""
    programs = timeline.programs
    if program is None:
        named = [p for p in programs if "train_step" in p]
        named += [p for p in programs if _STEP in p]
        return timeline.runs(named[0]) if named else ()
    if isinstance(program, str) and program:
        named = [p for p in programs if p == program]
        named += [p for p in programs if program in p]
        if named:
            return timeline.runs(named[0])
    works = f"program={programs[0]!r}" if programs else "program=None"
    raise InputError(
        "`program` is a part of the name of a program that ran: "
        f"{', '.join(programs) or 'none did'}. Received: program={program!r}. "
        f"An argument that works: `{works}`."
    )


def _no_such_steps(steps: object, runs: tuple[Run, ...]) -> InputError:
    count = len(runs)
    works = (
        f"steps=range({max(count - 2, 0)}, {count})" if count else "steps=None"
    )
    return InputError(
        "`steps` is how many of the last steps to draw, or a range of steps "
        f"that were recorded, without gaps. Received: steps={steps!r}, of "
        f"{count} steps. An "
        f"argument that works: `{works}`."
    )


def _window(timeline: Timeline, shown: tuple[Run, ...]) -> tuple[float, float]:
    """From when to when to draw, in seconds."""
    if not shown:
        first = timeline.events[0].start if timeline.events else 0.0
        return first, first + timeline.duration
    first = shown[0]
    before = timeline.runs(first.program)[: first.number]
    ended = max((run.end for run in before), default=0.0)
    # What the host did for this step alone belongs to it.
    calls = [
        event.start
        for event in timeline.events
        if event.device == HOST
        and (event.program, event.run) == (first.program, first.number)
        and event.start >= ended
    ]
    return min([first.start, *calls]), max(run.end for run in shown)


def _draw_lanes(
    axes: Any, timeline: Timeline, begin: float, end: float
) -> set[str]:
    """Draws what ran from `begin` to `end`; returns the kinds there were."""
    seen: set[str] = set()
    for row, lanes in enumerate(timeline.lanes.values()):
        spans: dict[str, list[tuple[float, float]]] = {}
        for lane in lanes:
            for event, start_ns, end_ns in _intervals.without_parts(lane):
                start = max(start_ns / 1e9, begin)
                stop = min(end_ns / 1e9, end)
                if start < stop:
                    span = (start - begin) * 1e3, (stop - start) * 1e3
                    spans.setdefault(event.kind, []).append(span)
        for kind in _FROM_BEHIND:
            if kind in spans:
                axes.broken_barh(
                    _visible(spans[kind], (end - begin) * 1e3 * _LEAST),
                    (row - 0.36, 0.72),
                    facecolors=_COLORS[kind],
                    linewidth=0,
                )
        seen |= set(spans)
    return seen


def _visible(
    spans: Iterable[tuple[float, float]], least: float
) -> list[tuple[float, float]]:
    """Widens what is too short to be seen; what then touches is one."""
    merged: list[tuple[float, float]] = []
    for start, width in sorted(spans):
        width = max(width, least)
        if merged and start <= sum(merged[-1]):
            first, before = merged[-1]
            merged[-1] = first, max(before, start + width - first)
        else:
            merged.append((start, width))
    return merged


def _mark_steps(axes: Any, shown: tuple[Run, ...], begin: float) -> None:
    for i, run in enumerate(shown):
        start, stop = (run.start - begin) * 1e3, (run.end - begin) * 1e3
        axes.axvspan(start, stop, color=_BANDS[i % 2], linewidth=0, zorder=0)
        axes.annotate(
            str(run.number),
            ((start + stop) / 2, 1),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=8,
            color="#555555",
        )


def _title(timeline: Timeline, shown: tuple[Run, ...]) -> str:
    if not timeline.devices:
        return "nothing ran on a device"
    if not shown:
        return f"everything that ran: {_NO_STEPS}"
    first, last = shown[0].number, shown[-1].number
    which = f"step {first}" if first == last else f"steps {first} to {last}"
    whole = len(timeline.runs(shown[0].program))
    return f"{shown[0].program}, {which} (recorded: 0 to {whole - 1})\n"


def _add_legend(figure: Any, kinds: set[str]) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(color=color, label=_MEANINGS.get(kind, kind))
        for kind, color in _COLORS.items()
        if kind in kinds
    ]
    if handles:
        figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=len(handles),
            frameon=False,
            fontsize=9,
        )
