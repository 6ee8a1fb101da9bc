"""The models that are compared, each with its batches.

No bias stands before a normalization, and none in attention: its gradient is
0 but for rounding, and has no digits to agree in. No maximum is taken and no
ReLU: at a tie two devices may go two ways. SGD, since Adam divides by what
may be such a 0.
"""

import keras
import numpy as np
from keras import layers

ROWS, TINY_ROWS = 64, 16


def _compiled(inputs, outputs):
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def conv(tiny=False, dropout=0.2):
    size, filters = (8, 4) if tiny else (32, 32)
    inputs = x = keras.Input((size, size, 3))
    for _ in range(1 if tiny else 2):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("silu")(x)
    x = layers.Dropout(dropout)(layers.GlobalAveragePooling2D()(x))
    return _compiled(inputs, layers.Dense(10)(x))


def dense(tiny=False, dropout=0.2):
    width = 16 if tiny else 512
    inputs = keras.Input((8 if tiny else 256,))
    x = layers.Dense(width, activation="tanh")(inputs)
    x = layers.Dropout(dropout)(x)
    x = layers.Dense(width, activation="tanh")(x)
    return _compiled(inputs, layers.Dense(10)(x))


def lstm(tiny=False, dropout=0.2, cudnn="auto"):
    inputs = keras.Input((6 if tiny else 48, 8 if tiny else 32))
    x = layers.LSTM(4 if tiny else 64, use_cudnn=cudnn)(inputs)
    return _compiled(inputs, layers.Dense(10)(layers.Dropout(dropout)(x)))


def attention(tiny=False, dropout=0.2):
    length, width = (6, 8) if tiny else (32, 64)
    inputs = x = keras.Input((length, width))
    for _ in range(1 if tiny else 2):
        attended = layers.MultiHeadAttention(2, width // 2, use_bias=False)
        x = layers.LayerNormalization()(x + attended(x, x))
        inner = layers.Dense(2 * width, activation="gelu")(x)
        inner = layers.Dropout(dropout)(layers.Dense(width)(inner))
        x = layers.LayerNormalization()(x + inner)
    x = layers.GlobalAveragePooling1D()(x)
    return _compiled(inputs, layers.Dense(10)(x))


MODELS = {"conv": conv, "dense": dense, "lstm": lstm, "attention": attention}


def batches(model, tiny, uneven=True):
    """Three batches, the last one with a number of rows that is odd."""
    rng = np.random.default_rng(0)
    rows = TINY_ROWS if tiny else ROWS
    shape = model.input_shape[1:]
    # A class is a direction, so that a loss falls.
    toward = rng.normal(size=(10, *shape))
    for count in (rows, rows, rows - 3 if uneven else rows):
        y = rng.integers(0, 10, count)
        x = rng.normal(size=(count, *shape)) + toward[y]
        yield x.astype("float32"), y
