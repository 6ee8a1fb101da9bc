"""Stages: the parts of a graph that run as one program on one place.

A graph whose operations lie on several places is cut where a value goes from
one place to another. An operation is on the level of the longest way to it,
counted in such crossings; operations of one place and one level are a stage.
So a stage never waits for what waits for it, and stages of one level do not
wait for each other.
"""

import dataclasses
import functools
import typing
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Sequence

from keras_parallel._errors import PlanError


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a graph that is to be cut into stages.

    Keys, places and values are whatever can be hashed.

    Args:
        key: What tells it from others.
        place: Where it runs. `None`: wherever its results are read, anew in
            each such stage; so it should cost next to nothing.
        reads: The values it takes.
        writes: The values it makes.
        may_wait: Whether it can run after all that cannot, as the update of
            a weight can. It does if no other operation needs it before.
    """

    key: typing.Any
    place: typing.Any
    reads: tuple[typing.Any, ...]
    writes: tuple[typing.Any, ...]
    may_wait: bool = False


@dataclasses.dataclass(frozen=True)
class Stage:
    """Operations that run as one program on one place.

    Args:
        place: The place.
        operations: Keys of the operations, in the order in which they run.
        reads: Values that it takes, of others or of the graph.
        writes: Values that it makes for others, or for the graph.
    """

    place: typing.Any
    operations: tuple[typing.Any, ...]
    reads: tuple[typing.Any, ...]
    writes: tuple[typing.Any, ...]


def cut_into_stages(
    operations: Sequence[Operation], results: Iterable[Hashable] = ()
) -> tuple[Stage, ...]:
    """Groups the operations of a graph into stages.

    Args:
        operations: In an order in which they can run.
        results: Values that the graph gives back.

    Returns:
        The stages, in an order in which they can run. Each operation with a
        place is in one of them; one without is in each that needs it, and in
        none if nothing does.

    Raises:
        PlanError: if an operation reads what is only made after it, if two
            make the same value, or if a result is made without a place.
    """
    graph = _Graph(operations)
    wanted: dict[Hashable, None] = dict.fromkeys(results)
    for value in wanted:
        maker = graph.made_by.get(value)
        if maker is not None and maker.place is None:
            raise PlanError(
                "A result of a graph is made on a place. Received: "
                f"{value!r}, made by {maker.key!r} with place=None. A call "
                "that works: `Operation(key, place, reads, writes)`."
            )
    groups: dict[tuple[_Level, Hashable], list[Operation]] = {}
    for operation, level in graph.levels.items():
        groups.setdefault((level, operation.place), []).append(operation)
    members = [
        (place, graph.with_copies(groups[level, place]))
        for level, place in sorted(groups, key=lambda at: at[0])
    ]
    reads = [_read_from_outside(inside) for _, inside in members]
    asked_for = wanted | dict.fromkeys(v for values in reads for v in values)
    return tuple(
        Stage(
            place,
            tuple(operation.key for operation in inside),
            values,
            tuple(
                value
                for operation in inside
                if operation.place is not None
                for value in operation.writes
                if value in asked_for
            ),
        )
        for (place, inside), values in zip(members, reads)
    )


# Whether an operation waits for all that do not, and how many crossings lie
# before it.
_Level = tuple[bool, int]


class _Graph:
    """Which operations need which."""

    def __init__(self, operations: Sequence[Operation]):
        self.operations = operations
        self.made_by: dict[Hashable, Operation] = {}
        self._index: dict[Operation, int] = {}
        read: dict[Hashable, Operation] = {}
        for index, operation in enumerate(operations):
            self._index[operation] = index
            read |= dict.fromkeys(operation.reads, operation)
            for value in operation.writes:
                self._check(value, operation, read)
                self.made_by[value] = operation

    def _check(
        self,
        value: Hashable,
        operation: Operation,
        read: dict[Hashable, Operation],
    ) -> None:
        if value in self.made_by:
            raise PlanError(
                "Each value of a graph is made by one operation. Received: "
                f"{value!r}, made by {self.made_by[value].key!r} and by "
                f"{operation.key!r}."
            )
        if value in read:
            raise PlanError(
                "An operation reads what those before it have made, so that "
                "none waits for itself. Received: "
                f"{read[value].key!r} reads {value!r}, which "
                f"{operation.key!r} makes after it."
            )

    @functools.cached_property
    def levels(self) -> dict[Operation, _Level]:
        """The level of each operation on a place."""
        placed = [o for o in self.operations if o.place is not None]
        needed = {operation: self._needed(operation) for operation in placed}
        waits = _those_that_wait(placed, needed)
        levels: dict[Operation, _Level] = {}
        for operation in placed:
            late, level = operation in waits, 0
            for other in needed[operation]:
                other_late, other_level = levels[other]
                if other_late == late:
                    crosses = other.place != operation.place
                    level = max(level, other_level + crosses)
            levels[operation] = late, level
        return levels

    def _needed(self, operation: Operation) -> list[Operation]:
        """Operations on a place that `operation` needs to have run."""
        found: dict[Operation, None] = {}
        for other in self.with_copies([operation]):
            for value in other.reads:
                maker = self.made_by.get(value)
                if maker is not None and maker.place is not None:
                    found[maker] = None
        return list(found)

    def with_copies(self, inside: Sequence[Operation]) -> list[Operation]:
        """The operations, and those without a place that they need."""
        found = dict.fromkeys(inside)
        waiting = list(inside)
        while waiting:
            for value in waiting.pop().reads:
                maker = self.made_by.get(value)
                if maker is None or maker.place is not None or maker in found:
                    continue
                found[maker] = None
                waiting.append(maker)
        return sorted(found, key=self._index.__getitem__)


def _those_that_wait(
    placed: Sequence[Operation], needed: dict[Operation, list[Operation]]
) -> set[Operation]:
    waits = {operation for operation in placed if operation.may_wait}
    for operation in reversed(placed):
        if operation not in waits:
            waits.difference_update(needed[operation])
    return waits


def _read_from_outside(inside: Sequence[Operation]) -> tuple[Hashable, ...]:
    made = {value for operation in inside for value in operation.writes}
    return tuple(
        dict.fromkeys(
            value
            for operation in inside
            for value in operation.reads
            if value not in made
        )
    )
