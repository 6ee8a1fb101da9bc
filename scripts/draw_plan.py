"""Draws the picture in docs/how-to/see-the-plan.md.

python scripts/draw_plan.py
"""

import pathlib

import keras_parallel as kp

kp.use_virtual_devices(4)

import keras  # noqa: E402  the devices come first

model = keras.applications.ResNet50(
    weights=None, input_shape=(64, 64, 3), classes=10
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
plan = kp.plan(kp.data_parallel(model), batch_size=256)
docs = pathlib.Path(__file__).parents[1] / "docs"
plan.plot(docs / "images" / "plan.png")
print(plan)
