"""Time per step of a model on several devices, against plain Keras on one.

A turn is one `fit` until the devices are done, without shuffling.
"""

import functools

from _measuring import ratios
from _measuring.turns import in_turn
from _measuring.turns import timed
from _measuring.turns import wait_for

CHAIN_LIMIT = 1.05
_SECONDS_OF_TURN = 0.6


def measure(cases, options, say):
    """Measures all cases; returns seconds per step, by name."""
    found = {}
    for case in cases[:1] if options.quick else cases:
        models = {
            who: case.make(options.quick, who == "ours")
            for who in ("ours", "keras")
        }
        say(f"{case.name}: compiling")
        steps = 2 if options.quick else _steps(case, models["keras"])
        x, y = case.data(models["keras"], options.quick, steps)
        batch = case.tiny_batch if options.quick else case.batch
        turns = {
            who: functools.partial(_turn, model, x, y, batch, steps)
            for who, model in models.items()
        }
        found[case.name] = in_turn(turns, options.rounds, options.seconds)
        rounds = len(found[case.name]["ours"])
        say(f"{case.name}: {rounds} rounds of {steps} steps")
    return found


def _steps(case, model):
    """How many steps a turn has."""
    x, y = case.data(model, tiny=False)
    seconds = [_turn(model, x, y, case.batch, 1) for _ in range(3)]
    return max(1, min(100, round(_SECONDS_OF_TURN / min(seconds))))


def _turn(model, x, y, batch, steps):
    def fit():
        model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
        wait_for(model)

    return timed(fit, steps)


def table(found, limit=None):
    """Milliseconds per step."""
    rows = []
    for name, seconds in found.items():
        shown = [
            ratios.spread(list(seconds[who].values()), 1e-3)
            for who in ("ours", "keras")
        ]
        pair = ratios.paired(seconds["ours"], seconds["keras"])
        rows.append([name, *shown, *ratios.verdict(pair, limit)])
    header = ["model", "ours, ms a step", "plain Keras, 1 device, ms a step"]
    return ratios.table([*header, "ratio [95 %]", "at most", "held"], rows)
