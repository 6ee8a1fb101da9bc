"""The plan as a picture.

Every device is a box with a bar of what it holds. What crosses are lines
below that join all devices, as a bus does: every device takes part in each.
Lengths are inches, so that text fits whatever the number of devices.
"""

import textwrap
import typing

from keras_parallel.planning._figure import new_figure
from keras_parallel.planning._table import counted
from keras_parallel.planning._table import readable
from keras_parallel.planning._table import scope_of
from keras_parallel.planning._table import shortened
from keras_parallel.planning._table import summary_of
from keras_parallel.planning._table import title_of

if typing.TYPE_CHECKING:
    from keras_parallel.planning.plan import Collective
    from keras_parallel.planning.plan import DeviceShare
    from keras_parallel.planning.plan import Plan

# Told apart without red and green (Okabe and Ito).
_COLORS = {
    "weights": "#0072B2",
    "gradients": "#E69F00",
    "optimizer": "#009E73",
    "non-trainable": "#CC79A7",
    "activations": "#56B4E9",
}
_INK, _GREY, _PALE = "#222222", "#555555", "#999999"
_MARGIN = 0.3
_TITLE = 0.9
_LABELS = 3.9  # The column on the left.
_BOX = 1.6
_GAP = 0.2
_BAR = 0.28
_HEADER = 0.62
_LINE = 0.42  # Of one part of what a device holds.
_BUS = 0.5
_NOTE = 0.2
_MOST_LINES = 12


def picture_of(plan: "Plan") -> typing.Any:
    """Draws a plan. See `Plan.plot`."""
    buses = _shown(summary_of(plan.collectives))
    devices = len(plan.shares)
    width = 2 * _MARGIN + _LABELS + devices * (_BOX + _GAP)
    notes = _wrapped(plan, width)
    box_height = _HEADER + _LINE * (len(_COLORS) + 1) + 0.1
    below = _BUS * len(buses) + 0.25 if buses else 0.1
    height = _TITLE + box_height + below + _NOTE * len(notes) + _MARGIN
    figure = new_figure(figsize=(width, height), facecolor="white")
    axes: typing.Any = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    top = height - _TITLE
    title = title_of(plan, int((width - 2 * _MARGIN) / 0.125))
    _text(axes, _MARGIN, height - 0.35, title, 13, weight="bold")
    _text(axes, _MARGIN, height - 0.62, scope_of(plan), 10)
    _text(axes, _MARGIN, top - 0.2, "what each device holds", 10, "bold")
    estimate = "activations: an estimate, before the compiler"
    _text(axes, _MARGIN, top - 0.45, estimate, 8, color=_GREY)
    largest = max(max(share.total for share in plan.shares), 1)
    for i, share in enumerate(plan.shares):
        _draw_device(axes, share, _left(i), top, box_height, largest)
    bottom = top - box_height
    if buses:
        heading = "what crosses in each step"
        _text(axes, _MARGIN, bottom + 0.1, heading, 10, "bold")
        _draw_buses(axes, buses, devices, bottom)
    for i, note in enumerate(notes):
        y = bottom - below - _NOTE * (i + 0.5)
        _text(axes, _MARGIN, y, note, 9)
    return figure


def _left(device: int) -> float:
    return _MARGIN + _LABELS + device * (_BOX + _GAP) + _GAP / 2


def _shown(lines: "list[Collective]") -> "list[tuple[str, str, int]]":
    """What to write at each line, in two lines, and its bytes."""
    rest = lines[_MOST_LINES:]
    shown = [
        (
            shortened(one.purpose, 48),
            f"{one.kind}, {readable(one.bytes)} from each device in "
            f"{counted(one.count, 'operation')}",
            one.bytes,
        )
        for one in lines[:_MOST_LINES]
    ]
    if rest:
        size = sum(one.bytes for one in rest)
        count = counted(sum(one.count for one in rest), "operation")
        what = f"{counted(len(rest), 'smaller one')}"
        kinds = " and ".join(dict.fromkeys(one.kind for one in rest))
        said = f"{kinds}, {readable(size)} from each device in {count}"
        shown.append((what, said, size))
    return shown


def _wrapped(plan: "Plan", width: float) -> list[str]:
    letters = int((width - 2 * _MARGIN) / 0.078)
    return [
        line
        for note in plan.notes
        for line in textwrap.wrap(note, letters, initial_indent="• ")
    ]


def _draw_device(
    axes: typing.Any,
    share: "DeviceShare",
    left: float,
    top: float,
    height: float,
    largest: int,
) -> None:
    from matplotlib.patches import FancyBboxPatch
    from matplotlib.patches import Rectangle

    axes.add_patch(
        FancyBboxPatch(
            (left, top - height),
            _BOX,
            height,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor="#f7f7f7",
            edgecolor=_INK,
        )
    )
    _text(axes, left + 0.1, top - 0.19, str(share.device), 10, weight="bold")
    rows = counted(share.rows, "row")
    _text(axes, left + 0.1, top - 0.42, rows, 9)
    room = _LINE * (len(_COLORS) + 1) - 0.05
    floor = top - height + 0.1
    bottom = floor
    for name, size in reversed(share.parts.items()):
        part = room * (size or 0) / largest
        axes.add_patch(
            Rectangle((left + 0.1, bottom), _BAR, part, facecolor=_COLORS[name])
        )
        bottom += part
    x = left + _BAR + 0.2
    for i, (name, size) in enumerate(share.parts.items()):
        y = top - _HEADER - _LINE * (i + 0.5)
        axes.add_patch(
            Rectangle((x, y - 0.14), 0.07, 0.3, facecolor=_COLORS[name])
        )
        said = f"{name}\n{readable(size)}"
        if name == "activations" and size is not None:
            said = f"{name}\n~ {readable(size)}"
        _text(axes, x + 0.13, y, said, 8)
    y = top - _HEADER - _LINE * (len(_COLORS) + 0.5)
    total = f"together\n{readable(share.total)}"
    _text(axes, x + 0.13, y, total, 8, weight="bold")


def _draw_buses(
    axes: typing.Any,
    buses: "list[tuple[str, str, int]]",
    devices: int,
    top: float,
) -> None:
    largest = max(size for _, _, size in buses)
    last = top - 0.1 - _BUS * (len(buses) - 0.5)
    trunks = [_left(i) + _BOX / 2 for i in range(devices)]
    for x in trunks:
        axes.annotate(
            "",
            xy=(x, top),
            xytext=(x, last),
            arrowprops={"arrowstyle": "<->", "color": _PALE, "lw": 1.2},
        )
    for i, (what, said, size) in enumerate(buses):
        y = top - 0.1 - _BUS * (i + 0.5)
        # Thin lines can be seen too.
        thick = 1 + 5 * (size / largest if largest else 0)
        axes.plot(
            (_MARGIN + _LABELS - 0.1, trunks[-1]),
            (y, y),
            color=_INK,
            linewidth=thick,
            solid_capstyle="butt",
        )
        axes.plot(
            trunks,
            [y] * devices,
            linestyle="",
            marker="o",
            markersize=6 + thick / 2,
            color=_INK,
        )
        _text(axes, _MARGIN, y + 0.1, what, 9)
        _text(axes, _MARGIN, y - 0.1, said, 8, color=_GREY)


def _text(
    axes: typing.Any,
    x: float,
    y: float,
    said: str,
    size: int,
    weight: str = "normal",
    color: str = _INK,
) -> None:
    # A name may hold what Matplotlib takes for a formula.
    axes.text(
        x,
        y,
        said,
        fontsize=size,
        fontweight=weight,
        color=color,
        va="center",
        parse_math=False,
    )
