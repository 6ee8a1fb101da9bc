"""Time of our training on one GPU against plain Keras, paired in turn."""

import functools
import statistics

from _check_gpu import parallel
from _data_parallel import keras_models
from _data_parallel.keras_models import compile_model
from _data_parallel.keras_models import make_model
from _data_parallel.null_step import NullStep
from _data_parallel.null_step import replaced
from _data_parallel.workloads import WORKLOADS
from _measuring import ratios
from _measuring.turns import in_turn
from _measuring.turns import timed
from _measuring.turns import wait_for

from keras.src.backend.jax import trainer as keras_trainer

HOST_RATIO = 0.75
# The median of few rounds, so that the interval is wide: `data_parallel.py`
# holds the upper end of it to 1.02.
STEP_RATIO = 1.05

_ROUNDS, _TINY_ROUNDS = 7, 2
# Enough rows of a batch to keep a GPU busy, and batches of a turn.
_SIZES = {"mlp": (4096, 16), "cnn": (1024, 8), "transformer": (1024, 8)}
_SECONDS = 12
_BLOCKS = 4


def check_host_cost(found, tiny):
    """`fit` with the compiled step replaced by one that does nothing."""
    workload = WORKLOADS["host-bound"]
    if tiny:
        workload = workload.at_batch(32, 4)
    pair = _pair(workload)
    for model in pair.values():
        with replaced(keras_trainer, "jit", NullStep):
            model.make_train_function(force=True)
            _fit(model, workload, *workload.at_batch(32, 1).data())
    seconds = _rounds(pair, workload, tiny)
    _report(found, "host cost", pair, workload, seconds, HOST_RATIO, 1e-6, "us")


def check_step_time(found, tiny):
    """A turn of `fit` until the device is done."""
    # All 12 of them take longest to compile.
    keras_models.BLOCKS = _BLOCKS
    for name, (batch, steps) in _SIZES.items():
        if tiny and name != "mlp":
            continue  # The others take long to compile.
        if tiny:
            batch, steps = 16, 2
        workload = WORKLOADS[name].at_batch(batch, steps)
        pair = _pair(workload)
        seconds = _rounds(pair, workload, tiny)
        _report(found, name, pair, workload, seconds, STEP_RATIO, 1e-3, "ms")


def _pair(workload):
    """Plain Keras and ours, compiled."""
    pair = {}
    for who in ("keras", "ours"):
        model = make_model(workload)
        compile_model(model, workload)
        if who == "ours":
            model = parallel.data_parallel(model, 1)
        pair[who] = model
    return pair


def _rounds(pair, workload, tiny):
    """Seconds per step, by who and the number of the round."""
    x, y = workload.data()
    steps = len(x) // workload.batch

    def turn(model):
        return timed(lambda: _fit(model, workload, x, y), steps)

    return in_turn(
        {who: functools.partial(turn, model) for who, model in pair.items()},
        0 if tiny else _ROUNDS,
        _SECONDS,
        most=_TINY_ROUNDS if tiny else 10 * _ROUNDS,
    )


def _fit(model, workload, x, y):
    # Shuffling takes longer than a step of a GPU.
    model.fit(x, y, batch_size=workload.batch, shuffle=False, verbose=0)
    wait_for(model)


def _report(found, name, pair, workload, seconds, bound, unit, unit_name):
    shown = {
        who: f"{ratios.spread(list(of.values()), unit)} {unit_name}"
        for who, of in seconds.items()
    }
    paired = ratios.paired(seconds["ours"], seconds["keras"])
    low, high = ratios.interval(paired)
    middle = statistics.median(paired)
    text = (
        f"{middle:.3f} [{low:.3f} to {high:.3f}]: {shown['ours']}, "
        f"plain Keras {shown['keras']}, {len(paired)} rounds, "
        f"batch {workload.batch}"
    )
    what = f"{name} per step: ratio of medians to plain Keras, 1 GPU"
    if parallel.is_virtual():
        found.show(what, text)
        # No time is judged here: that both trained alike is.
        counts = [int(model.optimizer.iterations) for model in pair.values()]
        same = counts[0] == counts[1] and all(p > 0 for p in paired)
        found.judge(f"{name}: steps of both", counts, "equal", same)
        return
    found.judge(what, text, f"at most {bound}", middle <= bound)
