"""Trains a small CNN on 1,797 scans of handwritten digits, on 8 devices.

    scripts/demo
    keras-parallel run --virtual-devices 8 examples/digits.py

The scans come with scikit-learn (UCI, "Optical Recognition of Handwritten
Digits"). The same model is trained on one device as well, and compared.
"""

import argparse
import sys

import keras_parallel as kp

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def make_model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(2),
            keras.layers.Conv2D(64, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ],
        name="digits",
    )
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--file", default="digits.keras")
    options = parser.parse_args()

    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        digits.images[..., None].astype("float32") / 16,
        digits.target,
        test_size=0.2,
        random_state=0,
        stratify=digits.target,
    )

    def train(model, verbose):
        keras.utils.set_random_seed(2)
        model.fit(
            x_train,
            y_train,
            batch_size=64,
            epochs=options.epochs,
            verbose=verbose,
        )

    model = make_model()
    parallel = kp.multi_gpu_model(model, gpus=options.gpus)
    train(parallel, verbose=2)
    _, accuracy = parallel.evaluate(x_test, y_test, verbose=0)

    print("training the same model on one device, to compare ...")
    alone = make_model()
    train(alone, verbose=0)
    differences = [
        np.abs(ours - theirs).max()
        for ours, theirs in zip(model.get_weights(), alone.get_weights())
    ]
    predictions = np.abs(
        parallel.predict(x_test, verbose=0) - alone.predict(x_test, verbose=0)
    )

    parallel.save(options.file)
    print(f"test accuracy on {len(x_test)} scans: {accuracy:.4f}")
    print(
        "largest difference to one device: "
        f"{max(differences):.1e} in a weight, "
        f"{predictions.max():.1e} in a predicted probability"
    )
    print(f"saved to {options.file}, a file of plain Keras")
    return 0 if accuracy >= 0.97 else 1


if __name__ == "__main__":
    sys.exit(main())
