"""One table of models that every engine and every mode inherits.

A case is a function that returns a new compiled model and one that returns
rows of data for it. `MODELS` are trained for many steps, `APPLICATIONS` for
one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers
from keras import ops

# Divides by 1, 2, 3 and 8 devices.
BATCH_SIZE = 24


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and its data.

    Args:
        name: What the tests call it.
        make_model: Returns a new compiled model.
        make_data: Takes a number of rows and a NumPy generator; returns `x`,
            `(x, y)` or `(x, y, sample_weight)`.
        whole_batches_only: The model is right for batches of `BATCH_SIZE`
            rows only, on one device too.
        methods: The trainer methods that the model has.
    """

    name: str
    make_model: Callable[[], keras.Model]
    make_data: Callable[[int, np.random.Generator], Any]
    whole_batches_only: bool = False
    methods: tuple[str, ...] = ("fit", "evaluate", "predict")

    def __str__(self):
        return self.name


MODELS: dict[str, Case] = {}


def case(make_data, **options):
    def register(make_model):
        name = make_model.__name__
        MODELS[name] = Case(name, make_model, make_data, **options)
        return make_model

    return register


def sgd(learning_rate=0.02, **options):
    return keras.optimizers.SGD(learning_rate, momentum=0.9, **options)


# Data


def features(rows, rng, width=6):
    return rng.normal(size=(rows, width)).astype("float32")


def regression(rows, rng):
    return features(rows, rng), features(rows, rng, 1)


def weighted_regression(rows, rng):
    weights = rng.uniform(0.2, 2.0, size=rows).astype("float32")
    return *regression(rows, rng), weights


def two_targets(rows, rng):
    binary = (rng.random((rows, 1)) > 0.5).astype("float32")
    return features(rows, rng), {
        "main_output": rng.random((rows, 3)).astype("float32"),
        "aux_output": binary,
    }


def images(rows, rng, size=12):
    x = rng.normal(size=(rows, size, size, 3)).astype("float32")
    return x, rng.integers(0, 4, size=rows)


def masks(rows, rng):
    x = rng.normal(size=(rows, 16, 16, 1)).astype("float32")
    return x, (x > 0.2).astype("float32")


def tokens(rows, rng):
    x = rng.integers(1, 20, size=(rows, 9))
    for row, length in enumerate(rng.integers(2, 10, size=rows)):
        x[row, length:] = 0
    return x, (rng.random((rows, 1)) > 0.5).astype("float32")


def sequences(rows, rng):
    return (
        rng.normal(size=(rows, 7, 4)).astype("float32"),
        features(rows, rng, 2),
    )


def pairs(rows, rng):
    target = features(rows, rng, 1)
    return [features(rows, rng), features(rows, rng)], [target] * 3


# Sequential, functional, subclassed, nested


@case(weighted_regression)
def sequential():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(16, activation="relu"),
            layers.Dense(1),
        ]
    )
    model.compile(sgd(), "mse", weighted_metrics=["mae"])
    return model


@case(regression)
def sequential_unbuilt():
    model = keras.Sequential(
        [layers.Dense(16, activation="tanh"), layers.Dense(1)]
    )
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


