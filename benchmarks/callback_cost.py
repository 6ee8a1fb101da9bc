"""What it costs per step that callbacks see current weights.

Prints Markdown rows. A parallel model writes the result of each step to its
variables and reads them before the next one, so that a callback may look at
them and change them in any hook. Plain Keras on JAX leaves them stale within an
epoch. See benchmarks/README.md for the rules.

Usage: python benchmarks/callback_cost.py
"""

import platform
import statistics
import time

import keras_parallel as kp
import keras
import numpy as np

ROWS, BATCH, ROUNDS = 32 * 200, 32, 7


class Looks(keras.callbacks.Callback):
    """Reads all weights after each step."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.get_weights()


class Evaluates(keras.callbacks.Callback):
    """Evaluates one batch after each step."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.test_on_batch(X[:BATCH], Y[:BATCH])


X = np.zeros((ROWS, 8), "float32")
Y = np.zeros((ROWS, 1), "float32")


def make_model(num_layers):
    model = keras.Sequential(
        [keras.Input((8,))]
        + [keras.layers.Dense(8) for _ in range(num_layers - 1)]
        + [keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


def us_per_step(model, callbacks):
    start = time.perf_counter()
    model.fit(
        X, Y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks
    )
    return (time.perf_counter() - start) / (ROWS // BATCH) * 1e6


def keeping_variables_current(model):
    """Microseconds per step of writing all variables and reading them."""
    (state,) = (
        s for k, s in model._keras_parallel.states.items() if k == "train"
    )
    groups = state.read()
    times = []
    for _ in range(ROUNDS * 100):
        start = time.perf_counter()
        state.write(groups)
        state.read()
        times.append((time.perf_counter() - start) * 1e6)
    state.bring_home()
    return statistics.median(times)


def shown(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f} to " + (
        f"{max(values):.0f})"
    )


def main():
    kp.use_virtual_devices(2)
    print(
        f"{platform.processor() or platform.machine()}, Keras "
        f"{keras.__version__}, backend {keras.config.backend()}, 2 virtual "
        f"devices, batch {BATCH}; median (least to most) of {ROUNDS} epochs\n"
    )
    print(
        "| variables | keeping them current, us | fit, us per step "
        "| with a callback that reads all weights | that evaluates a batch |"
    )
    print("|---|---|---|---|---|")
    for num_layers in (4, 20, 100):
        model = kp.data_parallel(make_model(num_layers), 2)
        callbacks = {"none": [], "looks": [Looks()], "evaluates": [Evaluates()]}
        times = {name: [] for name in callbacks}
        for name in callbacks:
            us_per_step(model, callbacks[name])  # Compiles.
        for _ in range(ROUNDS):
            for name in callbacks:
                times[name].append(us_per_step(model, callbacks[name]))
        count = len(model.variables) + len(model.optimizer.variables)
        print(
            f"| {count} | {keeping_variables_current(model):.1f} | "
            + " | ".join(map(shown, times.values()))
            + " |"
        )


if __name__ == "__main__":
    main()
