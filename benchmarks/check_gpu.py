"""Compares training on all GPUs of this host with training on one.

Convolutions and matrix products run in full float32: GPUs round them to
TensorFloat-32 by default, in another way for each shape.
"""

import jax
import keras
import numpy as np

import keras_parallel as kp

jax.config.update("jax_default_matmul_precision", "highest")


def make_model():
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(32, 3, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.2),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def make_batches():
    rng = np.random.default_rng(0)
    for rows in (64, 64, 13):
        x = rng.normal(size=(rows, 32, 32, 3)).astype("float32")
        yield x, rng.integers(0, 10, rows)


names = kp.list_devices("gpu")
print(f"GPUs: {names}")
for count in range(1, len(names) + 1):
    kp.testing.assert_trains_like_one_device(
        make_model, make_batches, devices=count
    )
