"""A round of `AlternatingTrainer` beside the loop by hand in plain Keras.

    python benchmarks/alternating.py [--quick] [--json FILE]

Prints Markdown; what goes on is told on standard error. All run in this one
process on virtual devices and take turns, in an order that is shuffled in each
round of turns. See benchmarks/README.md.
"""

import argparse
import functools
import json
import pathlib
import sys
from importlib.metadata import version

import keras_parallel as kp

from _alternating import models
from _alternating.contenders import ByHand
from _alternating.contenders import Ours
from _measuring import conditions
from _measuring import ratios
from _measuring.options import add_turns
from _measuring.options import plain
from _measuring.options import set_unless_given
from _measuring.progress import say
from _measuring.turns import in_turn

LIMIT = 1.05
DEVICES = (1, 2)
_SECONDS_OF_TURN = 0.6


def main():
    options = _options()
    kp.use_virtual_devices(max(DEVICES))
    found = {}
    for case in models.CASES[:1] if options.quick else models.CASES:
        for devices in DEVICES:
            key = f"{case.name}, {devices} device{'s' * (devices > 1)}"
            found[key] = _measured(case, devices, options)
            say(f"{key}: {len(found[key]['ours'])} rounds of turns")
    print("\n".join(_report(found, options)))
    if options.json:
        options.json.write_text(json.dumps(plain(found), indent=1))


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add_turns(parser)
    add("--quick", action="store_true", help="tiny, to see that it runs")
    add("--json", type=pathlib.Path, help="file for all that was measured")
    options = parser.parse_args()
    rounds, seconds = (2, 0.0) if options.quick else (9, 30.0)
    set_unless_given(options, rounds=rounds, seconds=seconds)
    return options


def _measured(case, devices, options):
    ours, hand = Ours(case, devices), ByHand(case, devices)
    rounds = 2
    if not options.quick:
        few = case.data(3)
        hand.seconds(few, 3)
        once = hand.seconds(few, 3)
        rounds = max(3, min(200, round(_SECONDS_OF_TURN / once)))
    data = case.data(rounds)
    turns = {
        "ours": functools.partial(ours.seconds, data, rounds),
        "by hand": functools.partial(hand.seconds, data, rounds),
    }
    return in_turn(turns, options.rounds, options.seconds)


def _report(found, options):
    facts = conditions.of_machine() | {
        "packages": f"jax {version('jax')}, keras {version('keras')}",
        "devices": f"{max(DEVICES)} virtual devices",
        "optimizer": "Adam, one for each model",
        "turns": f"at least {options.rounds}, and as many as begin in "
        f"{options.seconds:.0f} s",
    }
    rows = []
    for key, seconds in found.items():
        shown = [
            ratios.spread(list(seconds[who].values()), 1e-3, 2)
            for who in ("ours", "by hand")
        ]
        pair = ratios.paired(seconds["ours"], seconds["by hand"])
        rows.append([key, *shown, *ratios.verdict(pair, LIMIT)])
    header = [
        "models",
        "ours, ms a round",
        "by hand in plain Keras, ms a round",
    ]
    return [
        *("# Alternating training beside the loop by hand", ""),
        *conditions.listed(facts),
        "",
        "A round of training is two steps and a prediction. On 2 devices the "
        "loop by hand uses `keras.distribution.DataParallel`.",
        *ratios.METHOD,
        *("", "## A round", ""),
        *ratios.table([*header, "ratio [95 %]", "at most", "held"], rows),
    ]


if __name__ == "__main__":
    sys.exit(main())