@case(images)
def convolutional():
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(8, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.AveragePooling2D(2),
            layers.SpatialDropout2D(0.2),
            layers.Conv2D(8, 3, activation="gelu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.3),
            layers.Dense(4),
        ]
    )
    model.compile(
        sgd(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


class Residual(keras.Model):
    """A subclassed model with layers in a list and a weight of its own."""

    scale = 1.0

    def __init__(self):
        super().__init__()
        self.scale = 0.5
        self.blocks = [layers.Dense(6, activation="relu") for _ in range(2)]
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.2)
        self.head = layers.Dense(1)

    def build(self, input_shape):
        self.gain = self.add_weight(shape=(6,), initializer="ones", name="gain")
        for block in (*self.blocks, self.norm, self.head):
            block.build(input_shape)

    def call(self, x, training=False):
        for block in self.blocks:
            x = x + self.scale * block(x)
        x = self.drop(self.norm(x, training=training), training=training)
        return self.head(x * self.gain)


@case(regression)
def subclassed_unbuilt():
    model = Residual()
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


@case(regression)
def subclassed_built():
    model = Residual()
    model.build((None, 6))
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


@case(regression)
def nested():
    inner_input = keras.Input((6,))
    inner = keras.Model(
        inner_input, layers.Dense(6, activation="tanh")(inner_input)
    )
    tower = keras.Sequential(
        [layers.Dense(6), inner, layers.LayerNormalization()]
    )
    inputs = keras.Input((6,))
    model = keras.Model(inputs, layers.Dense(1)(tower(inner(inputs))))
    model.compile(sgd(), "mse")
    return model


def nested_structure(rows, rng):
    x = {"a": features(rows, rng), "b": [features(rows, rng, 3)] * 2}
    return x, {"sum": features(rows, rng, 1), "product": features(rows, rng, 1)}


@case(nested_structure)
def nested_inputs_and_dict_outputs():
    a = keras.Input((6,), name="a")
    b, c = keras.Input((3,)), keras.Input((3,))
    joined = layers.Concatenate()([a, b, c])
    model = keras.Model(
        {"a": a, "b": [b, c]},
        {
            "sum": layers.Dense(1)(joined),
            "product": layers.Dense(1)(a * layers.Concatenate()([b, c])),
        },
    )
    model.compile(
        sgd(),
        {"sum": "mse", "product": "mae"},
        metrics={"sum": ["mae"], "product": ["mse"]},
        loss_weights={"sum": 1.0, "product": 0.5},
    )
    return model


@case(
    lambda rows, rng: (
        tuple(features(rows, rng) for _ in range(2)),
        features(rows, rng, 1),
    )
)
def tuple_inputs_subclassed():
    class Difference(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = layers.Dense(8, activation="relu")
            self.head = layers.Dense(1)

        def call(self, inputs):
            left, right = inputs
            return self.head(self.encoder(left) - self.encoder(right))

    model = Difference()
    model.compile(sgd(), "huber")
    return model


def nested_targets(rows, rng):
    y = features(rows, rng, 1), features(rows, rng, 2)
    return features(rows, rng), {"pair": y, "single": features(rows, rng, 1)}


@case(nested_targets)
def nested_outputs_subclassed():
    class Nested(keras.Model):
        def __init__(self):
            super().__init__()
            self.heads = [layers.Dense(width) for width in (1, 2, 1)]

        def call(self, x):
            a, b, c = (head(x) for head in self.heads)
            return {"pair": (a, b), "single": c}

    model = Nested()
    model.compile(sgd(), {"pair": ("mse", "mae"), "single": "mse"})
    return model


@case(pairs)
def siamese_with_branches_and_sum():
    branch = keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(1)])
    left, right = keras.Input((6,)), keras.Input((6,))
    a, b = branch(left), branch(right)
    model = keras.Model([left, right], [layers.Add()([a, b]), a, b])
    model.compile(sgd(), ["mse", "mae", "mse"])
    return model


# Several outputs


def jaccard_distance_loss(y_true, y_pred, smooth=100):
    intersection = ops.sum(ops.abs(y_true * y_pred), axis=-1)
    total = ops.sum(ops.abs(y_true) + ops.abs(y_pred), axis=-1)
    return (1 - (intersection + smooth) / (total - intersection + smooth)) * (
        smooth
    )


def two_headed(outputs_as=list):
    inputs = keras.Input((6,))
    shared = layers.Dense(12, activation="relu")(inputs)
    heads = [
        layers.Dense(3, activation="sigmoid", name="main_output")(shared),
        layers.Dense(1, activation="sigmoid", name="aux_output")(shared),
    ]
    if outputs_as is dict:
        heads = {"main_output": heads[0], "aux_output": heads[1]}
    model = keras.Model(inputs, heads)
    model.compile(
        optimizer=keras.optimizers.RMSprop(
            learning_rate=0.045, rho=0.9, epsilon=1.0
        ),
        loss={
            "main_output": jaccard_distance_loss,
            "aux_output": "binary_crossentropy",
        },
        metrics={"main_output": jaccard_distance_loss, "aux_output": "acc"},
        loss_weights={"main_output": 1.0, "aux_output": 0.5},
    )
    return model


