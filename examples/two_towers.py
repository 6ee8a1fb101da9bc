"""Two towers with one LSTM, each on a device of its own, joined on the CPU.

    python examples/two_towers.py                # with 2 GPUs
    keras-parallel run --virtual-devices 2 examples/two_towers.py

A pair is two sequences of 140 steps with 256 features. The rule: each sequence
leans to one side, its first 16 features by an amount of its own, all others are
noise; the pair is positive if both leans together are. So each tower has to
learn to read one number from its sequence, with the weights that both share.

Prints the plan before it trains, the accuracy on pairs that it has not seen,
which is at least 0.95, and what each device did in a step.
"""

import argparse
import sys

import keras_parallel as kp

import keras
import numpy as np

STEPS, FEATURES, LEANING = 140, 256, 16
BATCH = 128


def pairs(count, seed):
    """Two arrays of sequences, and whether each pair is positive."""
    rng = np.random.default_rng(seed)
    leans = rng.normal(size=(2, count))
    # A pair that leans to no side has no right answer.
    leans += np.sign(leans.sum(0)) * 0.25
    sequences = rng.normal(size=(2, count, STEPS, FEATURES)).astype("float32")
    sequences[..., :LEANING] += leans[..., None, None] / 2
    labels = (leans.sum(0) > 0).astype("float32")[:, None]
    return [sequences[0], sequences[1]], labels


def make_model():
    input_a = keras.Input((STEPS, FEATURES))
    input_b = keras.Input((STEPS, FEATURES))
    shared_lstm = keras.layers.LSTM(64)
    with kp.device_scope("/gpu:0"):
        encoded_a = shared_lstm(input_a)
    with kp.device_scope("/gpu:1"):
        encoded_b = shared_lstm(input_b)
    with kp.device_scope("/cpu:0"):
        merged = keras.layers.concatenate([encoded_a, encoded_b], axis=-1)
        outputs = keras.layers.Dense(1, activation="sigmoid", name="same")(
            merged
        )
    model = keras.Model([input_a, input_b], outputs, name="two_towers")
    return kp.device_parallel(model)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", help="a PNG of the trace")
    options = parser.parse_args()

    keras.utils.set_random_seed(options.seed)
    model = make_model()
    model.compile(
        keras.optimizers.Adam(3e-3),
        "binary_crossentropy",
        metrics=["accuracy"],
    )
    print(kp.plan(model, batch_size=BATCH))

    x, y = pairs(options.pairs, options.seed)
    model.fit(x, y, batch_size=BATCH, epochs=options.epochs, verbose=2)
    accuracy = model.evaluate(
        *pairs(512, options.seed + 1), batch_size=BATCH, verbose=0
    )[1]
    print(f"accuracy on pairs that were not trained on: {accuracy:.3f}")

    few = [a[: 2 * BATCH] for a in x], y[: 2 * BATCH]
    with kp.trace("two_towers.json") as trace:
        model.fit(*few, batch_size=BATCH, verbose=0)
    print(trace)
    if options.plot:
        trace.plot(options.plot)
    if accuracy < 0.95:
        sys.exit("the accuracy is less than 0.95")


if __name__ == "__main__":
    main()
