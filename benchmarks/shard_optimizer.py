"""What `shard_optimizer=True` saves and costs.

    python benchmarks/shard_optimizer.py [--devices 2 4] [--units 1024]

Prints Markdown rows. For each optimizer and number of devices one model keeps
its slots whole and one in parts; they train in turn, so that whatever else the
machine does meets both. See benchmarks/README.md for the rules.
"""

import argparse
import os
import platform
import statistics
import time
from importlib.metadata import version

import keras_parallel as kp
import keras
import jax
import numpy as np

OPTIMIZERS = {
    "SGD, momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(1e-3),
    "Adam, amsgrad": lambda: keras.optimizers.Adam(1e-3, amsgrad=True),
}


def make_model(units, optimizer):
    model = keras.Sequential(
        [
            keras.Input((units,)),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(8),
        ]
    )
    model.compile(OPTIMIZERS[optimizer](), "mse")
    return model


class Memory(keras.callbacks.Callback):
    """Reads what the slots take on a device while a step has just ended."""

    def on_train_batch_end(self, batch, logs=None):
        device = jax.local_devices()[0]
        self.slots = sum(
            shard.data.nbytes
            for variable in self.model.optimizer.variables
            for shard in variable.value.addressable_shards
            if shard.device == device
        )
        # What XLA's allocator knows; there is none on CPUs.
        statistic = (device.memory_stats() or {}).get("peak_bytes_in_use")
        self.peak = "unknown" if statistic is None else megabytes(statistic)


def megabytes(size):
    return f"{size / 1e6:.1f}"


def seconds(model, x, y, steps):
    start = time.perf_counter()
    for _ in range(steps):
        model.train_on_batch(x, y)
    jax.block_until_ready([v.value for v in model.trainable_variables])
    return (time.perf_counter() - start) / steps


def measure(devices, optimizer, options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.rows, options.units)).astype("float32")
    y = rng.normal(size=(options.rows, 8)).astype("float32")
    parallel, memory = {}, {}
    for shard in (True, False):  # The peak never falls again.
        model = make_model(options.units, optimizer)
        parallel[shard] = kp.data_parallel(
            model, devices, shard_optimizer=shard
        )
        memory[shard] = Memory()
        parallel[shard].fit(
            x, y, batch_size=options.rows, verbose=0, callbacks=[memory[shard]]
        )
        seconds(parallel[shard], x, y, 1)
    times, ratios = {True: [], False: []}, []
    for number in range(options.rounds):
        order = (True, False) if number % 2 else (False, True)
        for shard in order:
            times[shard].append(seconds(parallel[shard], x, y, options.steps))
        ratios.append(times[True][-1] / times[False][-1])
    print(
        f"| {optimizer} | {devices} "
        + "".join(f"| {megabytes(memory[s].slots)} " for s in (False, True))
        + "".join(f"| {memory[s].peak} " for s in (False, True))
        + "".join(
            f"| {1e3 * statistics.median(times[s]):.2f} " for s in (False, True)
        )
        + f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
        f"{max(ratios):.2f}) |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--units", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    kp.use_virtual_devices(max(options.devices))
    names = kp.list_devices()
    print(
        f"{jax.local_devices()[0].device_kind}, devices {names}, "
        f"{os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}, keras {version('keras')}, jax "
        f"{version('jax')}, load {os.getloadavg()[0]:.1f}; 2 layers of "
        f"{options.units} units, batches of {options.rows} rows, "
        f"{options.rounds} rounds in turn of {options.steps} steps; medians, "
        "and for the ratio least to most. Peak: of the process so far, the "
        "model in parts first\n"
    )
    print(
        "| optimizer | devices | slots whole, MB on a device | in parts "
        "| peak whole, MB | in parts | step whole, ms | in parts "
        "| in parts / whole |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for optimizer in OPTIMIZERS:
        for devices in options.devices:
            measure(devices, optimizer, options)


if __name__ == "__main__":
    main()
