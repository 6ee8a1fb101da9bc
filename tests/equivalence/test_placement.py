"""Where rows and weights lie, and how often a step is compiled."""

import jax
import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel
from tests import helpers
from tests import models


def watch_batches(parallel):
    """Records how the rows of each placed batch lie on the devices."""
    replicas = parallel._keras_parallel.replicas
    place_batch, seen = replicas.place_batch, []

    def watched(batch):
        placed = place_batch(batch)
        seen.append([replicas.rows_on(a) for a in jax.tree.leaves(placed)])
        return placed

    replicas.place_batch = watched
    return seen


def make_model(**options):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"], **options)
    return model


def replicas_on(devices):
    parallel = keras_parallel.data_parallel(make_model(), devices)
    return parallel._keras_parallel.replicas


def test_each_device_gets_32_rows_of_256():
    parallel = keras_parallel.multi_gpu_model(make_model(), gpus=8)
    parallel.compile("rmsprop", "mse")
    seen = watch_batches(parallel)
    x, y = models.regression(512, np.random.default_rng(0))
    parallel.fit(x, y, epochs=20, batch_size=256, verbose=0)
    assert len(seen) == 40
    each = {f"gpu:{i}": 32 for i in range(8)}
    assert all(rows == each for batch in seen for rows in batch)


def test_a_device_receives_its_own_rows_only():
    replicas = keras_parallel.data_parallel(
        make_model(), 4
    )._keras_parallel.replicas
    x = np.arange(24.0).reshape(12, 2)
    placed, none = replicas.place_batch((x, None))
    assert none is None
    for i, shard in enumerate(placed.addressable_shards):
        np.testing.assert_array_equal(shard.data, x[3 * i : 3 * i + 3])


def test_no_batch_goes_whole_to_the_first_device(monkeypatch):
    """As on accelerators, where Keras looks one batch ahead."""
    from keras.src.backend.jax import trainer

    sent = []

    def watched(data, layouts=None):
        sent.extend(a for a in jax.tree.leaves(data) if _on_one_device(a))
        return jax.tree.map(jax.device_put, data)

    def _on_one_device(array):
        return len(getattr(array, "devices", set)()) < 2

    parallel = keras_parallel.data_parallel(make_model(), 4)
    x, y = models.regression(53, np.random.default_rng(0))
    parallel.train_on_batch(x, y)  # Builds losses and metrics.
    monkeypatch.setattr(trainer, "_distribute_data", watched)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    seen = watch_batches(parallel)
    parallel.fit(x, y, batch_size=24, epochs=2, verbose=0, shuffle=False)
    parallel.evaluate(x, y, batch_size=24, verbose=0)
    assert len(parallel.predict(x, batch_size=24, verbose=0)) == 53
    parallel.train_on_batch(x[:24], y[:24])
    parallel.test_on_batch(x[:24], y[:24])
    parallel.predict_on_batch(x[:24])
    assert sent == []
    rows = [next(iter(batch[0].values())) for batch in seen]
    assert rows[:12] == [6, 6, 5] * 4


def test_uneven_rows_and_arrays_that_are_no_rows_go_whole_to_each_device():
    replicas = keras_parallel.data_parallel(
        make_model(), 4
    )._keras_parallel.replicas
    placed = replicas.place_batch(np.ones((5, 2)))
    assert replicas.rows_on(placed) == {f"gpu:{i}": 5 for i in range(4)}
    rows, anchors = replicas.place_batch((np.ones((8, 2)), np.ones((100, 4))))
    assert replicas.rows_on(rows) == {f"gpu:{i}": 2 for i in range(4)}
    assert replicas.rows_on(anchors) == {f"gpu:{i}": 100 for i in range(4)}


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_one_compilation_for_each_shape_of_a_batch(devices):
    parallel = keras_parallel.data_parallel(make_model(), devices)
    x, y = models.regression(53, np.random.default_rng(0))
    with helpers.compilations() as counts:
        for _ in range(2):
            parallel.fit(
                x, y, batch_size=24, epochs=2, validation_data=(x, y), verbose=0
            )
            parallel.evaluate(x, y, batch_size=24, verbose=0)
            parallel.predict(x, batch_size=24, verbose=0)
            parallel.train_on_batch(x[:24], y[:24])
            parallel.test_on_batch(x[:24], y[:24])
            parallel.predict_on_batch(x[:24])
    # Batches of 24 and of 5 rows.
    assert {k: n for k, n in counts.items() if k.endswith("_step")} == {
        "train_step": 2,
        "test_step": 2,
        "predict_step": 2,
    }


