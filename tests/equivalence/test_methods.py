"""Every method of the trainer equals one device.

G41: `evaluate`, `predict` and the methods on a batch are distributed too.
"""

import keras
import numpy as np
import pytest
from keras import layers

from tests import helpers
from tests import models
from tests import selection

ROWS = 53  # A prime: two batches of 24 and one of 5.


# What has steps, losses, methods, a state or rows of its own, and a third of
# the others. Their training steps are compared in `test_steps.py`.
OF_THEIR_OWN = (
    *("own_steps", "own_compute_loss", "losses_of_layers", "fixed_batch_size"),
    *("stateful_recurrent", "variational_autoencoder"),
    "generative_adversarial",
)


def _cases():
    for i, name in enumerate(models.MODELS):
        needed = i % 3 == 0 or name in OF_THEIR_OWN
        yield selection.case(name, needed=needed)


def data_of(case, rows=ROWS):
    if case.whole_batches_only:
        rows = 2 * models.BATCH_SIZE
    data = case.make_data(rows, np.random.default_rng(1))
    return keras.utils.unpack_x_y_sample_weight(data)


@pytest.mark.parametrize("name", list(_cases()))
def test_fit_evaluate_and_predict(name):
    case = models.MODELS[name]
    x, y, weight = data_of(case)
    # Each model on another number of devices, so that all are met.
    devices = (2, 8, 3)[list(models.MODELS).index(name) % 3]
    results = []
    for model in helpers.both(case.make_model, devices):
        keras.utils.set_random_seed(4)
        fitted = model.fit(
            x,
            y,
            sample_weight=weight,
            batch_size=models.BATCH_SIZE,
            epochs=2,
            verbose=0,
            shuffle=not case.whole_batches_only,
        )
        result = [list(fitted.history.values()), helpers.state_of(model)]
        if "evaluate" in case.methods:
            result.append(
                model.evaluate(
                    x,
                    y,
                    sample_weight=weight,
                    batch_size=models.BATCH_SIZE,
                    verbose=0,
                )
            )
        if "predict" in case.methods:
            result.append(
                model.predict(x, batch_size=models.BATCH_SIZE, verbose=0)
            )
        results.append(result)
    # Adam turns the rounding noise of an attention bias into steps.
    tolerance = 1e-3 if name == "transformer" else 2e-5
    helpers.assert_close(*results, tolerance)


@pytest.mark.parametrize(
    ("rows", "devices"), selection.in_turn([1, 7, 24, 25], [3, 8, 2, 1])
)
def test_methods_on_a_batch(rows, devices):
    """J08: also without sample weights, where `None` is no data."""
    x, y = models.regression(rows, np.random.default_rng(1))
    weight = np.linspace(0.1, 2, rows).astype("float32")
    plain, parallel = helpers.both(
        models.MODELS["subclassed_unbuilt"].make_model, devices
    )
    results = [
        [
            model.train_on_batch(x, y),
            model.train_on_batch(x, y, sample_weight=weight),
            model.train_on_batch(x, y, return_dict=True)["loss"],
            model.test_on_batch(x, y),
            model.test_on_batch(x, y, sample_weight=weight, return_dict=True),
            model.predict_on_batch(x),
            model(x),
            model(x, training=False),
            helpers.state_of(model),
        ]
        for model in (plain, parallel)
    ]
    helpers.assert_close(*results)


@pytest.mark.parametrize("devices", [2, 3])
def test_class_weight(devices):
    def make_model():
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(3, activation="softmax")]
        )
        model.compile(models.sgd(), "sparse_categorical_crossentropy")
        return model

    rng = np.random.default_rng(1)
    x, y = models.features(ROWS, rng), rng.integers(0, 3, ROWS)
    results = []
    for model in helpers.both(make_model, devices):
        keras.utils.set_random_seed(4)
        fitted = model.fit(
            x,
            y,
            batch_size=12,
            class_weight={0: 1.0, 1: 3.0, 2: 0.5},
            verbose=0,
        )
        on_batch = model.train_on_batch(
            x[:12], y[:12], class_weight={0: 1.0, 1: 3.0, 2: 0.5}
        )
        results.append([fitted.history["loss"], on_batch, model.get_weights()])
    helpers.assert_close(*results)


OPTIONS = {
    "steps_per_execution": {"steps_per_execution": 2},
    "run_eagerly": {"run_eagerly": True},
    "jit_compile=False": {"jit_compile": False},
}


@pytest.mark.parametrize("name", list(OPTIONS))
def test_options_of_compile(name):
    def make_model():
        model = models.MODELS["subclassed_built"].make_model()
        model.compile(models.sgd(), "mse", metrics=["mae"], **OPTIONS[name])
        return model

    x, y = models.regression(29, np.random.default_rng(1))
    results = []
    for model in helpers.both(make_model, 2):
        keras.utils.set_random_seed(4)
        fitted = model.fit(x, y, batch_size=8, epochs=1, verbose=0)
        results.append(
            [
                list(fitted.history.values()),
                model.evaluate(x, y, batch_size=8, verbose=0),
                model.predict(x, batch_size=8, verbose=0),
                helpers.state_of(model),
            ]
        )
    helpers.assert_close(*results)


@pytest.mark.parametrize("change", [(1, 2), (2, 1), (2, 3)])
def test_steps_per_execution_changed_without_compiling_again(change):
    """Keras has its own ideas here; they are the same on several devices."""

    def make_model():
        model = keras.Sequential([keras.Input((6,)), layers.Dense(1)])
        model.compile(models.sgd(), "mse", steps_per_execution=change[0])
        return model

    x, y = models.regression(48, np.random.default_rng(1))
    options = {"batch_size": 8, "shuffle": False, "verbose": 0}
    results = []
    for model in helpers.both(make_model, 2):
        result = [list(model.fit(x, y, **options).history.values())]
        model.predict(x, batch_size=8, verbose=0)
        model.steps_per_execution = change[1]
        result.append(list(model.fit(x, y, **options).history.values()))
        result.append(model.predict(x, batch_size=8, verbose=0))
        results.append([*result, helpers.state_of(model)])
    helpers.assert_close(*results)
