"""What is trained: models with scopes, and their data.

Each function takes `on`, the scope around a call, so that plain Keras builds
the same model without scopes, and `tiny`, whether to be as small as possible.
"""

import contextlib
import dataclasses
import typing

import keras_parallel as kp

import keras
import numpy as np
from keras import layers
from keras import ops

LEARNING_RATE = 0.01


class Products(layers.Layer):
    """A loop of products with one matrix.

    Args:
        count: How many.
    """

    def __init__(self, count, **kwargs):
        super().__init__(**kwargs)
        self.count = count

    def build(self, shape):
        self.matrix = self.add_weight(
            shape=(shape[-1], shape[-1]), initializer="orthogonal"
        )

    def call(self, x):
        def product(x, _):
            return ops.tanh(ops.matmul(x, self.matrix)), None

        return ops.scan(product, x, length=self.count)[0]

    def compute_output_shape(self, shape):
        return shape


@dataclasses.dataclass(frozen=True)
class Case:
    """One model.

    Args:
        name: The name in tables.
        build: Takes `on` and `tiny`, and returns a model that is not compiled.
        batch: Rows of a batch.
        tiny_batch: The same at the smallest size.
        placement: Takes the model and returns where its calls run, if scopes
            do not say it.
        loss: Of each output.
        classes: How many classes the targets have; 0 for rows of numbers.
    """

    name: str
    build: typing.Callable
    batch: int
    tiny_batch: int = 4
    placement: typing.Callable | None = None
    loss: str = "mse"
    classes: int = 0

    def make(self, tiny, parallel):
        """The model, compiled, device-parallel or plain."""
        keras.utils.set_random_seed(0)
        on = kp.device_scope if parallel else _nowhere
        model = self.build(on, tiny)
        if parallel:
            place = self.placement
            model = kp.device_parallel(model, place and place(model))
        # One loss for each output.
        losses = [self.loss for _ in model.outputs]
        model.compile(
            keras.optimizers.SGD(LEARNING_RATE),
            losses if len(losses) > 1 else losses[0],
        )
        return model

    def data(self, model, tiny, steps=1):
        """Inputs and targets for `steps` batches."""
        rng = np.random.default_rng(0)
        rows = steps * (self.tiny_batch if tiny else self.batch)

        def rows_like(tensor):
            return rng.standard_normal((rows, *tensor.shape[1:]), "float32")

        x = [rows_like(tensor) for tensor in model.inputs]
        if self.classes:
            y = [rng.integers(self.classes, size=rows).astype("int32")]
        else:
            y = [rows_like(tensor) for tensor in model.outputs]
        return x if len(x) > 1 else x[0], y if len(y) > 1 else y[0]


def _nowhere(name):
    del name
    return contextlib.nullcontext()


def two_branches(make_layer, shape):
    """Two branches that nothing joins, each with a head of its own.

    Args:
        make_layer: Takes `tiny` and a name and returns the layer of a branch.
        shape: Takes `tiny` and returns the shape of a row.
    """

    def build(on, tiny):
        inputs, outputs = [], []
        for i in range(2):
            inputs.append(keras.Input(shape(tiny)))
            with on(f"gpu:{i}"):
                encoded = make_layer(tiny, f"branch_{i}")(inputs[i])
                outputs.append(layers.Dense(1, name=f"head_{i}")(encoded))
        return keras.Model(inputs, outputs)

    return build


def weights_of_branches(model):
    """The trainable variables of each of `two_branches`."""
    return [
        [
            variable
            for name in (f"branch_{i}", f"head_{i}")
            for variable in model.get_layer(name).trainable_variables
        ]
        for i in range(2)
    ]


BRANCHES = (
    Case(
        "LSTM(64), 140 steps of 256",
        two_branches(
            lambda tiny, name: layers.LSTM(4 if tiny else 64, name=name),
            lambda tiny: (5, 8) if tiny else (140, 256),
        ),
        256,
    ),
    Case(
        "1,000 products of 16 x 256 with 256 x 256",
        two_branches(
            lambda tiny, name: Products(3 if tiny else 1000, name=name),
            lambda tiny: (8,) if tiny else (256,),
        ),
        16,
    ),
)


