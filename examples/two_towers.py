"""Two towers with one LSTM, each on a device of its own, joined on the CPU.

    python examples/two_towers.py                # with 2 GPUs
    keras-parallel run --virtual-devices 2 examples/two_towers.py

A pair is two sequences of 140 steps with 256 features. The rule: each sequence
leans to one side, its first 16 features by an amount of its own, all others are
noise; the pair is positive if both leans together are. So each tower has to
learn to read one number from its sequence, with the weights that both share,
and the last layer, which takes a weighted sum of what both say, can add them up.

Prints the plan before it trains, and what each device did in a step. With the
seed 0, the accuracy on pairs that were drawn from another seed is at least
0.95. The same model is trained on one device as well, and compared.
"""

import argparse
import contextlib
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


def make_model(scope=kp.device_scope):
    input_a = keras.Input((STEPS, FEATURES))
    input_b = keras.Input((STEPS, FEATURES))
    shared_lstm = keras.layers.LSTM(64)
    with scope("/gpu:0"):
        encoded_a = shared_lstm(input_a)
    with scope("/gpu:1"):
        encoded_b = shared_lstm(input_b)
    with scope("/cpu:0"):
        merged = keras.layers.concatenate([encoded_a, encoded_b], axis=-1)
        outputs = keras.layers.Dense(1, activation="sigmoid", name="same")(
            merged
        )
    return keras.Model([input_a, input_b], outputs, name="two_towers")


def compiled(model):
    model.compile(
        keras.optimizers.Adam(3e-3),
        "binary_crossentropy",
        metrics=["accuracy"],
    )
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", help="a PNG of the trace")
    options = parser.parse_args()

    x, y = pairs(options.pairs, options.seed)
    others, labels = pairs(512, options.seed + 1)

    def train(model, verbose):
        keras.utils.set_random_seed(options.seed)
        model.fit(
            x, y, batch_size=BATCH, epochs=options.epochs, verbose=verbose
        )
        accuracy = model.evaluate(others, labels, batch_size=BATCH, verbose=0)[
            1
        ]
        return accuracy, model.predict(others, batch_size=BATCH, verbose=0)

    keras.utils.set_random_seed(options.seed)
    model = compiled(kp.device_parallel(make_model()))
    print(kp.plan(model, batch_size=BATCH))
    accuracy, predicted = train(model, verbose=2)
    print(f"accuracy on pairs that were not trained on: {accuracy:.3f}")

    print("training the same model on one device, to compare ...")
    keras.utils.set_random_seed(options.seed)
    alone = compiled(make_model(scope=contextlib.nullcontext))
    accuracy_alone, predicted_alone = train(alone, verbose=0)
    difference = np.abs(predicted - predicted_alone).max()
    print(
        f"accuracy of one device: {accuracy_alone:.3f}, largest difference "
        f"in a predicted probability: {difference:.1e}"
    )

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
