"""The plan of stages as a picture.

Each device is a lane, each stage a box in it, further to the right the more
stages have to have run before. Arrows are what is sent. Lengths are inches, so
that text fits whatever the number of devices and stages.
"""

import textwrap
import typing

from keras_parallel.planning._figure import new_figure
from keras_parallel.planning._stage_table import joined
from keras_parallel.planning._stage_table import operations
from keras_parallel.planning._stage_table import runs_beside
from keras_parallel.planning._stage_table import sentences_of
from keras_parallel.planning._table import counted
from keras_parallel.planning._table import readable
from keras_parallel.planning._table import scope_of
from keras_parallel.planning._table import shortened
from keras_parallel.planning._table import title_of

if typing.TYPE_CHECKING:
    from keras_parallel.planning.stage_plan import StagePlan

_INK, _GREY, _LANE = "#222222", "#555555", "#f4f4f4"
# Told apart without red and green (Okabe and Ito).
_BOX_COLOR, _PATH_COLOR, _HOST_COLOR = "#D6EAF8", "#FBE3B5", "#7F7F7F"
_SENT_COLOR, _WEIGHT_COLOR = "#0072B2", "#CC79A7"
_MARGIN = 0.3
_TITLE = 0.95
_HEAD = 2.1  # The column of what each device holds.
_COLUMN, _BOX, _BOX_HEIGHT = 3.1, 1.9, 1.22
_NARROW, _NARROW_BOX = 1.6, 0.95
_MANY_COLUMNS = 9
_LANE_HEIGHT, _LANE_GAP = 1.75, 0.12
_NOTE = 0.2

# Each transfer with that of its gradient.
_Pairs = list[typing.Any]


def picture_of(plan: "StagePlan") -> typing.Any:
    """Draws a plan of stages. See `StagePlan.plot`."""
    return _Picture(plan).figure


