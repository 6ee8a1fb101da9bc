"""Gradients cross once: of loops, and of layers that are called twice, too."""

import itertools
import re

import jax
import keras
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from keras import layers

import keras_parallel as kp
from keras_parallel.engines.jax._row_sums import Rows
from keras_parallel.engines.jax._sum_once import summed_once
from tests import models
from tests import selection
from tests.compiled import collectives_of_step

ROWS, TIME, FEATURES = 24, 7, 4
LAYERS = {}


def layer(make):
    LAYERS[make.__name__] = make
    return make


@layer
def lstm():
    return [layers.LSTM(5)]


@layer
def as_many_units_as_rows():
    return [layers.LSTM(ROWS), layers.Dense(ROWS)]


@layer
def gru():
    return [layers.GRU(5, dropout=0.2)]


@layer
def gru_of_another_kind():
    return [layers.GRU(5, reset_after=False, activation="relu")]


@layer
def simple():
    return [layers.SimpleRNN(5, go_backwards=True)]


@layer
def both_directions_twice():
    recurrent = layers.LSTM(3, return_sequences=True)
    return [
        layers.Bidirectional(recurrent),
        layers.Bidirectional(layers.GRU(3)),
    ]


@layer
def masked():
    return [layers.Masking(0.0), layers.LSTM(5, return_sequences=True)]


@layer
def stacked_cells():
    return [layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)])]


@layer
def unrolled():
    return [layers.LSTM(3, unroll=True)]


@layer
def in_half_precision():
    return [layers.LSTM(5, dtype="mixed_bfloat16")]


@keras.saving.register_keras_serializable("tests")
class Twice(layers.Layer):
    """Uses a weight twice in each turn, and scales what it adds."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x):
        def turn(state, now):
            state = keras.ops.tanh(
                now @ self.kernel + 0.3 * (state @ -self.kernel)
            )
            return state, state.sum(0)

        start = keras.ops.zeros_like(x[:, 0])
        last, _ = jax.lax.scan(turn, start, keras.ops.swapaxes(x, 0, 1))
        return last


@layer
def a_scan_of_the_users():
    return [Twice()]


@keras.saving.register_keras_serializable("tests")
class Compiled(Twice):
    def call(self, x):
        return jax.jit(super().call)(x)


@layer
def a_compiled_scan():
    return [Compiled()]


@keras.saving.register_keras_serializable("tests")
class LookedAt(layers.Layer):
    """Adds up a sum over the rows and looks at it in each turn."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3))

    def call(self, x):
        def turn(total, now):
            return total + keras.ops.sum(now @ self.kernel, 0), total[0]

        last, seen = jax.lax.scan(
            turn, keras.ops.zeros(3), keras.ops.swapaxes(x, 0, 1)
        )
        return x[:, 0] @ self.kernel + last * keras.ops.sum(seen) * 1e-3


@layer
def a_sum_that_is_looked_at():
    return [LookedAt()]


def called_twice(make):
    """The layers, called on a sequence and on it reversed."""

    def made():
        shared = make()
        return [
            lambda x: layers.add(
                [applied(shared, x), applied(shared, layers.ReLU()(x))]
            )
        ]

    made.__name__ = f"{make.__name__}_called_twice"
    return layer(made)


def applied(each_of, x):
    for each in each_of:
        x = each(x)
    return x


called_twice(lstm)
called_twice(both_directions_twice)


@called_twice
def dense():
    return [layers.Flatten(), layers.Dense(5, "tanh"), layers.Dense(3)]


@called_twice
def convolution():
    return [layers.Conv1D(5, 3, activation="tanh"), layers.Conv1D(3, 2)]


@keras.saving.register_keras_serializable("tests")
class Words(layers.Layer):
    """The place of the largest feature at each time step."""

    def call(self, x):
        return keras.ops.argmax(x, -1)


@called_twice
def table():
    return [Words(), layers.Embedding(FEATURES, 3), layers.Flatten()]


@layer
def tied():
    both = layers.ReversibleEmbedding(FEATURES, 3)
    return [
        Words(),
        both,
        lambda x: both(x, reverse=True),
        layers.Flatten(),
    ]


def make_model(name):
    inputs = keras.Input((TIME, FEATURES))
    x = applied(LAYERS[name](), inputs)
    model = keras.Model(inputs, layers.Dense(2, dtype="float32")(x))
    model.compile(models.sgd(0.1), "mse")
    return model


def make_batches(name, sizes=(ROWS, ROWS, 7)):
    rng = np.random.default_rng(5)
    lengths = {"masked": (TIME,), "convolution_called_twice": (TIME - 3,)}
    shape = (*lengths.get(name, ()), 2)
    return [
        (
            rng.normal(size=(n, TIME, FEATURES)).astype("float32"),
            rng.normal(size=(n, *shape)).astype("float32"),
        )
        for n in sizes
    ]


@pytest.mark.parametrize(("name", "devices"), selection.in_turn(LAYERS, (2, 8)))
def test_training_equals_one_device(name, devices):
    kp.testing.assert_trains_like_one_device(
        lambda: make_model(name),
        lambda: make_batches(name),
        devices=[devices],
        steps=3,
    )