@case(two_targets)
def two_named_outputs():
    return two_headed()


@case(two_targets)
def two_outputs_in_a_dict():
    return two_headed(dict)


@case(
    lambda rows, rng: (
        features(rows, rng),
        [features(rows, rng, 3), features(rows, rng, 1)],
    )
)
def head_without_a_loss():
    model = two_headed()
    model.compile(sgd(), ["mse", None])
    return model


@keras.saving.register_keras_serializable("tests")
class TwoOutputs(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = layers.Dense(3), layers.Dense(1)

    def build(self, input_shape):
        self.first.build(input_shape)
        self.second.build(input_shape)

    def call(self, x):
        return self.first(x), self.second(x)


@case(
    lambda rows, rng: (
        features(rows, rng),
        [features(rows, rng, 3), features(rows, rng, 1)],
    )
)
def two_outputs_of_one_layer():
    inputs = keras.Input((6,))
    model = keras.Model(inputs, list(TwoOutputs(name="both")(inputs)))
    model.compile(sgd(), ["mse", "mae"], loss_weights=[1.0, 0.3])
    return model


# Steps and losses of the user's own


class OwnSteps(keras.Model):
    """`train_step`, `test_step` and `predict_step` written for JAX."""

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return logs | {"twice": 2 * logs["loss"]}, state

    def test_step(self, state, data):
        logs, state = super().test_step(state, data)
        return logs | {"half": logs["loss"] / 2}, state

    def predict_step(self, state, data):
        outputs, state = super().predict_step(state, data)
        return ops.relu(outputs), state


@case(regression)
def own_steps():
    inputs = keras.Input((6,))
    model = OwnSteps(inputs, layers.Dense(1)(layers.Dense(8, "relu")(inputs)))
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


class OwnLoss(keras.Model):
    """`compute_loss` over pairs of rows, with a metric of its own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.spread = keras.metrics.Mean(name="spread")

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        pairwise = ops.abs(y_pred - ops.transpose(y_pred))
        self.spread.update_state(ops.max(pairwise))
        return ops.mean((y_pred - y) ** 2) + 0.1 * ops.mean(
            ops.abs(pairwise - ops.abs(y - ops.transpose(y)))
        )


@case(regression)
def own_compute_loss():
    inputs = keras.Input((6,))
    model = OwnLoss(inputs, layers.Dense(1)(layers.Dense(8, "tanh")(inputs)))
    model.compile(sgd())
    return model


@keras.saving.register_keras_serializable("tests")
class Penalty(layers.Layer):
    def call(self, x):
        self.add_loss(0.01 * ops.mean(ops.square(x)))
        return x


@case(regression)
def losses_of_layers():
    inputs = keras.Input((6,))
    x = layers.Dense(
        8,
        activation="relu",
        kernel_regularizer=keras.regularizers.L1L2(1e-3, 1e-2),
        activity_regularizer=keras.regularizers.L2(1e-2),
    )(inputs)
    x = Penalty()(x)
    outputs = layers.Dense(
        1, bias_regularizer="l2", kernel_constraint=keras.constraints.MaxNorm(1)
    )(x)
    model = keras.Model(inputs, outputs)
    model.compile(sgd(), "mse", metrics=["mae"])
    return model


# Layers with a state, and recurrent ones


@case(tokens)
def masked_recurrent():
    model = keras.Sequential(
        [
            layers.Embedding(20, 6, mask_zero=True),
            layers.Bidirectional(layers.LSTM(5, return_sequences=True)),
            layers.GRU(4, dropout=0.2, recurrent_dropout=0.1),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(sgd(0.1), "binary_crossentropy", metrics=["accuracy", "auc"])
    return model


@case(sequences, whole_batches_only=True)
def stateful_recurrent():
    inputs = keras.Input(batch_shape=(BATCH_SIZE, 7, 4))
    x = layers.LSTM(5, stateful=True)(inputs)
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile(sgd(), "mse")
    return model


@case(regression, whole_batches_only=True)
def fixed_batch_size():
    inputs = keras.Input(batch_shape=(BATCH_SIZE, 6))
    x = ops.reshape(layers.Dense(4)(inputs), (BATCH_SIZE * 2, 2))
    x = ops.reshape(layers.Dense(2, "relu")(x), (BATCH_SIZE, 4))
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(sgd(), "mse")
    return model


@case(
    lambda rows, rng: (
        [images(rows, rng)[0], sequences(rows, rng)[0]],
        features(rows, rng, 2),
    )
)
def initial_state_from_another_branch():
    image, sequence = keras.Input((12, 12, 3)), keras.Input((7, 4))
    state = layers.Conv2D(5, 5, strides=4, activation="tanh")(image)
    state = layers.GlobalAveragePooling2D()(state)
    x = layers.GRU(5)(sequence, initial_state=state)
    model = keras.Model([image, sequence], layers.Dense(2)(x))
    model.compile(sgd(0.1), "mse")
    return model


@case(images)
def other_normalizations():
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.SpectralNormalization(layers.Conv2D(6, 3, strides=2)),
            layers.GroupNormalization(3),
            layers.PReLU(),
            layers.DepthwiseConv2D(3, activation="relu"),
            layers.UnitNormalization(),
            layers.GaussianNoise(0.1),
            layers.Flatten(),
            layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile(
        sgd(0.05),
        "sparse_categorical_crossentropy",
        metrics=[
            "accuracy",
            keras.metrics.SparseTopKCategoricalAccuracy(2),
        ],
    )
    return model


@case(
    lambda rows, rng: (
        rng.integers(0, 255, size=(rows, 12, 12, 3)).astype("float32"),
        rng.integers(0, 4, size=rows),
    )
)
def preprocessing_of_images():
    normalization = layers.Normalization(mean=[0.4] * 3, variance=[0.1] * 3)
    model = keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Rescaling(1 / 255),
            normalization,
            layers.CenterCrop(10, 10),
            layers.Flatten(),
            layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile(sgd(), "sparse_categorical_crossentropy")
    return model


@case(
    lambda rows, rng: (
        {
            "age": rng.uniform(1, 90, (rows, 1)).astype("f4"),
            "city": rng.integers(0, 5, (rows, 1)),
        },
        features(rows, rng, 1),
    )
)
def preprocessing_of_columns():
    age = keras.Input((1,), name="age")
    city = keras.Input((1,), name="city", dtype="int32")
    bucket = layers.Discretization([18.0, 40.0, 65.0], output_mode="one_hot")
    one_hot = layers.CategoryEncoding(5, output_mode="one_hot")
    x = layers.Concatenate()([bucket(age), one_hot(city)])
    model = keras.Model({"age": age, "city": city}, layers.Dense(1)(x))
    model.compile(sgd(), "mse")
    return model


def texts(rows, rng):
    words = np.array(
        [list(w.encode()) for w in ("good", "poor", "fine", "dull")]
    )
    chosen = rng.integers(0, 4, size=(rows, 3))
    return words[chosen].reshape(rows, 12), (chosen[:, :1] % 2).astype("f4")


@keras.saving.register_keras_serializable("tests")
class Trigrams(layers.Layer):
    """Hashes the trigrams of UTF-8 bytes to buckets, inside the model."""

    def call(self, x):
        x = ops.cast(x, "int32")
        return (x[:, :-2] * 961 + x[:, 1:-1] * 31 + x[:, 2:]) % 64


@case(texts)
def preprocessing_of_text():
    model = keras.Sequential(
        [
            keras.Input((12,), dtype="int32"),
            Trigrams(),
            layers.Embedding(64, 6),
            layers.GlobalMaxPooling1D(),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(sgd(0.1), "binary_crossentropy", metrics=["accuracy"])
    return model


# Architectures


@keras.saving.register_keras_serializable("tests")
class Sample(layers.Layer):
    """The reparametrization of a VAE, for whatever batch it gets."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(7)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise


class VariationalAutoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(12, activation="relu")
        self.mean, self.log_variance = layers.Dense(2), layers.Dense(2)
        self.sample = Sample()
        self.decoder = keras.Sequential(
            [layers.Dense(12, activation="relu"), layers.Dense(6)]
        )

    def call(self, x):
        hidden = self.hidden(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        divergence = -0.5 * ops.mean(
            1 + log_variance - mean**2 - ops.exp(log_variance)
        )
        self.add_loss(divergence)
        return self.decoder(self.sample([mean, log_variance]))

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        return ops.mean((x - y_pred) ** 2) + sum(self.losses)

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return logs | {"root": ops.sqrt(logs["loss"])}, state


@case(lambda rows, rng: (features(rows, rng),))
def variational_autoencoder():
    model = VariationalAutoencoder()
    model.compile(sgd())
    return model


class GenerativeAdversarial(keras.Model):
    """Two networks, two optimizers, one `train_step`, as JAX wants it.

    The generator's optimizer is the model's; the slots of the
    discriminator's are variables of the model.
    """

    def __init__(self):
        super().__init__()
        self.discriminator = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8),
                layers.LeakyReLU(),
                layers.Dropout(0.2),
                layers.Dense(1),
            ]
        )
        self.generator = keras.Sequential(
            [keras.Input((3,)), layers.Dense(8, "relu"), layers.Dense(6)]
        )
        self.seed_generator = keras.random.SeedGenerator(11)
        self.built = True

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile(optimizer=g_optimizer)
        self.d_optimizer = d_optimizer
        self.loss_fn = loss_fn
        g_optimizer.build(self.trainable_variables)
        d_optimizer.build(self.trainable_variables)
        self.d_slots = list(d_optimizer.variables)

    def call(self, noise):
        return self.generator(noise)

    def train_step(self, state, data):
        import jax

        weights, rest, g_slots, metrics = state
        real, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        is_slot = [
            any(v is slot for slot in self.d_slots)
            for v in self.non_trainable_variables
        ]
        in_discriminator = [
            any(v is own for own in self.discriminator.trainable_variables)
            for v in self.trainable_variables
        ]

        def losses(weights, rest):
            mapping = [
                *zip(self.trainable_variables, weights),
                *zip(self.non_trainable_variables, rest),
            ]
            with keras.StatelessScope(mapping) as scope:
                noise = keras.random.normal(
                    (ops.shape(real)[0], 3), seed=self.seed_generator
                )
                fake = self.generator(noise, training=True)
                on_fake = self.discriminator(fake, training=True)
                on_real = self.discriminator(real, training=True)
                ones = ops.ones_like(on_real)
                d_loss = self.loss_fn(ones, on_real) + self.loss_fn(
                    0 * ones, on_fake
                )
                g_loss = self.loss_fn(ones, on_fake)
            rest = [
                scope.get_current_value(v) for v in self.non_trainable_variables
            ]
            return (d_loss, g_loss), rest

        (d_loss, g_loss), pullback, new_rest = jax.vjp(
            lambda w: losses(w, rest), weights, has_aux=True
        )
        one = ops.ones_like(d_loss)
        (d_gradients,) = pullback((one, 0 * one))
        (g_gradients,) = pullback((0 * one, one))
        d_gradients = [
            g if own else ops.zeros_like(g)
            for g, own in zip(d_gradients, in_discriminator)
        ]
        g_gradients = [
            ops.zeros_like(g) if own else g
            for g, own in zip(g_gradients, in_discriminator)
        ]
        d_slots = [r for r, slot in zip(rest, is_slot) if slot]
        weights, d_slots = self.d_optimizer.stateless_apply(
            d_slots, d_gradients, weights
        )
        weights, g_slots = self.optimizer.stateless_apply(
            g_slots, g_gradients, weights
        )
        slots = iter(d_slots)
        new_rest = [
            next(slots) if slot else r for r, slot in zip(new_rest, is_slot)
        ]
        logs = {"d_loss": d_loss, "g_loss": g_loss}
        return logs, (weights, new_rest, g_slots, metrics)


