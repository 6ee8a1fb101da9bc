"""The models in Keras, written once for all peers that use it."""

import keras
from keras import layers

LEARNING_RATE = 1e-3
BLOCKS, WIDTH, HEADS, INNER = 12, 128, 4, 512


def _mlp(workload, x):
    x = layers.Dense(1024, activation="relu")(x)
    x = layers.Dense(1024, activation="relu")(x)
    return layers.Dense(workload.outputs)(x)


def _cnn(workload, x):
    for filters, pool in ((32, False), (64, True), (64, False)):
        x = layers.Conv2D(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
        if pool:
            x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    return layers.Dense(workload.outputs)(x)


def _lstm(workload, x):
    return layers.Dense(workload.outputs)(layers.LSTM(64)(x))


def _host_bound(workload, x):
    for _ in range(3):
        x = layers.Dense(32, activation="relu")(x)
    return layers.Dense(workload.outputs)(x)


def _transformer(workload, x):
    for _ in range(BLOCKS):
        attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        x = layers.LayerNormalization()(x + attention(x, x))
        inner = layers.Dense(INNER, activation="relu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(inner))
    x = layers.GlobalAveragePooling1D()(x)
    return layers.Dense(workload.outputs)(x)


def _stack(workload, x):
    for _ in range(workload.layers):
        x = layers.Dense(32)(x)
    return x


_BODIES = {
    "mlp": _mlp,
    "cnn": _cnn,
    "lstm": _lstm,
    "host-bound": _host_bound,
    "transformer": _transformer,
    "stack": _stack,
}


def make_model(workload):
    """The model, not compiled."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input(workload.shape)
    return keras.Model(inputs, _BODIES[workload.name](workload, inputs))


def compile_model(model, workload):
    """With plain Adam, and without metrics beside the loss.

    A stack of layers is for counting variables: SGD has no further ones.
    """
    optimizer = "SGD" if workload.name == "stack" else "Adam"
    model.compile(
        getattr(keras.optimizers, optimizer)(LEARNING_RATE),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        if workload.classes
        else "mse",
    )
