"""The classic script for several outputs with a loss each, on Keras 3.

    python examples/classic/3_named_outputs.py            # with 8 GPUs
    keras-parallel run --virtual-devices 8 examples/classic/3_named_outputs.py

A comment says why, where a line had to differ from the script of 2018. The
names of the outputs did not: the old wrapper made `concatenate_1` and
`concatenate_2` of them, and people compiled again with those.
"""

# `from keras.utils import multi_gpu_model` before: Keras removed it in 2020.
from keras_parallel import multi_gpu_model

import keras
import numpy as np
from keras import ops  # `from keras import backend as K` before: gone in Keras 3
from keras.optimizers import RMSprop


def jaccard_distance_loss(y_true, y_pred, smooth=100):
    # `K.sum` and `K.abs` before: now `ops.sum` and `ops.abs`.
    intersection = ops.sum(ops.abs(y_true * y_pred), axis=-1)
    total = ops.sum(ops.abs(y_true) + ops.abs(y_pred), axis=-1)
    jaccard = (intersection + smooth) / (total - intersection + smooth)
    return (1 - jaccard) * smooth


# Pictures of noise, some with a bright square: where is it, and is there one?
rng = np.random.default_rng(0)
x = rng.normal(size=(512, 12, 12, 1)).astype("float32")
mask = np.zeros((512, 12, 12), "float32")
for i in np.flatnonzero(rng.random(512) < 0.5):
    top, left = rng.integers(0, 8, size=2)
    mask[i, top : top + 5, left : left + 5] = 1
x += 2 * mask[..., None]
targets = {
    "main_output": mask.reshape(512, 144),
    "aux_output": mask.any(axis=(1, 2))[:, None].astype("float32"),
}

inputs = keras.Input((12, 12, 1))
features = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
where = keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid")(features)
main_output = keras.layers.Flatten(name="main_output")(where)
pooled = keras.layers.GlobalAveragePooling2D()(features)
aux_output = keras.layers.Dense(1, activation="sigmoid", name="aux_output")(pooled)

model = multi_gpu_model(keras.Model(inputs, [main_output, aux_output]), gpus=8)
# `lr=` before: it is `learning_rate=` in Keras 3.
model.compile(optimizer=RMSprop(learning_rate=0.045, rho=0.9, epsilon=1.0),
              loss={"main_output": jaccard_distance_loss, "aux_output": "binary_crossentropy"},
              metrics={"main_output": jaccard_distance_loss, "aux_output": "acc"},
              loss_weights={"main_output": 1.0, "aux_output": 0.5})
history = model.fit(x, targets, epochs=3, batch_size=64)
print("outputs:", model.output_names)
print("logged:", sorted(history.history))
