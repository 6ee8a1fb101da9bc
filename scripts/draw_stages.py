"""Draws the pictures in docs/how-to/device-parallel.md.

python scripts/draw_stages.py
"""

import pathlib

import keras_parallel as kp

kp.use_virtual_devices(2)

import keras  # noqa: E402  the devices come first
import numpy as np  # noqa: E402
from keras import layers  # noqa: E402

ROWS = 128

input_a = keras.Input((140, 256), name="input_a")
input_b = keras.Input((140, 256), name="input_b")
shared_lstm = layers.LSTM(64, name="shared_lstm")
with kp.device_scope("/gpu:0"):
    encoded_a = shared_lstm(input_a)
with kp.device_scope("/gpu:1"):
    encoded_b = shared_lstm(input_b)
with kp.device_scope("/cpu:0"):
    merged = layers.concatenate([encoded_a, encoded_b], axis=-1)
same = layers.Dense(1, activation="sigmoid", name="same")(merged)
model = kp.device_parallel(
    keras.Model([input_a, input_b], same, name="two_towers")
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])

images = pathlib.Path(__file__).parents[1] / "docs" / "images"
plan = kp.plan(model, batch_size=ROWS)
plan.plot(images / "stages.png")
print(plan)

rng = np.random.default_rng(0)
a, b = rng.normal(size=(2, 4 * ROWS, 140, 256)).astype("float32")
labels = rng.integers(0, 2, (4 * ROWS, 1))
model.fit([a, b], labels, batch_size=ROWS, verbose=0)  # Compiles.
with kp.trace("stages.json") as trace:
    model.fit([a, b], labels, batch_size=ROWS, verbose=0)
pathlib.Path("stages.json").unlink()
trace.plot(images / "stages_trace.png")
print(trace)
