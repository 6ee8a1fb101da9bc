"""Training on the GPUs against the CPU, and against one GPU."""

import functools
import math

from _check_gpu import models
from _check_gpu import parallel

import keras_parallel as kp

import jax
import keras
import ml_dtypes
import numpy as np
from keras_parallel.testing import _state
from keras_parallel.testing._equality import ONE_STEP as ONE_LIBRARY_STEP
from keras_parallel.testing._equality import YARDSTICKS
from keras_parallel.testing._run import run_of_new

# GPU against CPU, relative to the largest entry of a tensor. Both round each
# operation to 6e-8, in sums of up to 1e5 terms that each takes in its own
# order, and with exp and tanh of their own: 1e-6 to 1e-5 is usual.
ONE_STEP = 1e-4
# Each step starts from the differences of the one before.
THREE_STEPS = 1e-3
# In half precision each layer rounds what it passes on to so many units in
# the last place of 1, and its gradient as well.
HALF_UNITS = 16
HALF = ("bfloat16", "float16")

LIKE_ONE_DEVICE = ("conv", "attention")
# The others take long to compile.
TINY_MODELS = ("lstm",)
STEPS, TINY_STEPS = 6, 2


def check_cpu(found, tiny):
    """From the same weights, on the GPUs and on the CPU by plain Keras."""
    # GPUs multiply in TensorFloat-32 otherwise, with 3 digits.
    jax.config.update("jax_default_matmul_precision", "highest")
    dropout = 0.2 if _same_random_bits(found) else 0.0
    for name in TINY_MODELS if tiny else models.MODELS:
        _compare(found, name, tiny, dropout, "float32", ONE_STEP, THREE_STEPS)
    for dtype in HALF[: 1 if tiny else 2]:
        bound = HALF_UNITS * float(ml_dtypes.finfo(dtype).eps)
        policy = f"mixed_{dtype}"
        _compare(found, "dense", tiny, dropout, policy, bound, None)


def cpu_device():
    """The device of JAX on which plain Keras trains, to compare with."""
    return jax.local_devices(backend="cpu")[-1]


def _same_random_bits(found):
    """Whether dropout drops the same on both."""

    def draw():
        return np.asarray(jax.random.bits(jax.random.key(7), (1000,)))

    here = draw()
    with jax.default_device(cpu_device()):
        same = bool((here == draw()).all())
    found.show("CPU and GPU draw the same random numbers", same)
    return same


def _compare(found, name, tiny, dropout, policy, one_step, all_steps):
    make = functools.partial(
        _with_policy, policy, models.MODELS[name], tiny=tiny, dropout=dropout
    )
    batches = list(models.batches(make(), tiny))
    make_on_cpu = make
    if name == "lstm":
        # Keras takes cuDNN where there is a GPU, whichever device trains.
        make_on_cpu = functools.partial(make, cudnn=False)
    with jax.default_device(cpu_device()):
        on_cpu = run_of_new(make_on_cpu, batches, 0)
        on_cpu.train()
    places = {d for v in on_cpu.model.variables for d in v.value.devices()}
    if places != {cpu_device()}:
        raise RuntimeError(f"plain Keras trained on {places}, not on the CPU")
    for count in _counts(tiny):
        what = f"{name}, {policy}, {count} GPU{'s' * (count > 1)} and CPU"
        run = run_of_new(
            make,
            batches,
            0,
            lambda model, n=count: parallel.data_parallel(model, n),
        )
        largest = max(
            largest_difference(
                on_cpu.after(i),
                run.steps_from(on_cpu.state_before(i), batches[i : i + 1]),
            )
            for i in range(len(batches))
        )
        found.at_most(f"{what}: one step from one state", largest, one_step)
        if all_steps is not None:
            reached = run.steps_from(on_cpu.states[0], batches)
            difference = largest_difference(
                on_cpu.after(len(batches) - 1), reached
            )
            steps = f"{what}: {len(batches)} steps"
            found.at_most(steps, difference, all_steps)


def _with_policy(policy, make, **arguments):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return make(**arguments)
    finally:
        keras.config.set_dtype_policy(before)


def _counts(tiny):
    return parallel.counts()[-1:] if tiny else parallel.counts()


def largest_difference(expected, actual):
    """Relative to the largest entry of each tensor."""
    return max(_state.differences(expected, actual).values())


def check_one_device(found, tiny):
    """All GPUs against plain Keras on one, at the bounds of the library."""
    jax.config.update("jax_default_matmul_precision", "highest")
    for name in LIKE_ONE_DEVICE[: 1 if tiny else 2]:
        _like_one_device(found, name, tiny, "float32")


def check_mixed_precision(found, tiny):
    """Trains, and as on one device by the yardstick of that precision."""
    for dtype in HALF:
        policy = f"mixed_{dtype}"
        # Of the smallest, one of each is enough.
        if not tiny or dtype == HALF[1]:
            _loss_falls(found, tiny, policy)
        if not tiny or dtype == HALF[0]:
            _like_one_device(found, "dense", tiny, policy)


def _like_one_device(found, name, tiny, policy):
    make = functools.partial(
        _with_policy, policy, models.MODELS[name], tiny=tiny
    )
    for count in _counts(tiny):
        what = f"{name}, {policy}, {count} GPU{'s' * (count > 1)} as 1"
        bound = f"{ONE_LIBRARY_STEP:g} a step, or {YARDSTICKS} yardsticks"
        try:
            (report,) = kp.testing.assert_trains_like_one_device(
                make,
                lambda: models.batches(make(), tiny),
                devices=[count],
                steps=TINY_STEPS if tiny else STEPS,
                parallelize=parallel.data_parallel,
            )
        except AssertionError as error:
            found.judge(what, error, bound, False)
        else:
            shown = (
                f"{report.one_step:.1e} in a step, {report.trajectory:.1e} in "
                f"{report.steps} (yardstick {report.yardstick:.1e})"
            )
            found.judge(what, shown, bound, True)


def _loss_falls(found, tiny, policy):
    model = _with_policy(policy, models.dense, tiny=tiny)
    count = len(parallel.gpus())
    run = parallel.data_parallel(model, count)
    x, y = next(models.batches(model, tiny))
    losses = run.fit(x, y, batch_size=len(x), epochs=12, verbose=0)
    losses = losses.history["loss"]
    found.judge(
        f"dense, {policy}, {count} GPU{'s' * (count > 1)}: loss",
        f"{losses[0]:.3f}, then {losses[-1]:.3f}",
        "falls, finite",
        all(map(math.isfinite, losses)) and losses[-1] < losses[0],
    )
    scales = type(run.optimizer).__name__
    expected = "LossScaleOptimizer" if "float16" == policy[6:] else "SGD"
    found.judge(f"{policy}: optimizer", scales, expected, scales == expected)
