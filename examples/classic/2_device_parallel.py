"""The classic device-parallel script, on Keras 3.

    python examples/classic/2_device_parallel.py          # with 2 GPUs
    keras-parallel run --virtual-devices 2 examples/classic/2_device_parallel.py

A comment says why, where a line had to differ from the script of 2018.
"""

# `tf.device` before: a scope around a call is ignored by Keras 3 as it is.
from keras_parallel import device_parallel, device_scope

import keras
import numpy as np

# Pairs of sequences: in a half of them the second one is a copy of the first.
rng = np.random.default_rng(0)
a = rng.normal(size=(512, 140, 256)).astype("float32")
b = rng.normal(size=(512, 140, 256)).astype("float32")
labels = rng.integers(0, 2, size=(512, 1))
b = np.where(labels[:, None] == 1, a, b)

input_a = keras.Input(shape=(140, 256))
input_b = keras.Input(shape=(140, 256))
shared_lstm = keras.layers.LSTM(64)                     # one layer, one set of weights
with device_scope("/gpu:0"):
    encoded_a = shared_lstm(input_a)                    # first sequence on one GPU
with device_scope("/gpu:1"):
    encoded_b = shared_lstm(input_b)                    # second sequence on another, at the same time
with device_scope("/cpu:0"):
    merged = keras.layers.concatenate([encoded_a, encoded_b], axis=-1)   # joined on the CPU

same = keras.layers.Dense(1, activation="sigmoid", name="same")(merged)
# The model that obeys the scopes.
model = device_parallel(keras.Model([input_a, input_b], same))
model.compile(optimizer="rmsprop", loss="binary_crossentropy")
model.fit([a, b], labels, epochs=1, batch_size=128)
print("probability of a pair of equal ones:", float(model.predict([a[:1], a[:1]])[0, 0]))
