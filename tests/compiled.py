"""What crosses in a compiled step, as XLA says."""

import math
import re

import jax

from keras_parallel.planning import COLLECTIVES
from keras_parallel.planning import Collective

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "f16": 2, "bf16": 2, "s64": 8, "f64": 8}
_KINDS = "|".join(COLLECTIVES)
_COLLECTIVE = re.compile(rf" = (.*?) ({_KINDS})(?:-start)?\(")
_CALLED = re.compile(r"(?:body|to_apply|calls)=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def collectives_of_step(parallel, x, y=None, sample_weight=None):
    """The collectives of the training step, those in loops at each step.

    The model is trained on the batch once, so that all its state is there.
    """
    parallel.train_on_batch(x, y, sample_weight)
    state = parallel._keras_parallel.states["train"]
    prepare = parallel._keras_parallel.batch_preparation(parallel, "train")
    batch = prepare((x, y, sample_weight))
    step = jax.jit(parallel.train_step, donate_argnums=0)
    text = step.lower(state.read(), batch).compile().as_text()
    state.bring_home()
    computations = _computations(text)
    entry = re.search(r"^ENTRY %?([\w.-]+)", text, re.MULTILINE)[1]
    return list(_within(computations, entry, 1))


def _computations(text):
    computations = {}
    for line in text.splitlines():
        start = re.match(r"(?:ENTRY )?%?([\w.-]+) .*\{$", line)
        if start and not line.startswith(" "):
            lines = computations[start[1]] = []
        elif line.startswith(" "):
            lines.append(line)
    return computations


def _within(computations, name, times):
    for line in computations[name]:
        found = _COLLECTIVE.search(line)
        if found:
            operation = re.search(r'op_name="([^"]*)"', line)
            purpose = operation[1] if operation else ""
            size = times * _size(found[1])
            yield Collective(found[2], purpose, size, times)
            continue
        trips = _TRIPS.search(line) if " while(" in line else None
        for called in _CALLED.findall(line):
            if called in computations:
                count = times * int(trips[1]) if trips else times
                yield from _within(computations, called, count)


def _size(shapes):
    return sum(
        _BYTES.get(dtype, 4) * math.prod(int(n) for n in dims.split(",") if n)
        for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    )