@pytest.mark.parametrize(
    "devices", [1, 8, ["gpu:3", "gpu:0", "gpu:5"], ["gpu:6", "gpu:4"]]
)
def test_weights_are_one_device_values_after_each_method(devices):
    parallel = keras_parallel.data_parallel(make_model(), devices)
    home = next(iter(jax.numpy.zeros(()).devices()))
    x, y = models.regression(24, np.random.default_rng(0))
    for method in (
        lambda: parallel.fit(x, y, verbose=0),
        lambda: parallel.evaluate(x, y, verbose=0),
        lambda: parallel.predict(x, verbose=0),
        lambda: parallel.train_on_batch(x, y),
        lambda: parallel.test_on_batch(x, y),
        lambda: parallel.predict_on_batch(x),
    ):
        method()
        variables = parallel.variables + parallel.optimizer.variables
        assert {d for v in variables for d in v.value.devices()} == {home}


def test_a_loop_of_train_on_batch_moves_no_weights(monkeypatch):
    """G40: weights live on each device, and are not sent to it each step."""
    parallel = keras_parallel.data_parallel(make_model(), 4)
    x, y = models.regression(24, np.random.default_rng(0))
    parallel.train_on_batch(x, y)
    moved = []
    device_put = jax.device_put

    def watched(values, *args, **kwargs):
        moved.extend(a for a in jax.tree.leaves(values) if np.size(a) > 24 * 6)
        return device_put(values, *args, **kwargs)

    monkeypatch.setattr(jax, "device_put", watched)
    for _ in range(3):
        parallel.train_on_batch(x, y)
    assert moved == []


def test_training_again_and_again_leaks_nothing():
    parallel = keras_parallel.data_parallel(make_model(), 4)
    x, y = models.regression(24, np.random.default_rng(0))

    def train():
        for _ in range(3):
            parallel.train_on_batch(x, y)
        parallel.fit(x, y, verbose=0)
        parallel.set_weights(parallel.get_weights())
        return len(jax.live_arrays())

    train()
    after_first = train()
    for _ in range(3):
        last = train()
    assert last <= after_first


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_random_numbers_do_not_depend_on_the_number_of_devices(devices):
    """Initial weights, dropout masks and shuffling."""

    class Mask(keras.Model):
        def __init__(self):
            super().__init__()
            self.drop = layers.Dropout(0.5)
            self.scale = layers.Dense(4)

        def call(self, x, training=False):
            return self.scale(self.drop(x, training=training))

        def train_step(self, state, data):
            logs, new = super().train_step(state, data)
            outputs, _ = self.stateless_call(
                state[0], state[1], data[0], training=True
            )
            return logs | {"outputs": keras.ops.sum(outputs)}, new

    def run(parallelize):
        model = helpers.seeded(Mask)
        model = parallelize(model)
        model.compile("sgd", "mse")
        initial = []
        note = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: initial.extend(model.get_weights())
        )
        x, y = models.regression(48, np.random.default_rng(0))
        history = model.fit(
            x, np.repeat(y, 4, 1), batch_size=24, verbose=0, callbacks=[note]
        )
        return initial, history.history["outputs"], model.get_weights()

    one = run(lambda m: m)
    many = run(lambda m: keras_parallel.data_parallel(m, devices))
    for expected, actual in zip(one[0], many[0]):
        np.testing.assert_array_equal(expected, actual)
    # One other mask or row order changes the sum in its first digits.
    np.testing.assert_allclose(one[1], many[1], rtol=1e-5)
    helpers.assert_close(one[2], many[2])