class _Picture:
    def __init__(self, plan: "StagePlan"):
        self._plan = plan
        self._lanes = {s.device: i for i, s in enumerate(plan.shares)}
        self._columns = _columns_of(plan)
        count = max(self._columns, default=0) + 1
        self._is_narrow = count > _MANY_COLUMNS
        self._column = _NARROW if self._is_narrow else _COLUMN
        self._box = _NARROW_BOX if self._is_narrow else _BOX
        width = 2 * _MARGIN + _HEAD + 0.9 + count * self._column
        notes = _wrapped(plan, width)
        lanes = len(plan.shares) * (_LANE_HEIGHT + _LANE_GAP)
        self._height = _TITLE + lanes + 0.45 + _NOTE * len(notes) + _MARGIN
        self.figure = new_figure(
            figsize=(width, self._height), facecolor="white"
        )
        self._axes: typing.Any = self.figure.add_axes((0, 0, 1, 1))
        self._axes.set(xlim=(0, width), ylim=(0, self._height))
        self._axes.set_axis_off()
        letters = int((width - 2 * _MARGIN) / 0.125)
        title = title_of(plan, letters)
        self._text(_MARGIN, self._height - 0.35, title, 13, weight="bold")
        self._text(_MARGIN, self._height - 0.65, scope_of(plan), 10)
        for share in plan.shares:
            self._draw_lane(share, width)
        self._draw_arrows()
        marked = plan.critical_path if runs_beside(plan) else ()
        for number, stage in enumerate(plan.stages):
            self._draw_stage(number, stage, number in marked)
        bottom = self._height - _TITLE - lanes
        self._draw_legend(bottom - 0.12, bool(marked))
        for i, note in enumerate(notes):
            self._text(_MARGIN, bottom - 0.45 - _NOTE * (i + 0.5), note, 9)

    def _middle(self, number: int) -> tuple[float, float]:
        """The middle of the box of a stage."""
        x = _MARGIN + _HEAD + 0.9 + self._columns[number] * self._column
        return x + self._box / 2, self._lane(self._plan.stages[number].device)

    def _lane(self, device: typing.Any) -> float:
        step = _LANE_HEIGHT + _LANE_GAP
        top = self._height - _TITLE
        return top - self._lanes[device] * step - _LANE_HEIGHT / 2

    def _draw_lane(self, share: typing.Any, width: float) -> None:
        from matplotlib.patches import Rectangle

        y = self._lane(share.device)
        self._axes.add_patch(
            Rectangle(
                (_MARGIN, y - _LANE_HEIGHT / 2),
                width - 2 * _MARGIN,
                _LANE_HEIGHT,
                facecolor=_LANE,
                edgecolor="none",
                zorder=0,
            )
        )
        x = _MARGIN + 0.12
        top = y + _LANE_HEIGHT / 2 - 0.24
        self._text(x, top, str(share.device), 11, weight="bold")
        lines = [f"{name} {readable(n)}" for name, n in share.parts.items()]
        for i, line in enumerate([*lines, f"together {readable(share.total)}"]):
            bold = "bold" if i == len(lines) else "normal"
            self._text(x, top - 0.24 - 0.2 * i, line, 8, bold)

    def _draw_stage(self, number: int, stage: typing.Any, marked: bool) -> None:
        from matplotlib.patches import FancyBboxPatch

        x, y = self._middle(number)
        self._axes.add_patch(
            FancyBboxPatch(
                (x - self._box / 2, y - _BOX_HEIGHT / 2),
                self._box,
                _BOX_HEIGHT,
                boxstyle="round,pad=0,rounding_size=0.08",
                facecolor=_PATH_COLOR if marked else _BOX_COLOR,
                edgecolor=_INK,
                zorder=3,
            )
        )
        letters = int(self._box / 0.066)
        lines = [f"stage {number}", *self._calls(stage.calls, letters)]
        if not self._is_narrow:
            lines.append(
                f"weights {readable(stage.weights)}, {operations(stage.flops)}"
            )
            kept = readable(self._plan.per_row(stage.activations))
            lines.append(f"keeps {kept} for a row")
        top = y + 0.19 * (len(lines) - 1) / 2
        for i, line in enumerate(lines):
            self._axes.text(
                x,
                top - 0.19 * i,
                shortened(line, letters),
                fontsize=8,
                fontweight="bold" if i == 0 else "normal",
                ha="center",
                va="center",
                color=_INK,
                zorder=4,
                parse_math=False,
            )

    def _calls(self, names: tuple[str, ...], letters: int) -> list[str]:
        if len(names) < (2 if self._is_narrow else 3):
            return list(names)
        if self._is_narrow:
            return [counted(len(names), "call")]
        return [names[0], f"… {counted(len(names) - 2, 'call')} …", names[-1]]

    def _draw_arrows(self) -> None:
        maker = {c: i for i, s in enumerate(self._plan.stages) for c in s.calls}
        drawn: dict[tuple[int | None, int], _Pairs] = {}
        for there, back in joined(self._plan.transfers):
            if there.purpose in ("weight", "state"):
                continue
            source = maker.get(there.what, maker.get(_call_of(there.what)))
            for number, stage in enumerate(self._plan.stages):
                reads = source in stage.after if source is not None else True
                if stage.device == there.target and reads:
                    key = (source, number)
                    drawn.setdefault(key, []).append((there, back))
                    break
        for (source, number), pairs in drawn.items():
            self._draw_arrow(source, number, pairs)
        self._draw_copies()

    def _draw_arrow(
        self, source: int | None, number: int, pairs: _Pairs
    ) -> None:
        x, y = self._middle(number)
        end = (x - self._box / 2, y)
        size = readable(sum(there.bytes or 0 for there, _ in pairs))
        if source is None:
            start = (end[0] - 0.55, y)
            self._arrow(start, end, _HOST_COLOR, "->")
            said = f"from\nhost\n{size}"
            self._label(start[0] - 0.02, y, said, _HOST_COLOR, "right")
            return
        from_x, from_y = self._middle(source)
        start = (from_x + self._box / 2, from_y)
        both = any(back is not None for _, back in pairs)
        self._arrow(start, end, _SENT_COLOR, "<->" if both else "->")
        what = pairs[0][0].what
        if len(pairs) > 1:
            what = f"{len(pairs)} tensors"
        letters = int((self._column - self._box) / 0.062)
        said = size
        if not self._is_narrow:
            said = f"{shortened(what, letters)}\n{size}"
        # Two arrows into one box have labels of their own height.
        x = start[0] + 0.42 * (end[0] - start[0])
        y = start[1] + 0.42 * (end[1] - start[1])
        self._label(x, y, said, _SENT_COLOR, "center")

    def _draw_copies(self) -> None:
        """Weights that are copied, at the lane that gets them."""
        copies: dict[typing.Any, int] = {}
        for transfer in self._plan.transfers:
            if transfer.purpose in ("weight", "state"):
                before = copies.get(transfer.target, 0)
                copies[transfer.target] = before + (transfer.bytes or 0)
        for device, size in copies.items():
            y = self._lane(device) - _LANE_HEIGHT / 2 + 0.14
            said = f"copies of weights each step: {readable(size)}"
            x = _MARGIN + _HEAD + 0.1
            self._text(x, y, said, 8, color=_WEIGHT_COLOR)

    def _arrow(
        self, start: typing.Any, end: typing.Any, color: str, style: str
    ):
        self._axes.annotate(
            "",
            xy=end,
            xytext=start,
            arrowprops={"arrowstyle": style, "color": color, "lw": 1.4},
            zorder=2,
        )

    def _label(
        self, x: float, y: float, said: str, color: str, ha: str
    ) -> None:
        self._axes.text(
            x,
            y,
            said,
            fontsize=8,
            color=color,
            ha=ha,
            va="center",
            zorder=5,
            parse_math=False,
            bbox={
                "facecolor": "white",
                "edgecolor": "none",
                "pad": 1.0,
                "alpha": 0.85,
            },
        )

    def _draw_legend(self, y: float, marked: bool) -> None:
        said = "blue arrows: sent forward, and as many bytes of gradients back"
        if marked:
            said += "; yellow: the critical path"
        self._text(_MARGIN, y, said, 8, color=_GREY)

    def _text(
        self,
        x: float,
        y: float,
        said: str,
        size: int,
        weight: str = "normal",
        color: str = _INK,
    ) -> None:
        # A name may hold what Matplotlib takes for a formula.
        self._axes.text(
            x,
            y,
            said,
            fontsize=size,
            fontweight=weight,
            color=color,
            va="center",
            zorder=5,
            parse_math=False,
        )


def _columns_of(plan: "StagePlan") -> list[int]:
    """For each stage how many have to have run before it, in a row."""
    columns: list[int] = []
    for stage in plan.stages:
        columns.append(max((columns[i] + 1 for i in stage.after), default=0))
    # Two boxes of one lane do not share a column.
    taken: set[tuple[typing.Any, int]] = set()
    for number, stage in enumerate(plan.stages):
        column = max([columns[number], *(columns[i] + 1 for i in stage.after)])
        while (stage.device, column) in taken:
            column += 1
        taken.add((stage.device, column))
        columns[number] = column
    return columns


def _call_of(what: str) -> str:
    """The call of a tensor that is one of several that it makes."""
    return what.rpartition(":")[0]


def _wrapped(plan: "StagePlan", width: float) -> list[str]:
    letters = int((width - 2 * _MARGIN) / 0.078)
    return [
        line
        for note in sentences_of(plan)
        for line in textwrap.wrap(note, letters, initial_indent="• ")
    ]
