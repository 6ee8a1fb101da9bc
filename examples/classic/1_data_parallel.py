"""The classic data-parallel script, on Keras 3.

    python examples/classic/1_data_parallel.py            # with 8 GPUs
    keras-parallel run --virtual-devices 8 examples/classic/1_data_parallel.py

A comment says why, where a line had to differ from the script of 2018.
"""

# `from keras.utils import multi_gpu_model` before: Keras removed it in 2020.
from keras_parallel import multi_gpu_model

import keras
import numpy as np

NUM_CLASSES = 4

# Images in which one quadrant is brighter: the class is that quadrant.
rng = np.random.default_rng(0)
labels = rng.integers(0, NUM_CLASSES, size=1024)
x = rng.normal(size=(1024, 16, 16, 1)).astype("float32")
for image, label in zip(x, labels):
    top, left = 8 * (label // 2), 8 * (label % 2)
    image[top : top + 8, left : left + 8] += 1
y = keras.utils.to_categorical(labels, NUM_CLASSES)

# Stood under `with tf.device("/cpu:0"):` before. No template is kept on the
# CPU any more: each device holds the weights.
model = keras.Sequential(
    [
        keras.Input((16, 16, 1)),
        keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(NUM_CLASSES, activation="softmax"),
    ]
)

parallel_model = multi_gpu_model(model, gpus=8)        # needs 8 GPUs
parallel_model.compile(loss="categorical_crossentropy", optimizer="rmsprop")
parallel_model.fit(x, y, epochs=20, batch_size=256)    # each GPU processes 32 samples of every batch

accuracy = np.mean(model.predict(x, verbose=0).argmax(-1) == labels)
print(f"accuracy of the model that was passed in: {accuracy:.3f}")
