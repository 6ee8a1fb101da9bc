"""The compiled step, held against the plan."""

import dataclasses

from keras_parallel.planning.plan import Collective
from keras_parallel.planning.plan import Plan
from keras_parallel.planning.program import Program

# A compiler may exchange a few scalars more than are needed, and pads.
_RATIO = 1.02
_SLACK_BYTES = 1024


@dataclasses.dataclass(frozen=True)
class KindAgainstPlan:
    """All collectives of one kind.

    Args:
        kind: Such as `"all-reduce"`.
        planned: Bytes that each device puts in, by the plan.
        compiled: The same in the compiled step.
        unplanned: The largest compiled collectives, where there is more than
            was planned.
    """

    kind: str
    planned: int
    compiled: int
    unplanned: tuple[Collective, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no more is exchanged than was planned."""
        return self.compiled <= self.planned * _RATIO + _SLACK_BYTES

    @property
    def ratio(self) -> float | None:
        """Compiled to planned bytes, `None` where nothing was planned."""
        return self.compiled / self.planned if self.planned else None


def compare(plan: Plan, program: Program) -> tuple[KindAgainstPlan, ...]:
    """Holds the collectives of a compiled step against a plan.

    Sums of bytes are compared, kind by kind, since a compiler joins and splits
    collectives.

    Returns:
        One row for each kind that was planned or compiled.
    """
    planned, compiled = _bytes(plan.collectives), _bytes(program.collectives)
    rows: list[KindAgainstPlan] = []
    for kind in dict.fromkeys([*planned, *compiled]):
        row = KindAgainstPlan(kind, planned.get(kind, 0), compiled.get(kind, 0))
        if not row.ok:
            of_kind = [c for c in program.collectives if c.kind == kind]
            largest = sorted(of_kind, key=lambda c: -c.bytes)
            row = dataclasses.replace(row, unplanned=tuple(largest[:3]))
        rows.append(row)
    return tuple(rows)


def _bytes(collectives: tuple[Collective, ...]) -> dict[str, int]:
    total: dict[str, int] = {}
    for collective in collectives:
        before = total.get(collective.kind, 0)
        total[collective.kind] = before + collective.bytes
    return total
