"""Which of many cases the default run has; `full` marks the others."""

import itertools

import pytest


def case(*values, needed):
    """A case of a parametrized test, marked `full` unless it is `needed`."""
    return pytest.param(*values, marks=() if needed else pytest.mark.full)


def in_turn(first, *others, start=0):
    """All combinations, of which each entry of `first` needs one.

    Along `first` the entries of `others` take turns, the first of them
    fastest, so that all of their combinations are met if `first` is long
    enough.

    Args:
        first: Each of these is in the default run once.
        *others: What takes turns.
        start: The combination of `others` that comes first.
    """
    first, others = list(first), [list(other) for other in others]
    # The last of a product is the fastest.
    turns = [turn[::-1] for turn in itertools.product(*others[::-1])]
    return [
        case(entry, *turn, needed=turn == turns[(i + start) % len(turns)])
        for i, entry in enumerate(first)
        for turn in itertools.product(*others)
    ]


def every(nth, cases, start=0):
    """All `cases`, of which the default run has every `nth`."""
    return [
        case(entry, needed=i % nth == start) for i, entry in enumerate(cases)
    ]
