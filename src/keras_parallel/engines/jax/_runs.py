"""Which run of which program an operation or a call of the host belongs to."""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from keras_parallel.planning import HOST


class Found(NamedTuple):
    """An event as a profiler has it."""

    begin: int  # Nanoseconds.
    end: int
    device: str
    kind: str
    name: str
    program: str | None = None
    module: Any = None  # The profiler's number for the program.
    runs: tuple[Any, ...] = ()  # Its numbers for the run, of a call if known.
    ran: bool = False  # Whether a call is seen to start something.


def numbered(
    found: Sequence[Found],
) -> tuple[list[tuple[str | None, int | None]], tuple[str, ...]]:
    """The program and the number of the run of each event; what is missing.

    Programs of one name are told apart in the order in which they ran first:
    `jit_step`, `jit_step (2)`.

    Args:
        found: Events in the order in which they began.
    """
    keys = _keys(found)
    labels: dict[Any, str] = {}
    numbers: dict[Any, int] = {}
    modules: dict[str, int] = {}
    counts: dict[str, int] = {}
    for key in keys:
        if key is None or key in numbers:
            continue
        program, module, _ = key
        if (program, module) not in labels:
            count = modules[program] = modules.get(program, 0) + 1
            suffix = f" ({count})" if count > 1 else ""
            labels[program, module] = program + suffix
        label = labels[program, module]
        numbers[key] = counts.get(label, 0)
        counts[label] = numbers[key] + 1
    missing = _join_calls(found, keys, list(numbers))
    told: list[tuple[str | None, int | None]] = [
        (labels[key[:2]], numbers[key]) if key else (event.program, None)
        for event, key in zip(found, keys)
    ]
    return told, missing


def _keys(found):
    """For each operation of a device what names its run.

    On GPUs the profiler does not say which run it is: there a run begins with
    the operation that came first.
    """
    firsts, counts, keys = {}, {}, []
    for event in found:
        key = None
        if event.program and event.device != HOST:
            run = event.runs[0] if event.runs else None
            if run is None:
                place = event.program, event.module, event.device
                first = firsts.setdefault(place, event.name)
                counts[place] = counts.get(place, 0) + (event.name == first)
                run = counts[place]
            key = event.program, event.module, run
        keys.append(key)
    return keys


def _join_calls(found, keys, runs):
    """Sets the keys of calls; returns which calls have no run."""
    of_program = {}
    for key in runs:
        of_program.setdefault(key[0], []).append(key)
    missing = []
    for program, calls in _calls(found).items():
        started = of_program.get(program, [])
        if len(calls) > len(started) and (started or not runs):
            missing.append(
                f"the host called {program} {len(calls)} times; of its runs "
                f"{len(started)} were recorded."
            )
        by_number = {key[2]: key for key in started}
        unknown = []
        for i in calls:
            named = [by_number.pop(r) for r in found[i].runs if r in by_number]
            if named:
                keys[i] = named[0]
            else:
                unknown.append(i)
        # The host calls them in the order in which they run.
        if len(unknown) == len(by_number):
            for i, key in zip(unknown, by_number.values()):
                keys[i] = key
    return tuple(missing)


def _calls(found):
    """The calls of each program, without those that trace a function only."""
    told = any(event.ran for event in found)
    calls = {}
    for i, event in enumerate(found):
        if event.device == HOST and event.program and event.ran == told:
            calls.setdefault(event.program, []).append(i)
    return calls
