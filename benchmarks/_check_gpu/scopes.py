"""Scopes over GPUs and the CPU in one model, against plain Keras on the CPU."""

import warnings

from _check_gpu import parallel
from _check_gpu.equality import ONE_STEP
from _check_gpu.equality import cpu_device
from _check_gpu.equality import largest_difference

import keras_parallel as kp

import jax
import keras
import numpy as np
from keras import layers
from keras_parallel.testing._run import run_of_new


def check(found, tiny):
    """Two towers with one layer on the GPUs, joined on the CPU."""
    # GPUs multiply in TensorFloat-32 otherwise, with 3 digits.
    jax.config.update("jax_default_matmul_precision", "highest")
    # Compiled before it is made parallel, so that both are made alike.
    warnings.filterwarnings("ignore", "The model .* has calls in device scopes")
    width = 8 if tiny else 512
    batches = list(_batches(width, 2 if tiny else 3))
    with jax.default_device(cpu_device()):
        on_cpu = run_of_new(lambda: _make(width), batches, 0)
        on_cpu.train()
    run = run_of_new(lambda: _make(width), batches, 0, kp.device_parallel)
    largest = max(
        largest_difference(
            on_cpu.after(i),
            run.steps_from(on_cpu.state_before(i), batches[i : i + 1]),
        )
        for i in range(len(batches))
    )
    found.at_most("GPUs, cpu:0 and CPU: one step", largest, ONE_STEP)
    for name, expected in (
        ("tower", parallel.jax_devices()[0]),
        ("head", cpu_device()),
    ):
        variables = run.model.get_layer(name).trainable_variables
        places = {d for v in variables for d in v.value.devices()}
        found.judge(
            f"weights of the {name}",
            ", ".join(map(str, places)),
            str(expected),
            places == {expected},
        )


def _make(width):
    first, *_, last = [*parallel.gpus(), *parallel.gpus()]
    inputs = [keras.Input((width,)), keras.Input((width,))]
    tower = layers.Dense(width, activation="tanh", name="tower")
    encoded = []
    for x, device in zip(inputs, (first, last)):
        with kp.device_scope(device):
            encoded.append(tower(x))
    with kp.device_scope("cpu:0"):
        x = layers.concatenate(encoded)
        outputs = layers.Dense(1, name="head")(x)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


def _batches(width, count):
    rng = np.random.default_rng(0)
    for rows in [16] * (count - 1) + [13]:
        a, b = rng.normal(size=(2, rows, width)).astype("float32")
        yield [a, b], rng.normal(size=(rows, 1)).astype("float32")
