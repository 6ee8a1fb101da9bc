"""The plan as text and as HTML."""

import dataclasses
import html
import textwrap
import typing
from collections.abc import Iterable
from collections.abc import Sequence

if typing.TYPE_CHECKING:
    from keras_parallel.planning.plan import Collective
    from keras_parallel.planning.plan import Plan
    from keras_parallel.planning.stage_plan import StagePlan

WIDTH = 100
# Of a group with more members, one line tells all.
_LISTED = 3
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_PURPOSE_WIDTH = 58


def readable(size: int | None) -> str:
    """A number of bytes for people, in powers of 1000."""
    if size is None:
        return "?"
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    digits = 0 if unit == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"


def shortened(text: str, width: int) -> str:
    """`text` with its middle left out where it is too long."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[head + 1 - width :]}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def title_of(plan: "Plan | StagePlan", width: int) -> str:
    return f"Plan of {shortened(plan.model, width - 10)!r}"


def scope_of(plan: "Plan | StagePlan") -> str:
    devices = [share.device for share in plan.shares]
    virtual = "virtual " if all(d.virtual for d in devices) else ""
    return (
        f"on {counted(len(devices), virtual + 'device')}, batches of "
        f"{counted(plan.batch_size, 'row')}"
    )


def heading_of(plan: "Plan | StagePlan") -> str:
    return f"{title_of(plan, 50)} {scope_of(plan)}"


def summary_of(
    collectives: Iterable["Collective"],
) -> "list[Collective]":
    """The collectives, those of a large group as one, biggest first."""
    groups: dict[tuple[str, str], list[Collective]] = {}
    for i, one in enumerate(collectives):
        key = (one.kind, one.group or f"#{i}")
        groups.setdefault(key, []).append(one)
    lines: list[Collective] = []
    for (_, group), members in groups.items():
        if len(members) <= _LISTED:
            lines += members
            continue
        lines.append(
            dataclasses.replace(
                members[0],
                purpose=f"{group} ({len(members)})",
                bytes=sum(one.bytes for one in members),
                count=sum(one.count for one in members),
            )
        )
    return sorted(lines, key=lambda one: -one.bytes)


def holdings(plan: "Plan | StagePlan") -> list[list[str]]:
    names = ["rows", *plan.shares[0].parts, "total"]
    rows = [["device", *names]]
    for share in plan.shares:
        sizes = [readable(size) for size in share.parts.values()]
        total = readable(share.total)
        rows.append([str(share.device), str(share.rows), *sizes, total])
    return rows


def _crossings(plan: "Plan") -> list[list[str]]:
    rows = [["crosses in each step", "as", "bytes", "operations"]]
    lines = summary_of(plan.collectives)
    for one in lines:
        purpose = shortened(one.purpose, _PURPOSE_WIDTH)
        size = readable(one.bytes)
        rows.append([purpose, one.kind, size, str(one.count)])
    if len(lines) > 1:
        count = sum(one.count for one in lines)
        size = readable(plan.bytes_per_step)
        rows.append(["together", "", size, str(count)])
    return rows


def text_of(plan: "Plan") -> str:
    tables = [Table(holdings(plan), left=1)]
    if plan.collectives:
        tables.append(Table(_crossings(plan), left=2))
    return as_text(heading_of(plan), tables, plan.notes)


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells, the first one of headings.

    Args:
        rows: The rows.
        left: How many columns, from the first on, are aligned to the left.
    """

    rows: Sequence[Sequence[str]]
    left: int


def as_text(heading: str, tables: Iterable[Table], notes: Iterable[str]) -> str:
    """A heading, tables and a list of sentences, in lines."""
    blocks = [heading, *(_aligned(t.rows, t.left) for t in tables)]
    listed = "\n".join(
        textwrap.fill(note, WIDTH, initial_indent="- ", subsequent_indent="  ")
        for note in notes
    )
    return "\n\n".join([*blocks, *([listed] if listed else [])])


def _aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def html_of(plan: "Plan") -> str:
    tables = [Table(holdings(plan), left=1)]
    if plan.collectives:
        tables.append(Table(_crossings(plan), left=2))
    return as_html(heading_of(plan), tables, plan.notes)


def as_html(heading: str, tables: Iterable[Table], notes: Iterable[str]) -> str:
    """The same in HTML."""
    # Colors are left to the notebook, so that dark ones stay dark.
    blocks = [f"<p><strong>{html.escape(heading)}</strong></p>"]
    blocks += [_html_table(table.rows, table.left) for table in tables]
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    if listed:
        blocks.append(f"<ul>{listed}</ul>")
    return f"<div>{''.join(blocks)}</div>"


def _html_table(rows: Sequence[Sequence[str]], left: int) -> str:
    def row_of(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f'<{tag} style="text-align:{"left" if i < left else "right"}">'
            f"{html.escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )

    head = f"<thead><tr>{row_of(rows[0], 'th')}</tr></thead>"
    body = "".join(f"<tr>{row_of(row, 'td')}</tr>" for row in rows[1:])
    return f"<table>{head}<tbody>{body}</tbody></table>"
