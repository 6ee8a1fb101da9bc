"""Medians, spreads, and intervals of paired ratios."""

import random
import statistics

_RESAMPLES = 4000

# How to read the tables.
METHOD = [
    "Medians, with the least and the most in brackets. A ratio is the median",
    "over rounds of ours divided by the peer's in the same round; its 95 %",
    "interval comes from the bootstrap (fixed seed). A limit is held when the",
    "upper end of the interval keeps to it.",
]


def interval(values, seed=0):
    """The 95 % interval of the median of `values`, by the bootstrap.

    Efron, "Bootstrap methods: another look at the jackknife" (1979): the
    median of samples drawn with replacement, and the middle 95 % of those.
    """
    draw = random.Random(seed)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values)))
        for _ in range(_RESAMPLES)
    )
    tail = round(_RESAMPLES * 0.025)
    return medians[tail], medians[-tail - 1]


def paired(ours, theirs):
    """Ratios of the rounds in which both were measured.

    Args:
        ours: From the number of a round to what was measured.
        theirs: The same of the peer.
    """
    return [ours[r] / theirs[r] for r in sorted(ours.keys() & theirs.keys())]


def spread(values, unit=1.0, digits=1):
    """`median [least to most]` in multiples of `unit`."""
    low, middle, high = (
        f"{f(values) / unit:.{digits}f}" for f in (min, statistics.median, max)
    )
    return f"{middle} [{low} to {high}]"


def verdict(ratios, limit):
    """Cells of a table: the ratio and its interval, the limit, if it held."""
    low, high = interval(ratios)
    shown = f"{statistics.median(ratios):.3f} [{low:.3f} to {high:.3f}]"
    if limit is None:
        return [shown, "", ""]
    return [shown, f"{limit}", "yes" if high <= limit else "no"]


def table(header, rows):
    """Lines of a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]
