"""Whether branches that do not wait for each other run at the same time.

Ours and plain Keras run one `train_on_batch` a step, with the arrays of NumPy
that raw JAX sends to its devices too. All three wait at the end of each step.
"""

import functools

import jax
import numpy as np

from _device_parallel.models import BRANCHES
from _device_parallel.models import weights_of_branches
from _device_parallel.raw_jax import RawBranches
from _measuring import ratios
from _measuring.turns import in_turn
from _measuring.turns import timed
from _measuring.turns import wait_for

LIMIT = 1.1
_STEPS_OF_TURN = 2
# Rounding of two compilations of the same formulas.
_TOLERANCE = 1e-4
_TITLES = {
    "ours": "keras-parallel",
    "raw": "raw JAX, both branches",
    "alone": "raw JAX, one branch",
    "keras": "plain Keras, 1 device",
}


def measure(options, say):
    """Measures each kind of branches; returns what was found, by name."""
    found = {}
    for case in BRANCHES[-1:] if options.quick else BRANCHES:
        ours, plain = (case.make(options.quick, p) for p in (True, False))
        raw = RawBranches(plain, jax.local_devices()[:2])
        x, y = case.data(plain, options.quick)
        say(f"{case.name}: compiling")
        difference = _difference(raw, {"ours": ours, "keras": plain}, x, y)
        turns = {
            "ours": functools.partial(_train, ours, x, y),
            "keras": functools.partial(_train, plain, x, y),
            "raw": functools.partial(raw.step, x, y),
            "alone": functools.partial(raw.step, x, y, only=0),
        }
        seconds = in_turn(
            {who: functools.partial(_turn, turns[who]) for who in _TITLES},
            options.rounds,
            options.seconds,
        )
        say(f"{case.name}: {len(seconds['ours'])} rounds")
        found[case.name] = {"seconds": seconds, "difference": difference}
    return found


def _turn(step):
    def steps():
        for _ in range(_STEPS_OF_TURN):
            step()

    return timed(steps, _STEPS_OF_TURN)


def _train(model, x, y):
    model.train_on_batch(x, y)
    wait_for(model)


def _difference(raw, models, x, y):
    """The largest relative difference to raw JAX: losses, and steps of weights.

    Raises:
        RuntimeError: if they do not compute the same.
    """
    before = jax.tree.map(np.array, raw.weights)
    losses = np.array([sum(map(float, raw.step(x, y))) for _ in range(3)])
    moved = _moved(raw.weights, before)
    largest = 0.0
    for who, model in models.items():
        of_model = []
        for _ in losses:
            model.reset_metrics()
            logs = model.train_on_batch(x, y, return_dict=True)
            of_model.append(logs["loss"])
        weights = [[v.value for v in b] for b in weights_of_branches(model)]
        step = _moved(weights, before)
        off = max(
            np.max(np.abs(losses - of_model) / losses),
            np.max(np.abs(step - moved)) / np.max(np.abs(moved)),
        )
        if not off <= _TOLERANCE:
            raise RuntimeError(
                f"Raw JAX and {_TITLES[who]} do not compute the same: in 3 "
                f"steps they differ by {off:.1e}, more than {_TOLERANCE}."
            )
        largest = max(largest, float(off))
    return largest


def _moved(weights, before):
    """By how much each weight has moved, in one row."""
    moved = jax.tree.map(lambda w, b: np.ravel(w - b), weights, before)
    return np.concatenate(jax.tree.leaves(moved))


def table(found):
    """Milliseconds per step, and what ours is held against."""
    rows = []
    for name, of_case in found.items():
        seconds = of_case["seconds"]
        for who, limit in (("raw", LIMIT), ("keras", 1), ("alone", None)):
            shown = [
                ratios.spread(list(seconds[key].values()), 1e-3)
                for key in ("ours", who)
            ]
            pair = ratios.paired(seconds["ours"], seconds[who])
            verdict = ratios.verdict(pair, limit)
            rows.append([name, _TITLES[who], *shown, *verdict])
        gain = ratios.paired(seconds["alone"], seconds["raw"])
        shown = ratios.verdict([2 * ratio for ratio in gain], None)
        rows.append([name, "raw JAX: gain of two devices", "", "", *shown])
    header = ["each branch", "peer", "ours, ms a step", "peer, ms a step"]
    header += ["ratio [95 %]", "at most", "held"]
    return [*ratios.table(header, rows), "", *_explained(found)]


def _explained(found):
    lines = [
        "Raw JAX: one compiled program for each branch, of the same layers: "
        "forward pass, mean squared error, gradients, update of SGD. A step "
        "sends both batches from the host, dispatches both programs and waits "
        "for all they return. Its gain is twice the time of one branch alone, "
        "divided by that of both.",
    ]
    for name, of_case in found.items():
        lines.append(
            f"{name}: losses and weights after 3 steps of all three differ by "
            f"{of_case['difference']:.0e} at most, of the loss and of the "
            "largest change of a weight."
        )
    return lines