@case(lambda rows, rng: features(rows, rng), methods=("fit",))
def generative_adversarial():
    model = GenerativeAdversarial()
    model.compile(
        d_optimizer=sgd(0.05),
        g_optimizer=sgd(0.05),
        loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model


@case(masks)
def u_net():
    def block(x, width):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        return layers.ReLU()(layers.BatchNormalization()(x))

    inputs = keras.Input((16, 16, 1))
    skips, x = [], inputs
    for width in (4, 8):
        x = block(x, width)
        skips.append(x)
        x = layers.AveragePooling2D(2)(x)
    x = block(x, 8)
    for width, skip in zip((8, 4), reversed(skips)):
        x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = block(layers.Concatenate()([x, skip]), width)
    outputs = layers.Conv2D(1, 1, activation="sigmoid")(x)
    model = keras.Model(inputs, outputs)
    model.compile(sgd(0.05), "binary_crossentropy", metrics=["mae"])
    return model


@case(tokens)
def transformer():
    inputs = keras.Input((9,), dtype="int32")
    x = layers.Embedding(20, 8)(inputs)
    x = x + layers.Embedding(9, 8)(ops.arange(9))
    for _ in range(2):
        attended = layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(x + attended)
        expanded = layers.Dense(8)(layers.Dense(16, "gelu")(x))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(expanded))
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
    model.compile(
        keras.optimizers.AdamW(1e-3, global_clipnorm=1.0),
        "binary_crossentropy",
        metrics=["accuracy"],
    )
    return model


