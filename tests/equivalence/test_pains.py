"""Reports by users that apply to data parallelism, one test for each kind.

The ids are those of the project's list of reports: G is `multi_gpu_model`,
J is `keras.distribution`, O is several outputs.
"""

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_parallel as kp
from tests import helpers
from tests import models
from tests import selection

RNG = np.random.default_rng(0)
X, Y = models.regression(24, RNG)


def trained(make_model, parallelize, data, **options):
    model = parallelize(helpers.seeded(make_model))
    keras.utils.set_random_seed(4)
    history = model.fit(*data, verbose=0, **options).history
    return model, [list(history.values()), helpers.state_of(model)]


def assert_equal_to_one_device(make_model, data, devices=2, **options):
    """Trains on one device and on several, and returns both models."""
    plain, expected = trained(make_model, lambda m: m, data, **options)
    parallel, actual = trained(
        make_model, lambda m: kp.data_parallel(m, devices), data, **options
    )
    helpers.assert_close(expected, actual, 2e-5)
    return plain, parallel


def functional(make_outputs, loss="mse", **arguments):
    def make_model():
        inputs = keras.Input((6,))
        model = keras.Model(inputs, make_outputs(inputs))
        model.compile(models.sgd(), loss, **arguments)
        return model

    return make_model


@pytest.mark.parametrize("devices", [2, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 7, 65])
def test_rows_that_do_not_divide(devices, rows):
    """G19, G20, J01: any number of rows, in fit, evaluate and predict."""
    make_model = functional(lambda x: layers.Dense(1)(x), metrics=["mae"])
    x, y = models.regression(rows, np.random.default_rng(0))
    plain, parallel = assert_equal_to_one_device(
        make_model, (x, y), devices, batch_size=32
    )
    helpers.assert_close(
        plain.evaluate(x, y, batch_size=32, verbose=0),
        parallel.evaluate(x, y, batch_size=32, verbose=0),
    )
    predicted = parallel.predict(x, batch_size=32, verbose=0)
    assert predicted.shape == (rows, 1)
    helpers.assert_close(plain.predict(x, verbose=0), predicted)
    assert all(np.isfinite(w).all() for w in parallel.get_weights())


def test_freezing_in_two_phases_keeps_the_weights():
    """G17: set `trainable` on the user's layers and compile again."""

    def two_phases(parallelize):
        model = helpers.seeded(
            functional(
                lambda x: layers.Dense(1, name="head")(
                    layers.Dense(8, name="base")(x)
                )
            )
        )
        parallel = parallelize(model)
        base = model.get_layer("base")
        base.trainable = False
        frozen = base.get_weights()
        parallel.compile(models.sgd(), "mse")
        parallel.fit(X, Y, shuffle=False, verbose=0)
        helpers.assert_close(base.get_weights(), frozen, 0)
        head = model.get_layer("head").get_weights()
        base.trainable = True
        parallel.compile(models.sgd(1e-3), "mse")
        helpers.assert_close(model.get_layer("head").get_weights(), head, 0)
        parallel.fit(X, Y, shuffle=False, verbose=0)
        assert (base.get_weights()[0] != frozen[0]).any()
        return helpers.state_of(parallel)

    helpers.assert_close(
        two_phases(lambda m: m), two_phases(lambda m: kp.data_parallel(m, 2))
    )


