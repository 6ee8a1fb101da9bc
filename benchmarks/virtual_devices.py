"""Do virtual devices hang? Trains in many processes, one after the other.

    python benchmarks/virtual_devices.py [--processes 20] [--devices 8]

Each process trains `Dense(1024)` twice on batches of 256 rows for 3 epochs.
With fewer threads than devices XLA's CPU client can wait for ever in an
all-reduce; it aborts after 40 seconds then.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version

LIMIT_SECONDS = 120

TRAIN = """
import keras_parallel as kp
kp.use_virtual_devices({devices})
import keras, numpy as np
model = keras.Sequential([
    keras.Input((784,)),
    keras.layers.Dense(1024, activation="relu"),
    keras.layers.Dense(1024, activation="relu"),
    keras.layers.Dense(10),
])
parallel = kp.data_parallel(model)
parallel.compile("adam", "mse")
rng = np.random.default_rng(0)
x, y = rng.random((4096, 784), "float32"), rng.random((4096, 10), "float32")
parallel.fit(x, y, batch_size=256, epochs=3, verbose=0)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--devices", type=int, default=8)
    options = parser.parse_args()
    print(
        f"{options.processes} processes, {options.devices} virtual devices, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, "
        f"keras {version('keras')}, jax {version('jax')}\n"
    )
    print("| process | result | seconds |\n|---|---|---|")
    failed = 0
    for number in range(1, options.processes + 1):
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, "-c", TRAIN.format(devices=options.devices)],
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
                check=False,
            )
            result = "ok" if done.returncode == 0 else done.stderr[-300:]
        except subprocess.TimeoutExpired:
            result = "hangs"
        failed += result != "ok"
        seconds = time.perf_counter() - start
        print(f"| {number} | {result} | {seconds:.1f} |", flush=True)
    print(f"\n{failed} of {options.processes} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