@case(images)
def frozen_backbone():
    inputs = keras.Input((12, 12, 3))
    backbone = keras.Sequential(
        [layers.Conv2D(6, 3), layers.BatchNormalization(), layers.ReLU()]
    )
    x = layers.GlobalAveragePooling2D()(backbone(inputs))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
    backbone.trainable = False
    model.compile(sgd(0.1), "sparse_categorical_crossentropy")
    return model


def _small_resnet():
    """Made and named as ResNet50 is, of fewer and narrower blocks."""

    def block(x, width, strides, name):
        shortcut = layers.Conv2D(width, 1, strides, name=f"{name}_0_conv")(x)
        shortcut = layers.BatchNormalization(name=f"{name}_0_bn")(shortcut)
        for i, (size, stride) in enumerate(((1, strides), (3, 1)), 1):
            x = layers.Conv2D(
                width, size, stride, padding="same", name=f"{name}_{i}_conv"
            )(x)
            x = layers.BatchNormalization(name=f"{name}_{i}_bn")(x)
            if i == 1:
                x = layers.ReLU(name=f"{name}_{i}_relu")(x)
        x = layers.Add(name=f"{name}_add")([shortcut, x])
        return layers.ReLU(name=f"{name}_out")(x)

    inputs = keras.Input((12, 12, 3))
    x = layers.ZeroPadding2D(1, name="conv1_pad")(inputs)
    x = layers.Conv2D(6, 3, 2, name="conv1_conv")(x)
    x = layers.BatchNormalization(name="conv1_bn")(x)
    x = layers.ReLU(name="conv1_relu")(x)
    x = layers.MaxPooling2D(2, name="pool1_pool")(x)
    x = block(x, 8, 1, "conv4_block1")
    x = block(x, 12, 2, "conv5_block1")
    x = layers.GlobalAveragePooling2D(name="avg_pool")(x)
    outputs = layers.Dense(4, activation="softmax", name="predictions")(x)
    return _classifier(keras.Model(inputs, outputs))


def _classifier(model):
    model.compile(
        keras.optimizers.SGD(0.01),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def _application(name, **options):
    make = getattr(keras.applications, name)
    return Case(
        name,
        lambda: _classifier(make(weights=None, classes=10, **options)),
        lambda rows, rng: images(rows, rng, size=32),
    )


APPLICATIONS = {
    "small_resnet": Case("small_resnet", _small_resnet, images),
    **{
        name: _application(name, input_shape=(32, 32, 3))
        for name in ("ResNet50", "MobileNetV3Small", "EfficientNetB0")
    },
}
