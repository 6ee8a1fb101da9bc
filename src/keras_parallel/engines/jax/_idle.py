"""Waits until devices have done what was asked of them, which they do later."""

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from keras_parallel.planning import Device

# How a profiler calls what is done here.
WAITING = "keras_parallel_wait"
PROGRAM = f"jit_{WAITING}"


def wait_until_idle(known: Mapping[Device, Any]) -> None:
    """Waits for all that this thread has asked of the devices.

    What another thread asked for is waited for where its result is held.

    Args:
        known: The devices, with those of JAX.
    """
    devices = tuple(known.values())
    programs = _programs(devices)
    jax.effects_barrier()
    for platform in {device.platform for device in devices}:
        for array in jax.live_arrays(platform):
            _wait_for(array)
    # Of results that nobody holds no array is left: programs that come after
    # them in the queues of the devices end later.
    with jax.profiler.TraceAnnotation(WAITING):
        for array in [run(argument) for run, argument in programs]:
            _wait_for(array)


def _wait_for(array):
    # What failed says so where it is read.
    with contextlib.suppress(RuntimeError):
        array.block_until_ready()


@functools.cache
def _programs(devices):
    """Programs that end after what was asked of devices before, with arguments.

    Devices of accelerators run one program after the other. Those of CPUs have
    two queues: of what runs on one, and of what runs on several.
    """
    groups = {}
    for device in devices:
        groups.setdefault(device.platform, []).append(device)
        if device.platform == "cpu":
            groups[device] = [device]
    return [_program(of_group) for of_group in groups.values()]


def _program(devices):
    def keras_parallel_wait(x):
        return x + 1

    mesh = jax.sharding.Mesh(np.array(devices), ("device",))
    rows = jax.sharding.NamedSharding(mesh, jax.P("device"))
    argument = jax.device_put(np.zeros(len(devices), "float32"), rows)
    return jax.jit(keras_parallel_wait).lower(argument).compile(), argument