def collectives(name):
    """The collectives of the training step, and the weights."""
    (batch, *_) = make_batches(name)
    parallel = kp.data_parallel(make_model(name), 2)
    found = collectives_of_step(parallel, *batch)
    return found, parallel.trainable_variables


@pytest.mark.parametrize(
    "name", [name for name in LAYERS if name != "a_sum_that_is_looked_at"]
)
def test_gradients_cross_once(name):
    found, weights = collectives(name)
    # A masked loss needs the number of its time steps first.
    assert [c.count for c in found] == ([1, 1] if name == "masked" else [1])
    # Beside the gradients, the sums of the loss.
    gradients = sum(4 * np.size(v) for v in weights)
    assert gradients <= sum(c.bytes for c in found) <= gradients + 8


def test_what_a_loop_looks_at_crosses_in_each_turn():
    found, _ = collectives("a_sum_that_is_looked_at")
    assert TIME in [c.count for c in found]


# Where the sums of each device are not the sum of all rows


def recurrent_in_float16():
    return [layers.LSTM(6, dtype="mixed_float16")]


def twice_in_float16():
    shared = layers.Dense(6, dtype="mixed_float16")
    return [layers.Flatten(), lambda x: shared(x) + shared(2 * x)]


@pytest.mark.parametrize("make", [recurrent_in_float16, twice_in_float16])
def test_the_same_steps_overflow(make):
    """A half of the rows may fit into float16 where all of them do not."""

    def scales(devices):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((4, 6))
        outputs = layers.Dense(1, trainable=False)(applied(make(), inputs))
        model = keras.Model(inputs, outputs)
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1e-3),
            initial_scale=1024,
            dynamic_growth_steps=1,
        )
        model.compile(optimizer, "mse")
        if devices:
            model = kp.data_parallel(model, devices)
        x, y = np.full((64, 4, 6), 20.0), np.full((64, 1), 30.0)
        found = []
        for _ in range(6):
            model.train_on_batch(x, y)
            found.append(float(optimizer.dynamic_scale))
        return found

    one = scales(None)
    assert any(after < before for before, after in itertools.pairwise(one))
    assert scales(8) == one


def arrays_that_cross(function, *args, together):
    """The shapes of what is added up over two devices, and the results."""
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("batch",))
    by_rows = NamedSharding(mesh, PartitionSpec("batch"))
    on_each = NamedSharding(mesh, PartitionSpec())
    step = jax.jit(
        lambda *args: summed_once(function, args, Rows(ROWS, mesh, together)),
        in_shardings=(*[on_each] * (len(args) - 1), by_rows),
        out_shardings=on_each,
    )
    text = step.lower(*args).compile().as_text()
    shapes = re.findall(r"= (.+?) all-reduce\(", text)
    found = [re.findall(r"\w+\[[\d,]*\]", shape) for shape in shapes]
    return found, step(*args)


def normalized(x):
    x = x - x.mean(0)
    return x / jax.numpy.sqrt((x * x).mean(0) + 1e-3)


@pytest.mark.parametrize("units", [5, ROWS])
@pytest.mark.parametrize("norm", [lambda x: x, normalized])
def test_small_sums_cross_as_one_array(units, norm):
    """XLA:CPU meets once for each array of a fused all-reduce."""

    def loss(weights, x):
        h = x
        for kernel, bias in weights:
            h = jax.numpy.tanh(norm(h @ kernel) + bias)
        return (h**2).sum(1).mean()

    def step(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        # As plain gradient descent has it, the update is linear in each.
        new = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)
        return value / 2, new

    rng = np.random.default_rng(0)
    weights = [(rng.normal(size=(units, units)), np.ones(units))] * 3
    args = jax.tree.map(
        lambda a: a.astype("float32"),
        (weights, rng.normal(size=(ROWS, units))),
    )
    together, found = arrays_that_cross(step, *args, together=2**16)
    apart, _ = arrays_that_cross(step, *args, together=0)
    if norm is normalized:
        # Means are needed before anything else goes on.
        assert sum(map(len, together)) < sum(map(len, apart))
    else:
        count = 3 * (units + 1) * units + 1
        assert together == [[f"f32[{count}]"]]
        assert [len(arrays) for arrays in apart] == [7]
    for expected, value in zip(
        jax.tree.leaves(step(*args)), jax.tree.leaves(found)
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


def test_a_weight_that_is_used_very_often_in_a_turn():
    """More often than Python calls functions in functions."""
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("batch",))

    def loss(w, x):
        def turn(h, now):
            # A use of its own each time, as an unrolled network has.
            for _ in range(500):
                h = jax.lax.tanh(h @ jax.lax.reshape(w, (5, 5)) + now)
            return h, None

        h, _ = jax.lax.scan(turn, jax.numpy.zeros((ROWS, 5)), x)
        return h.sum()

    w, x = np.full(25, 0.1), np.ones((2, ROWS, 5))
    step = jax.grad(loss)
    traced = jax.make_jaxpr(
        lambda *args: summed_once(step, args, Rows(ROWS, mesh))
    )(w, x)
    assert "shard_map" in str(traced)
