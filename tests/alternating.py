"""Small models that share layers, to train in turn."""

import keras
import numpy as np
from keras import layers

import keras_parallel as kp
from keras_parallel.testing import _state


def adam(rate=1e-2):
    return keras.optimizers.Adam(rate)


def momentum():
    return keras.optimizers.SGD(1e-2, momentum=0.9)


class Parts:
    """A backbone with two heads, each head in a compiled model of its own.

    Args:
        parallelize: Makes a parallel model of each.
        seed: The random seed.
        optimizers: Makes the optimizers of the two.
    """

    def __init__(
        self,
        parallelize=lambda model: model,
        seed=0,
        optimizers=(adam, momentum),
    ):
        keras.utils.set_random_seed(seed)
        image, regions = keras.Input((6,), name="image"), keras.Input((4,))
        x = layers.Dense(8, "tanh", name="conv")(image)
        features = layers.BatchNormalization(name="norm")(x)
        self.backbone = keras.Model(image, features, name="backbone")
        found = layers.Dense(1, "sigmoid", name="objectness")(features)
        boxes = layers.Dense(4, name="boxes")(features)
        rpn = keras.Model(image, {"objectness": found, "boxes": boxes})
        x = layers.Dropout(0.2, name="drop")(features)
        x = layers.Concatenate(name="pooled")([x, regions])
        classes = layers.Dense(3, "softmax", name="classes")(x)
        detector = keras.Model([image, regions], classes)
        self.model = keras.Model(
            [image, regions], [found, boxes, classes], name="all_parts"
        )
        self.rpn, self.detector = parallelize(rpn), parallelize(detector)
        first, second = optimizers
        self.rpn.compile(
            first(),
            {"objectness": "binary_crossentropy", "boxes": "mse"},
            metrics={"boxes": ["mae"]},
        )
        self.detector.compile(
            second(), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )

    def phases(self):
        return [
            kp.Phase("rpn", self.rpn),
            kp.Phase("detector", self.detector, make_batch=propose),
        ]

    def trainer(self, phases=None):
        phases = self.phases() if phases is None else phases
        return kp.AlternatingTrainer(phases, model=self.model)

    def four_steps(self, epochs=2):
        """The schedule of the paper on Faster R-CNN."""
        frozen = {"freeze": [self.backbone], "epochs": epochs}
        return [
            kp.Phase("rpn", self.rpn, epochs=epochs),
            kp.Phase("detector", self.detector, propose, epochs=epochs),
            kp.Phase("rpn_heads", self.rpn, optimizer=adam(2e-2), **frozen),
            kp.Phase(
                "detector_head",
                self.detector,
                propose_of_heads,
                optimizer=momentum(),
                **frozen,
            ),
        ]


def propose(batch, predictions):
    return _proposed(batch, predictions["rpn"])


def propose_of_heads(batch, predictions):
    return _proposed(batch, predictions["rpn_heads"])


def _proposed(batch, found):
    image, targets = batch
    labels = targets["objectness"][:, 0] + (found["objectness"][:, 0] > 0.5)
    return (image, found["boxes"]), labels.astype("int32")


def data(rows, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6)).astype("float32")
    y = {
        "objectness": (x[:, :1] > 0).astype("float32"),
        "boxes": (2 * x[:, :4]).astype("float32"),
    }
    return x, y


def part(batch, rows):
    return keras.tree.map_structure(lambda a: a[rows], batch)


def state_of(trainer):
    """All that the phases train, as `_state.snapshot` gives it."""
    return {
        f"{turn.phase.name}: {name}": entry
        for turn in trainer._conductor._keras_parallel.turns
        for name, entry in _state.snapshot(turn.model).items()
    }


def largest(differences):
    """The largest of some differences by name, and the name."""
    return max((value, name) for name, value in differences.items())
