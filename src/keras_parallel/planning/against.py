"""The compiled step, held against the plan."""

import dataclasses
from collections.abc import Iterable

from keras_parallel.planning.plan import Collective
from keras_parallel.planning.plan import Plan
from keras_parallel.planning.program import Program
from keras_parallel.planning.stage_plan import StagePlan
from keras_parallel.planning.stage_plan import Transfer

# A compiler may exchange a few scalars more than are needed, and pads.
_RATIO = 1.02
_SLACK_BYTES = 1024


@dataclasses.dataclass(frozen=True)
class Crossing:
    """One thing that crosses.

    Args:
        kind: As in `KindAgainstPlan`.
        purpose: What it is for, or what it is.
        bytes: Its size.
    """

    kind: str
    purpose: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class KindAgainstPlan:
    """All that crosses in one way.

    Args:
        kind: Such as `"all-reduce"`, or `"gpu:0 to gpu:1"` for what one
            device sends to another.
        planned: Bytes that each device puts in, or sends, by the plan.
        compiled: The same in the compiled step.
        unplanned: The largest of what was compiled, where there is more than
            was planned.
    """

    kind: str
    planned: int
    compiled: int
    unplanned: tuple[Crossing, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no more is exchanged than was planned."""
        return self.compiled <= self.planned * _RATIO + _SLACK_BYTES

    @property
    def ratio(self) -> float | None:
        """Compiled to planned bytes, `None` where nothing was planned."""
        return self.compiled / self.planned if self.planned else None


def compare(
    plan: Plan | StagePlan, program: Program
) -> tuple[KindAgainstPlan, ...]:
    """Holds what crosses in a compiled step against a plan.

    Sums of bytes are compared, kind by kind, since a compiler joins and splits
    what crosses. What the host sends is left out.

    Returns:
        One row for each kind that was planned or compiled.
    """
    crossing = [
        *_of_collectives(program.collectives),
        *_of_transfers(program.transfers),
    ]
    planned = (
        _bytes(_of_transfers(plan.transfers))
        if isinstance(plan, StagePlan)
        else _bytes(_of_collectives(plan.collectives))
    )
    compiled = _bytes(crossing)
    rows: list[KindAgainstPlan] = []
    for kind in dict.fromkeys([*planned, *compiled]):
        row = KindAgainstPlan(kind, planned.get(kind, 0), compiled.get(kind, 0))
        if not row.ok:
            of_kind = [c for c in crossing if c.kind == kind]
            largest = sorted(of_kind, key=lambda c: -c.bytes)
            row = dataclasses.replace(row, unplanned=tuple(largest[:3]))
        rows.append(row)
    return tuple(rows)


def _of_collectives(collectives: Iterable[Collective]) -> list[Crossing]:
    return [Crossing(c.kind, c.purpose, c.bytes) for c in collectives]


def _of_transfers(transfers: Iterable[Transfer]) -> list[Crossing]:
    return [
        Crossing(f"{t.source.name} to {t.target.name}", t.what, t.bytes or 0)
        for t in transfers
        if t.source is not None
    ]


def _bytes(crossing: Iterable[Crossing]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in crossing:
        total[one.kind] = total.get(one.kind, 0) + one.bytes
    return total