def test_a_batch_size_baked_into_a_sampling_layer():
    """G25: right for batches of that size, otherwise the layer is named."""

    class Noisy(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.seed = keras.random.SeedGenerator(3)

        def call(self, x):
            return x + keras.random.normal((12, 6), seed=self.seed)

    def make_model():
        inputs = keras.Input(batch_shape=(12, 6))
        outputs = layers.Dense(1)(Noisy(name="noisy")(inputs))
        model = keras.Model(inputs, outputs)
        model.compile(models.sgd(), "mse")
        return model

    _, parallel = assert_equal_to_one_device(
        make_model, (X, Y), 3, batch_size=12
    )
    with pytest.raises(TypeError, match=r"Noisy\.call"):
        parallel.fit(X, Y, batch_size=8, verbose=0)


def test_two_inputs_and_a_loss_inside_the_model():
    """G26: every array with a batch dim is split alike."""

    def make_model():
        a, b = keras.Input((6,)), keras.Input((1,))
        error = layers.Lambda(lambda t: ops.abs(t[0] - t[1]))(
            [layers.Dense(1)(a), b]
        )
        model = keras.Model([a, b], error)
        model.compile(
            models.sgd(), lambda y_true, y_pred: ops.mean(y_pred, axis=-1)
        )
        return model

    assert_equal_to_one_device(
        make_model, ([X, Y], np.zeros_like(Y)), 8, batch_size=8
    )


def test_a_loss_that_takes_gradients_of_an_inner_tensor():
    """G28: the user's graph is not cut off by a wrapper."""
    import jax

    class Smooth(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, *_, **kwargs):
            slope = jax.grad(lambda t: ops.sum(self(t, training=False)))(x)
            penalty = ops.mean(ops.square(slope))
            return super().compute_loss(x, y, y_pred) + penalty

    def make_model():
        inputs = keras.Input((6,))
        hidden = layers.Dense(8, "tanh")(inputs)
        model = Smooth(inputs, layers.Dense(1)(hidden))
        model.compile(models.sgd(), "mse")
        return model

    assert_equal_to_one_device(make_model, (X, Y), 2, batch_size=12)


def test_constants_of_a_layer_are_not_split():
    """G29, F01: constants belong to each device."""
    table = np.arange(24.0, dtype="float32").reshape(4, 6)
    make_model = functional(
        lambda x: layers.Dense(1)(
            layers.Lambda(lambda t: t @ ops.transpose(table))(x)
        )
    )
    assert_equal_to_one_device(make_model, (X, Y), 4, batch_size=8)


def test_inputs_that_are_no_rows_are_not_split():
    """G26, F01: an array of anchors beside the images of a batch."""

    def make_model():
        class Matcher(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(3)

            def call(self, inputs):
                rows, anchors = inputs
                scores = self.dense(rows) @ ops.transpose(anchors)
                return ops.max(scores, axis=-1, keepdims=True)

        model = Matcher()
        model.compile(models.sgd(), "mse")
        return model

    anchors = np.linspace(-1, 1, 30, dtype="float32").reshape(10, 3)
    results = []
    for parallelize in (lambda m: m, lambda m: kp.data_parallel(m, 2)):
        model = parallelize(helpers.seeded(make_model))
        loss = [model.train_on_batch([X, anchors], Y) for _ in range(3)]
        results.append([loss, helpers.state_of(model)])
    helpers.assert_close(*results)


METRICS = {
    "sparse_top_k": lambda: keras.metrics.SparseTopKCategoricalAccuracy(2),
    "sparse_accuracy": lambda: keras.metrics.SparseCategoricalAccuracy(),
    "crossentropy": lambda: keras.metrics.SparseCategoricalCrossentropy(),
    "iou": lambda: keras.metrics.MeanIoU(4, sparse_y_pred=False),
}


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.parametrize(
    ("name", "devices"), selection.in_turn(METRICS, [2, 3])
)
def test_metrics_of_classes(name, devices):
    """J04: every metric has the one-device value."""
    make_model = functional(
        lambda x: layers.Dense(4, activation="softmax")(x),
        "sparse_categorical_crossentropy",
        metrics=[METRICS[name]()],
    )
    y = np.random.default_rng(0).integers(0, 4, 24)
    assert_equal_to_one_device(make_model, (X, y), devices, batch_size=8)


@pytest.mark.parametrize(
    "make_metric",
    [
        keras.metrics.AUC,
        keras.metrics.Precision,
        keras.metrics.F1Score,
        keras.metrics.R2Score,
        lambda: keras.metrics.SensitivityAtSpecificity(0.5),
    ],
)
def test_metrics_of_probabilities(make_metric):
    """J04, too: kinds that keep a state of their own."""
    make_model = functional(
        lambda x: layers.Dense(1, activation="sigmoid")(x),
        "binary_crossentropy",
        metrics=[make_metric()],
    )
    y = (np.random.default_rng(0).random((24, 1)) > 0.5).astype("float32")
    assert_equal_to_one_device(make_model, (X, y), 2, batch_size=8)


def test_evaluating_in_a_callback():
    """J05, J07: weights are current, and training goes on from them."""
    seen = []

    class Evaluate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            loss = self.model.evaluate(X, Y, verbose=0)
            weights = self.model.get_weights()
            predicted = self.model.predict(X, verbose=0)
            seen.append([loss, weights, predicted])

    make_model = functional(lambda x: layers.Dense(1)(x))
    assert_equal_to_one_device(
        make_model, (X, Y), 8, epochs=3, batch_size=8, callbacks=[Evaluate()]
    )
    for expected, actual in zip(seen[:3], seen[3:]):
        helpers.assert_close(expected, actual)
    assert (seen[3][1][0] != seen[4][1][0]).any()


def test_evaluating_in_a_callback_of_each_batch():
    """J07: in the middle of an epoch, where plain Keras does it right too."""
    losses = []

    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append(self.model.evaluate(X, Y, verbose=0))

    make_model = functional(lambda x: layers.Dense(1)(x))
    parallel, _ = trained(
        make_model,
        lambda m: kp.data_parallel(m, 2),
        (X, Y),
        batch_size=8,
        shuffle=False,
        callbacks=[Evaluate()],
    )
    plain = helpers.seeded(make_model)
    expected = []
    for start in range(0, 24, 8):
        plain.train_on_batch(X[start : start + 8], Y[start : start + 8])
        expected.append(plain.evaluate(X, Y, verbose=0))
    helpers.assert_close(expected, losses)
    helpers.assert_close(plain.get_weights(), parallel.get_weights())


def test_slots_lie_where_their_variables_lie():
    """J13: on every device while a step runs."""
    parallel = kp.data_parallel(functional(lambda x: layers.Dense(1)(x))(), 4)
    parallel.compile("adam", "mse")
    seen = set()

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for variable in (
                *self.model.trainable_variables,
                *self.model.optimizer.variables,
            ):
                seen.add(len(variable.value.devices()))

    parallel.fit(X, Y, batch_size=8, verbose=0, callbacks=[Look()])
    assert seen == {4}


def test_lora_after_wrapping():
    """J16: layers are found by object, not by a pattern of names."""
    results = []
    for parallelize in (lambda m: m, lambda m: kp.data_parallel(m, 2)):
        model = helpers.seeded(
            functional(lambda x: layers.Dense(1)(layers.Dense(8, name="d")(x)))
        )
        parallel = parallelize(model)
        parallel.fit(X, Y, shuffle=False, verbose=0)
        keras.utils.set_random_seed(1)
        model.get_layer("d").enable_lora(2)
        parallel.compile(models.sgd(), "mse")
        parallel.fit(X, Y, shuffle=False, verbose=0)
        results.append(helpers.state_of(parallel))
    helpers.assert_close(*results)


def test_a_layer_frozen_without_compiling_again_is_as_on_one_device():
    """J29: what Keras decides for one device is decided for several."""

    def outcome(parallelize):
        model = helpers.seeded(
            functional(lambda x: layers.Dense(1)(layers.Dense(8, name="d")(x)))
        )
        parallel = parallelize(model)
        parallel.fit(X, Y, shuffle=False, verbose=0)
        model.get_layer("d").trainable = False
        try:
            parallel.fit(X, Y, shuffle=False, verbose=0)
        except ValueError:
            return "refused"  # What is said: tests/surface/test_mistakes.py.
        return helpers.state_of(parallel)

    expected = outcome(lambda m: m)
    actual = outcome(lambda m: kp.data_parallel(m, 2))
    if expected == "refused":
        assert actual == expected
    else:
        helpers.assert_close(expected, actual)


@pytest.mark.parametrize("devices", [2, 8])
def test_gradients_through_sorting_rows(devices):
    """Ops over the batch that XLA has to partition, with gradients."""

    class Ranked(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, *_, **kwargs):
            ranked = ops.sort(y_pred[:, 0])
            best, _ = ops.top_k(y_pred[:, 0], 3)
            spread = ops.std(y_pred) + ops.mean(ops.cumsum(ranked))
            return spread + ops.sum(best) + ops.mean((y - y_pred) ** 2)

    def make_model():
        inputs = keras.Input((6,))
        model = Ranked(inputs, layers.Dense(1)(inputs))
        model.compile(models.sgd(1e-3))
        return model

    assert_equal_to_one_device(make_model, (X, Y), devices, batch_size=16)


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("regularizer", [None, "l2"])
def test_a_regularizer_counts_once(devices, regularizer):
    """T04: the same `evaluate` and step for any number of replicas."""
    make_model = functional(
        lambda x: layers.Dense(1, kernel_regularizer=regularizer)(x)
    )
    x, y = models.regression(12, np.random.default_rng(0))
    plain, parallel = assert_equal_to_one_device(make_model, (x, y), devices)
    helpers.assert_close(
        plain.evaluate(x, y, verbose=0), parallel.evaluate(x, y, verbose=0)
    )


def test_the_loss_of_a_custom_step_is_that_of_the_whole_batch():
    """T14: not that of the first replica."""

    class Own(keras.Model):
        def train_step(self, state, data):
            logs, state = super().train_step(state, data)
            x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
            y_pred, _ = self.stateless_call(state[0], state[1], x)
            return logs | {"own": ops.mean((y - y_pred) ** 2)}, state

    def make_model():
        inputs = keras.Input((6,))
        model = Own(inputs, layers.Dense(1)(inputs))
        model.compile(models.sgd(), "mse")
        return model

    # Each device gets targets of another size.
    y = Y * np.repeat([1.0, 100.0], 12)[:, None].astype("float32")
    assert_equal_to_one_device(
        make_model, (X, y), 2, batch_size=24, shuffle=False
    )
