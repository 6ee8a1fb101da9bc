"""The parallel models of all parts, and a fault to plant in them."""

import os

from _check_gpu.parts import FAULT

import keras_parallel as kp

import jax
import keras


def gpus():
    """Names of the GPUs, virtual ones included."""
    return kp.list_devices("gpu")


def jax_devices():
    """The devices of JAX behind `gpus()`."""
    return jax.local_devices()[: len(gpus())]


def is_virtual():
    return jax.local_devices()[0].platform == "cpu"


def counts():
    """Numbers of devices to try: one, and all if there are more."""
    return sorted({1, len(gpus())})


def data_parallel(model, devices):
    """`kp.data_parallel`, with the fault if one is asked for."""
    parallel = kp.data_parallel(model, devices)
    if not os.environ.get(FAULT):
        return parallel
    right = parallel.compute_loss

    def larger(*args, **kwargs):
        loss = right(*args, **kwargs)
        # The loss is right, its gradients are a fifth too large.
        return loss + 0.2 * (loss - keras.ops.stop_gradient(loss))

    parallel.compute_loss = larger
    return parallel
