"""Device parallelism beside raw JAX and plain Keras: overlap, time, host cost.

    python benchmarks/device_parallel.py [--quick] [--json FILE]

Prints Markdown; what goes on is told on standard error. All run in this one
process on virtual devices and take turns, in an order that is shuffled in each
round. See benchmarks/README.md.
"""

import argparse
import functools
import json
import pathlib
import sys
from importlib.metadata import version

import keras_parallel as kp

from _device_parallel import host
from _device_parallel import models
from _device_parallel import overlap
from _device_parallel import steps
from _measuring import conditions
from _measuring import ratios
from _measuring.options import add_turns
from _measuring.options import names_in
from _measuring.options import plain
from _measuring.options import set_unless_given
from _measuring.progress import say

# Title, what measures, what makes the table of it.
_ANSWERS = {
    "overlap": (
        "Two branches at the same time",
        overlap.measure,
        overlap.table,
    ),
    "steps": (
        "Time per step",
        functools.partial(steps.measure, models.STEPS),
        steps.table,
    ),
    "chain": (
        "A chain of two stages",
        functools.partial(steps.measure, models.CHAINS),
        functools.partial(steps.table, limit=steps.CHAIN_LIMIT),
    ),
    "host": ("Host cost per stage and direction", host.measure, host.table),
}
DEVICES = 2


def main():
    options = _options()
    kp.use_virtual_devices(DEVICES)
    lines, found = [], {}
    try:
        for question in options.questions:
            lines += ["", *_answer(question, options, found)]
    finally:
        # What was measured before a mistake, or Ctrl-C, is not lost.
        print("\n".join([*_conditions(options), *lines]))
        if options.json:
            options.json.write_text(json.dumps(plain(found), indent=1))


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--questions", type=names_in(_ANSWERS), default=list(_ANSWERS))
    add_turns(parser)
    add("--quick", action="store_true", help="tiny, to see that it runs")
    add("--json", type=pathlib.Path, help="file for all that was measured")
    options = parser.parse_args()
    rounds, seconds = (2, 0.0) if options.quick else (9, 30.0)
    set_unless_given(options, rounds=rounds, seconds=seconds)
    return options


def _answer(question, options, found):
    """The section of one question."""
    title, measure, table = _ANSWERS[question]
    found[question] = measure(options, say)
    return [f"## {title}", "", *table(found[question])]


def _conditions(options):
    facts = conditions.of_machine() | {
        "packages": f"jax {version('jax')}, keras {version('keras')}",
        "devices": f"{DEVICES} virtual devices gpu:0 and gpu:1, and cpu:0",
        "processes": "one; plain Keras and raw JAX use its devices too",
        "optimizer": "SGD",
        "rounds": f"at least {options.rounds}, and as many as begin in "
        f"{options.seconds:.0f} s",
    }
    lines = conditions.listed(facts)
    return [
        *("# Device parallelism beside raw JAX and one device", ""),
        *lines,
        *("", *ratios.METHOD),
    ]


if __name__ == "__main__":
    sys.exit(main())
