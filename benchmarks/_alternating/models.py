"""Pairs of models that share a backbone, and their data."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
from keras import layers

REGIONS = 8


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two compiled models, and the model of all parts."""

    rpn: keras.Model
    detector: keras.Model
    model: keras.Model


@dataclasses.dataclass(frozen=True)
class Case:
    """What is trained.

    Args:
        name: The name in tables.
        backbone: Makes the features of an image.
        size: Height and width of an image, in pixels.
        batch: Rows of a batch.
    """

    name: str
    backbone: Callable
    size: int
    batch: int

    def make(self, parallelize=lambda model: model) -> Pair:
        """Makes a pair, each model of it by `parallelize`."""
        keras.utils.set_random_seed(0)
        image = keras.Input((self.size, self.size, 3))
        regions = keras.Input((4 * REGIONS,))
        features = self.backbone(image)
        boxes = layers.Dense(4 * REGIONS)(features)
        x = layers.concatenate([features, regions])
        classes = layers.Dense(10, "softmax")(layers.Dense(64, "relu")(x))
        rpn = parallelize(keras.Model(image, boxes))
        detector = parallelize(keras.Model([image, regions], classes))
        rpn.compile(keras.optimizers.Adam(1e-3), "mse")
        detector.compile(
            keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy"
        )
        return Pair(
            rpn, detector, keras.Model([image, regions], [boxes, classes])
        )

    def data(self, steps):
        """Images and boxes of `steps` batches."""
        rng = np.random.default_rng(0)
        rows = steps * self.batch
        images = rng.random((rows, self.size, self.size, 3), "float32")
        return images, rng.random((rows, 4 * REGIONS), "float32")


def _dense(image):
    x = layers.Flatten()(image)
    for _ in range(4):
        x = layers.Dense(32, "relu")(x)
    return x


def _convolutional(image):
    x = image
    for width in (16, 32, 64):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.MaxPooling2D()(x)
    return layers.GlobalAveragePooling2D()(x)


CASES = [
    Case("small dense (host-bound)", _dense, size=4, batch=32),
    Case("CNN with BatchNormalization", _convolutional, size=48, batch=32),
]


def propose(batch, predictions):
    """The detector's batch, of that of the data and the RPN's boxes."""
    images, _ = batch
    found = predictions["rpn"]
    return (images, found), (10 * found[:, 0]).astype("int32") % 10
