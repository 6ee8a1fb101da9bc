"""What is there, and which of it can be seen."""

import os
import subprocess
import sys

from _check_gpu import children

_LIMIT = 50


def check_devices(found, tiny):
    """What kp and JAX say of the devices, the versions, and the driver."""
    del tiny
    import keras_parallel as kp

    import jax
    import keras

    names = kp.list_devices("gpu")
    found.keep(gpus=len(names))
    found.show("devices", kp.list_devices())
    found.show(
        "versions",
        f"keras-parallel {kp.__version__}, keras {keras.__version__}, "
        f"jax {jax.__version__}, python {sys.version.split()[0]}",
    )
    if not names:
        return
    local = jax.local_devices()
    expected = len(local)
    if local[0].platform == "cpu":
        expected -= 1  # The last virtual device stands for the CPU.
    found.judge(
        "list_devices('gpu')",
        names,
        [f"gpu:{i}" for i in range(expected)],
        names == [f"gpu:{i}" for i in range(expected)],
    )
    for name, device in zip(names, local):
        stats = device.memory_stats() or {}
        memory = stats.get("bytes_limit")
        size = f"{memory / 2**30:.1f} GiB" if memory else "memory not told"
        found.show(name, f"{device.device_kind}, {size}")
    driver = _driver()
    if driver:
        found.show("nvidia-smi", driver)


def _driver():
    query = "--query-gpu=name,memory.total,driver_version"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(done.stdout.strip().splitlines())


def check_visible_devices(found, tiny, visible):
    """Devices count within `CUDA_VISIBLE_DEVICES`.

    Args:
        found: The findings.
        tiny: Whether the devices are virtual: then as many are made as would
            be visible.
        visible: What the variable has for each GPU.
    """
    first = visible[0]
    cases = [[], [first]]
    if len(visible) > 1:
        cases.append([visible[1], first])
    if tiny:
        del cases[1:-1]
    for case in cases:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(case)}
        if not case:
            # Who asks JAX for GPUs gets an error of JAX where there is none.
            environment.pop("JAX_PLATFORMS", None)
        if tiny:
            environment["JAX_PLATFORMS"] = "cpu"
            environment["KERAS_PARALLEL_VIRTUAL_DEVICES"] = str(len(case) or "")
        outcome = children.run(
            "devices-of", _LIMIT, tiny, environment=environment, top=False
        )
        _judge(found, case, outcome)


def _judge(found, case, outcome):
    setting = f"CUDA_VISIBLE_DEVICES={','.join(case)!r}"
    expected = [f"gpu:{i}" for i in range(len(case))]
    gpus = outcome.data.get("gpus", outcome.problem)
    found.judge(f"{setting}: GPUs", gpus, expected, gpus == expected)
    if case:
        trained = outcome.data.get("trained", outcome.problem)
        what = f"{setting}: gpus={len(case)} trains"
        found.judge(what, trained, "yes", trained == "yes")
        return
    errors = outcome.data.get("errors", {"it ended": outcome.problem})
    for asked, error in errors.items():
        found.judge(
            f"{setting}: {asked}",
            error,
            "DeviceError",
            error.startswith("DeviceError: ") and "Received:" in error,
        )


def devices_of(found, tiny):
    """In a process of its own: the GPUs, and what comes of asking for some."""
    del tiny
    import keras_parallel as kp

    import keras
    import numpy as np

    names = [str(name) for name in kp.list_devices("gpu")]
    found.keep(gpus=names)

    def make(gpus):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        parallel = kp.multi_gpu_model(model, gpus=gpus)
        parallel.compile("sgd", "mse")
        return parallel

    if names:
        x, y = np.ones((8, 3), "float32"), np.zeros((8, 2), "float32")
        make(len(names)).fit(x, y, verbose=0)
        found.keep(trained="yes")
        return
    errors = {}
    # One device of any kind is enough for `gpus=1`.
    for gpus in (2, [0]):
        try:
            make(gpus)
            errors[f"gpus={gpus}"] = "no error"
        except Exception as error:
            errors[f"gpus={gpus}"] = f"{type(error).__name__}: {error}"
    found.keep(errors=errors)
