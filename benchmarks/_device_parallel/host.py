"""Host cost per stage and direction.

Chains of stages with 20 variables each, of one unit and one row, so that
devices have next to nothing to do. What a step takes grows with the number of
stages; the slope, halved for the two directions, is the cost, and what `fit`
costs whatever it trains falls out.
"""

import functools
import statistics

import keras_parallel as kp

import keras
import numpy as np

from _device_parallel.models import host_chain
from _device_parallel.null_programs import Seam
from _measuring import ratios
from _measuring.turns import in_turn
from _measuring.turns import timed
from _measuring.turns import wait_for

LIMIT, GOAL = 200e-6, 120e-6
_STAGES, _QUICK_STAGES = (2, 4, 8), (2, 4)
_STEPS, _QUICK_STEPS = 150, 3

# What runs: programs, transfers.
_MODES = {
    "nothing: our own work": (False, False),
    "programs, no transfers": (True, False),
    "programs and transfers": (True, True),
}
_OWN, _DISPATCH, _ALL = _MODES


def measure(options, say):
    """Seconds per step by mode and stages, and what a step calls."""
    steps = _QUICK_STEPS if options.quick else _STEPS
    seam = Seam()
    turns, calls = {}, {}
    with seam.in_place():
        for stages in _QUICK_STAGES if options.quick else _STAGES:
            say(f"chain of {stages}: compiling")
            model = kp.device_parallel(host_chain(stages, kp.device_scope))
            model.compile(keras.optimizers.SGD(1e-3), "mse")
            fit = functools.partial(_fit, model, steps)
            fit()
            calls[stages] = seam.counted(fit, steps)
            for mode in _MODES:
                turns[mode, stages] = functools.partial(
                    _turn, seam, mode, fit, steps
                )
        seconds = in_turn(turns, options.rounds, options.seconds)
    found = {
        mode: {stages: seconds[mode, stages] for stages in calls}
        for mode in _MODES
    }
    say(f"host cost: {len(found[_OWN][2])} rounds")
    return {"seconds": found, "calls": calls}


def _fit(model, steps):
    ones = np.ones((steps, 1), "float32")
    model.fit(ones, ones, batch_size=1, shuffle=False, verbose=0)
    wait_for(model)


def _turn(seam, mode, fit, steps):
    seam.runs_programs, seam.transfers = _MODES[mode]
    try:
        return timed(fit, steps)
    finally:
        seam.runs_programs = seam.transfers = True


def table(found):
    """Microseconds per stage and direction, and those of one transfer."""
    slopes = {
        mode: _slopes(by_stages) for mode, by_stages in found["seconds"].items()
    }
    rows = []
    for mode, by_stages in found["seconds"].items():
        shown = [
            ratios.spread(list(of_stages.values()), 1e-6, 0)
            for of_stages in by_stages.values()
        ]
        halves = [slope / 2 for slope in slopes[mode]]
        judged = _judged(halves) if mode != _ALL else ["", "", ""]
        rows.append([mode, *shown, _microseconds(halves), *judged])
    header = [
        "what runs",
        *(f"{stages} stages, us a step" for stages in found["calls"]),
        "us per stage and direction [95 %]",
    ]
    header += ["at most", "held", f"at most {GOAL * 1e6:.0f} (goal)"]
    return [
        *ratios.table(header, rows),
        "",
        *_explained(found["calls"], slopes),
    ]


def _slopes(by_stages):
    """How a step grows with each stage, in each round."""
    rounds = next(iter(by_stages.values()))
    return [
        statistics.linear_regression(
            list(by_stages), [of[number] for of in by_stages.values()]
        ).slope
        for number in rounds
    ]


def _judged(values):
    high = ratios.interval(values)[1]
    held, reached = ("yes" if high <= at else "no" for at in (LIMIT, GOAL))
    return [f"{LIMIT * 1e6:.0f}", held, reached]


def _microseconds(values):
    low, high = ratios.interval(values)
    middle = statistics.median(values)
    return f"{middle * 1e6:.0f} [{low * 1e6:.0f} to {high * 1e6:.0f}]"


def _explained(calls, slopes):
    fewest, most = min(calls), max(calls)
    grown = {
        kind: (calls[most][kind] - calls[fewest][kind]) / (most - fewest)
        for kind in calls[most]
    }
    lines = [
        f"A stage more is {grown['programs']:g} programs and "
        f"{grown['transfers']:g} transfers more in a step. Programs: those of "
        "JAX, of one unit, or what they returned last. Transfers: those of "
        "JAX, or arrays that were received before."
    ]
    if grown["transfers"]:
        each = [
            (all_of_it - without) / grown["transfers"]
            for all_of_it, without in zip(slopes[_ALL], slopes[_DISPATCH])
        ]
        lines.append(
            f"One transfer: {_microseconds(each)} us, the difference of the "
            "last two rows."
        )
    return lines
