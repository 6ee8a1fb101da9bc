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


def title_of(plan: "Plan", width: int) -> str:
    return f"Plan of {shortened(plan.model, width - 10)!r}"


def scope_of(plan: "Plan") -> str:
    devices = [share.device for share in plan.shares]
    virtual = "virtual " if all(d.virtual for d in devices) else ""
    return (
        f"on {counted(len(devices), virtual + 'device')}, batches of "
        f"{counted(plan.batch_size, 'row')}"
    )


def _heading_of(plan: "Plan") -> str:
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


def _holdings(plan: "Plan") -> list[list[str]]:
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
    blocks = [_heading_of(plan), _aligned(_holdings(plan), left=1)]
    if plan.collectives:
        blocks.append(_aligned(_crossings(plan), left=2))
    if plan.notes:
        blocks.append(
            "\n".join(
                textwrap.fill(
                    note, WIDTH, initial_indent="- ", subsequent_indent="  "
                )
                for note in plan.notes
            )
        )
    return "\n\n".join(blocks)


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
    # Colors are left to the notebook, so that dark ones stay dark.
    blocks = [f"<p><strong>{html.escape(_heading_of(plan))}</strong></p>"]
    blocks.append(_html_table(_holdings(plan), left=1))
    if plan.collectives:
        blocks.append(_html_table(_crossings(plan), left=2))
    if plan.notes:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in plan.notes)
        blocks.append(f"<ul>{notes}</ul>")
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
