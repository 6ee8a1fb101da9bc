"""The plan, which nothing ran for, against what was compiled."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel
from tests.compiled import collectives_of_step
from tests.models import MODELS

ROWS = 24


def rng():
    return np.random.default_rng(0)


def numbers(*shape):
    return rng().normal(size=(ROWS, *shape)).astype("float32")


def classes(count, *shape):
    return rng().integers(0, count, size=(ROWS, *shape))


def sequential(shape, *stack, **options):
    model = keras.Sequential([keras.Input(shape), *stack])
    model.compile(**{"optimizer": "adam", "loss": "mse"} | options)
    return model


def normalized_images(dtype="float32"):
    with_dtype = {"dtype": dtype}
    return sequential(
        (6, 6, 3),
        layers.Conv2D(8, 3, use_bias=False, **with_dtype),
        layers.BatchNormalization(scale=False, **with_dtype),
        layers.Conv2D(6, 3, **with_dtype),
        layers.BatchNormalization(**with_dtype),
        layers.Flatten(**with_dtype),
        layers.Dense(4, **with_dtype),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
    )


class Twice(keras.Model):
    """Calls each of its layers twice, BatchNormalization among them."""

    def __init__(self):
        super().__init__()
        self.dense, self.norm = layers.Dense(6), layers.BatchNormalization()

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.norm.build(input_shape)

    def call(self, x, training=False):
        for _ in range(2):
            x = self.norm(self.dense(x), training=training)
        return x


def called_twice():
    model = Twice()
    model.build((None, 6))
    model.compile("sgd", "mse")
    return model


def frozen():
    model = normalized_images()
    for layer in model.layers[:2]:
        layer.trainable = False
    model.compile("sgd", model.loss)
    return model


def several_metrics():
    return sequential(
        (6,),
        layers.Dense(1, activation="sigmoid", activity_regularizer="l2"),
        loss="binary_crossentropy",
        metrics=["auc", keras.metrics.Precision(), keras.metrics.F1Score()],
        weighted_metrics=["accuracy", "mse"],
    )


def recurrent():
    return sequential(
        (9,),
        layers.Embedding(20, 6, mask_zero=True),
        layers.BatchNormalization(),
        layers.Bidirectional(layers.LSTM(5)),
        layers.Dense(1),
    )


def grouped():
    return sequential(
        (6, 6, 4),
        layers.SpectralNormalization(layers.Conv2D(6, 3)),
        layers.GroupNormalization(3),
        layers.PReLU(),
        layers.Flatten(),
        layers.Dense(4, activation="softmax"),
        loss="sparse_categorical_crossentropy",
        metrics=[keras.metrics.MeanIoU(4, sparse_y_pred=False)],
    )


def attentive():
    inputs = keras.Input((5, 6))
    x = layers.MultiHeadAttention(2, 3, dropout=0.1)(inputs, inputs)
    x = layers.LayerNormalization()(inputs + x)
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def low_rank(shape, layer):
    """LoRA: two factors are added to a weight before rows meet it."""
    stack = [layer, layers.Flatten(), layers.Dense(2)]
    model = keras.Sequential([keras.Input(shape), *stack])
    layer.enable_lora(2)
    model.compile("sgd", "mse")
    return model


def convolutions_in_groups():
    return sequential(
        (6, 6, 8),
        layers.Conv2D(8, 3),
        layers.Conv2D(16, 3, groups=4, padding="same"),
        layers.DepthwiseConv2D(3, depth_multiplier=2),
        layers.Conv2D(32, 1, groups=2),
        layers.Flatten(),
        layers.Dense(2),
    )


def quantized():
    model = sequential((8,), layers.Dense(16), layers.Dense(2))
    for layer in model.layers:
        layer.quantize("float8")
    model.compile("sgd", "mse")
    return model


LOW_RANK = {
    "dense": ((40,), lambda: layers.Dense(30)),
    "convolution": ((5, 5, 8), lambda: layers.Conv2D(12, 3)),
    "embedding": ((3,), lambda: layers.Embedding(40, 16)),
    "einsum": ((3, 16), lambda: layers.EinsumDense("abc,ce->abe", (3, 24))),
}


def of_low_rank(name):
    shape, layer = LOW_RANK[name]
    x = (lambda: classes(40, 3)) if name == "embedding" else None
    return (
        lambda: low_rank(shape, layer()),
        lambda: ((x or (lambda: numbers(*shape)))(), numbers(2)),
    )


def of_table(name):
    case = MODELS[name]
    return case.make_model, lambda: case.make_data(ROWS, rng())


def pictures():
    return numbers(6, 6, 3), classes(4)


CASES = {
    "batch_normalization": (normalized_images, pictures),
    "mixed_float16": (lambda: normalized_images("mixed_float16"), pictures),
    "mixed_bfloat16": (lambda: normalized_images("mixed_bfloat16"), pictures),
    "bfloat16": (lambda: normalized_images("bfloat16"), pictures),
    "frozen": (frozen, pictures),
    "float8": (quantized, lambda: (numbers(8), numbers(2))),
    "groups": (
        convolutions_in_groups,
        lambda: (numbers(6, 6, 8), numbers(2)),
    ),
    "called_twice": (called_twice, lambda: (numbers(6), numbers(6))),
    "several_metrics": (
        several_metrics,
        lambda: (numbers(6), 1.0 * classes(2, 1), np.ones(ROWS, "float32")),
    ),
    "recurrent": (recurrent, lambda: (classes(20, 9), numbers(1))),
    "other_normalizations": (
        grouped,
        lambda: (numbers(6, 6, 4), classes(4)),
    ),
    "attention": (attentive, lambda: (numbers(5, 6), numbers(1))),
    "dice": (
        lambda: sequential((6,), layers.Dense(2), loss=keras.losses.Dice()),
        lambda: (numbers(6), numbers(2)),
    ),
    **{f"lora_of_{name}": of_low_rank(name) for name in LOW_RANK},
    **{
        name: of_table(name)
        for name in ("two_named_outputs", "siamese_with_branches_and_sum")
    },
}


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize("name", list(CASES))
def test_plan_is_what_is_compiled(name):
    make_model, make_data = CASES[name]
    parallel = keras_parallel.data_parallel(make_model(), 2)
    plan = keras_parallel.plan(parallel, batch_size=ROWS)
    compiled = collectives_of_step(parallel, *make_data())
    print(plan, *compiled, sep="\n")
    gradients = [c for c in plan.collectives if "gradients" in c.purpose]
    total = sum(c.bytes for c in compiled)
    # Nothing crosses that is not listed, and gradients in the size planned.
    assert sum(c.bytes for c in gradients) <= total
    assert total <= 1.02 * plan.bytes_per_step
    assert {c.kind for c in compiled} == {c.kind for c in plan.collectives}
    operations = sum(c.count for c in plan.collectives)
    assert operations / 6 <= sum(c.count for c in compiled) <= operations
    # Beside gradients, the plan is no wider than three times the truth.
    others = plan.bytes_per_step - sum(c.bytes for c in gradients)
    assert others <= 3 * (total - sum(c.bytes for c in gradients)) + 64
    # What was not made yet is known before.
    after = keras_parallel.plan(parallel, batch_size=ROWS)
    if not any("before the first batch" in note for note in plan.notes):
        assert after.shares == plan.shares
        assert after.collectives == plan.collectives


def test_gradients_of_a_plain_model_cross_once_in_one_operation():
    """At most 1.02 of the trainable bytes, all in one all-reduce."""
    model = sequential((784,), layers.Dense(64, "relu"), layers.Dense(10))
    parallel = keras_parallel.data_parallel(model, 8)
    (one,) = collectives_of_step(parallel, numbers(784), numbers(10))
    trainable = keras_parallel.plan(parallel, ROWS).shares[0].weights
    assert one.kind == "all-reduce"
    assert trainable <= one.bytes <= 1.02 * trainable


def test_what_crosses_does_not_grow_with_rows():
    parallel = keras_parallel.data_parallel(normalized_images(), 2)
    plans = [keras_parallel.plan(parallel, rows) for rows in (8, 80)]
    assert plans[0].collectives == plans[1].collectives
    few, many = (plan.shares[0].activations for plan in plans)
    assert 8 * few < many <= 10 * few
