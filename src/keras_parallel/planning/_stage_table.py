"""The plan of stages as text and as HTML."""

import math
import typing

from keras_parallel.planning._table import Table
from keras_parallel.planning._table import as_html
from keras_parallel.planning._table import as_text
from keras_parallel.planning._table import heading_of
from keras_parallel.planning._table import holdings
from keras_parallel.planning._table import readable
from keras_parallel.planning._table import shortened

if typing.TYPE_CHECKING:
    from keras_parallel.planning.stage_plan import StagePlan
    from keras_parallel.planning.stage_plan import Transfer

_CALLS_WIDTH = 42
_WHAT_WIDTH = 34
_MOST_TRANSFERS = 24
_PREFIXES = ("", "k", "M", "G", "T", "P")


def text_of(plan: "StagePlan") -> str:
    return as_text(heading_of(plan), _tables(plan), sentences_of(plan))


def html_of(plan: "StagePlan") -> str:
    return as_html(heading_of(plan), _tables(plan), sentences_of(plan))


def sentences_of(plan: "StagePlan") -> list[str]:
    """What the numbers of a plan say, then its notes."""
    return [*_of_path(plan), *plan.notes]


def operations(count: float | None) -> str:
    """A number of floating-point operations for people."""
    if count is None:
        return "?"
    power = 0
    while count >= 999.5 and power < len(_PREFIXES) - 1:
        count, power = count / 1000, power + 1
    digits = 0 if power == 0 or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:.{digits}f} {_PREFIXES[power]}FLOP"


def calls_of(names: tuple[str, ...], width: int) -> str:
    """Names of calls in a line: the first ones, the last one, their number."""
    listed = ", ".join(names)
    if len(listed) <= width:
        return listed
    said = f"{names[0]} … {names[-1]} ({len(names)})"
    if len(names) == 1:
        said = names[0]
    return shortened(said, width)


def joined(
    transfers: "tuple[Transfer, ...]",
) -> "list[tuple[Transfer, Transfer | None]]":
    """Each transfer with that of its gradient, which goes back."""
    gradients: dict[typing.Any, Transfer] = {
        (t.what, t.target, t.source): t
        for t in transfers
        if t.purpose == "gradient"
    }
    pairs: list[tuple[Transfer, Transfer | None]] = []
    for transfer in transfers:
        if transfer.purpose != "gradient":
            key = transfer.what, transfer.source, transfer.target
            pairs.append((transfer, gradients.pop(key, None)))
    return pairs


def runs_beside(plan: "StagePlan") -> bool:
    """Whether stages run beside each other to an extent worth a word."""
    bound = plan.speedup_bound
    # Less than a unit in its first decimal is less than anybody measures.
    return bound is not None and bound >= 1.05


def _of_path(plan: "StagePlan") -> list[str]:
    path, bound = plan.critical_path, plan.speedup_bound
    if not path or bound is None or len(plan.stages) < 2:
        return []
    if not runs_beside(plan):
        return [
            "The stages run one after another: this placement gives room for "
            "a larger model, and no speed."
        ]
    ways = " → ".join(f"{i} ({plan.stages[i].device.name})" for i in path)
    floor = math.floor(bound * 10) / 10
    return [
        f"The critical path (marked) is {ways}. If only products and "
        "convolutions took time, this placement would be "
        f"{floor:.1f} times as fast as one device at most."
    ]


def _tables(plan: "StagePlan") -> list[Table]:
    tables = [Table(holdings(plan), left=1), Table(_stages(plan), left=4)]
    if plan.transfers:
        tables.append(Table(_transfers(plan), left=4))
    if plan.losses:
        rows = [["loss of", "on"]]
        rows += [[name, device.name] for name, device in plan.losses.items()]
        tables.append(Table(rows, left=2))
    return tables


def _stages(plan: "StagePlan") -> list[list[str]]:
    marked = plan.critical_path if runs_beside(plan) else ()
    rows = [
        [
            *("stage", "device", "after", "calls"),
            *("weights", "kept for a row", "forward"),
        ]
    ]
    for number, stage in enumerate(plan.stages):
        rows.append(
            [
                f"{number}{' *' * (number in marked)}",
                stage.device.name,
                ", ".join(map(str, stage.after)),
                calls_of(stage.calls, _CALLS_WIDTH),
                readable(stage.weights),
                readable(plan.per_row(stage.activations)),
                operations(stage.flops),
            ]
        )
    return rows


def _transfers(plan: "StagePlan") -> list[list[str]]:
    rows = [["sent in each step", "shape", "from", "to", "bytes", "back"]]
    pairs = joined(plan.transfers)
    largest = sorted(pairs, key=lambda pair: -(pair[0].bytes or 0))
    shown = set(map(id, largest[:_MOST_TRANSFERS]))
    for pair in pairs:
        if id(pair) not in shown:
            continue
        there, back = pair
        rows.append(
            [
                shortened(_what(there), _WHAT_WIDTH),
                _shape(there),
                "host" if there.source is None else there.source.name,
                there.target.name,
                readable(there.bytes),
                readable(back.bytes) if back else "",
            ]
        )
    rest = largest[_MOST_TRANSFERS:]
    if rest:
        rows.append(
            [
                *(f"{len(rest)} smaller ones", "", "", ""),
                readable(sum(there.bytes or 0 for there, _ in rest)),
                readable(sum(back.bytes or 0 for _, back in rest if back)),
            ]
        )
    total = readable(plan.bytes_per_step)
    rows.append(["between devices, in all", "", "", "", total, ""])
    return rows


def _what(transfer: "Transfer") -> str:
    if transfer.purpose in ("weight", "state"):
        return f"{transfer.purpose} of {transfer.what}"
    return transfer.what


def _shape(transfer: "Transfer") -> str:
    if transfer.shape is None:
        return ""
    dims = " x ".join("?" if n is None else str(n) for n in transfer.shape)
    return f"{dims} {transfer.dtype}"