def towers(on, tiny):
    """The mission's: one LSTM for two sequences, joined on the CPU."""
    shape = (5, 8) if tiny else (140, 256)
    inputs = [keras.Input(shape), keras.Input(shape)]
    shared = layers.LSTM(64)
    encoded = []
    for i, x in enumerate(inputs):
        with on(f"gpu:{i}"):
            encoded.append(shared(x))
    with on("cpu:0"):
        merged = layers.concatenate(encoded)
    return keras.Model(inputs, layers.Dense(1, name="same")(merged))


def inception(on, tiny):
    """Two blocks of three branches: convolutions of 1, 3 and 5."""
    size, filters = (8, 2) if tiny else (32, 16)
    inputs = keras.Input((size, size, 3))
    x = layers.Conv2D(2 * filters, 3, padding="same")(inputs)
    for _ in range(2):
        branches = []
        for device, width in (("cpu:0", 1), ("gpu:0", 5), ("gpu:1", 3)):
            with on(device):
                y = layers.Conv2D(filters, width, padding="same")(x)
                branches.append(layers.ReLU()(layers.BatchNormalization()(y)))
        x = layers.concatenate(branches)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def two_heads(on, tiny):
    """One trunk, and two heads on two devices with losses of their own."""
    width = 8 if tiny else 1024
    inputs = keras.Input((width,))
    with on("gpu:0"):
        trunk = layers.Dense(width, activation="relu")(inputs)
    outputs = []
    for i in range(2):
        with on(f"gpu:{i}"):
            x = layers.Dense(width, activation="relu")(trunk)
            outputs.append(layers.Dense(8, name=f"head_{i}")(x))
    return keras.Model(inputs, outputs)


def resnet(on, tiny):
    """ResNet50, which knows of no scopes: see `resnet_in_three`."""
    del on, tiny
    return keras.applications.ResNet50(
        weights=None, input_shape=(32, 32, 3), classes=10
    )


def resnet_in_three(model):
    """The last stages of convolutions on a second and on a third device."""
    last = ("conv5", "avg_pool", "predictions")
    return {
        layer.name: "cpu:0" if layer.name.startswith(last) else "gpu:1"
        for layer in model.layers
        if layer.name.startswith(("conv4", *last))
    }


STEPS = (
    Case("two towers, shared LSTM(64)", towers, 128),
    Case("two inception blocks", inception, 32),
    Case("two heads, MLP", two_heads, 256),
    Case(
        "ResNet50, 32 x 32, cut in three",
        resnet,
        16,
        placement=resnet_in_three,
        loss="sparse_categorical_crossentropy",
        classes=10,
    ),
)


def chain(make_stage, shape):
    """Two stages of equal work on two devices, the second after the first.

    Args:
        make_stage: Takes `tiny` and returns the layers of one stage.
        shape: Takes `tiny` and returns the shape of a row.
    """

    def build(on, tiny):
        inputs = x = keras.Input(shape(tiny))
        for i in range(2):
            with on(f"gpu:{i}"):
                for layer in make_stage(tiny):
                    x = layer(x)
        return keras.Model(inputs, x)

    return build


CHAINS = (
    Case(
        "4 times Dense(1024), twice",
        chain(
            lambda tiny: [
                layers.Dense(8 if tiny else 1024, activation="relu")
                for _ in range(4)
            ],
            lambda tiny: (8 if tiny else 1024,),
        ),
        512,
    ),
    Case(
        "LSTM(128) on 64 steps, twice",
        chain(
            lambda tiny: [
                layers.LSTM(4 if tiny else 128, return_sequences=True)
            ],
            lambda tiny: (3, 4) if tiny else (64, 128),
        ),
        128,
    ),
)


def host_chain(stages, on):
    """Stages of 20 variables in a row, on two devices in turn.

    As small as can be, so that the time of a step is the host's.
    """
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((1,))
    for i in range(stages):
        with on(f"gpu:{i % 2}"):
            for _ in range(10):
                x = layers.Dense(1)(x)
    return keras.Model(inputs, x)
