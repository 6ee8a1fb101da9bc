"""What people do with a Keras model beside training it."""

import copy
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from tests import helpers
from tests import models

RNG = np.random.default_rng(0)
X, Y = models.regression(24, RNG)


def make_model(units=4):
    inputs = keras.Input((6,), name="features")
    hidden = layers.Dense(units, "relu", name="hidden")(inputs)
    outputs = layers.Dense(1, name="score")(hidden)
    model = keras.Model(inputs, outputs, name="small")
    model.compile(models.sgd(), "mse", metrics=["mae"])
    return model


def fitted(model, **options):
    options = {"shuffle": False, "verbose": 0, **options}
    return list(model.fit(X, Y, **options).history.values())


def devices_of(model):
    return [d.name for d in model._keras_parallel.replicas.devices]


def is_parallel(model):
    return hasattr(model, "_keras_parallel")


# Copies


def test_a_deep_copy_is_parallel_on_the_same_devices():
    parallel = kp.data_parallel(make_model(), ["gpu:3", "gpu:1"])
    parallel.fit(X, Y, verbose=0)
    copied = copy.deepcopy(parallel)
    assert devices_of(copied) == ["gpu:3", "gpu:1"]
    helpers.assert_close(copied.get_weights(), parallel.get_weights(), 0)
    assert not set(map(id, copied.weights)) & set(map(id, parallel.weights))
    # The optimizer's slots are copied too, and each goes on by itself.
    helpers.assert_close(fitted(copied), fitted(parallel))
    helpers.assert_close(helpers.state_of(copied), helpers.state_of(parallel))


def test_a_pickle_is_one_of_a_plain_model(tmp_path):
    """It loads where keras_parallel is not installed, and goes on."""
    parallel = kp.data_parallel(make_model(), 2)
    parallel.fit(X, Y, verbose=0)
    path = tmp_path / "model.pickle"
    path.write_bytes(pickle.dumps(parallel))
    code = f"""
import sys
sys.modules["keras_parallel"] = None
import pickle
with open({str(path)!r}, "rb") as file:
    model = pickle.load(file)
print(type(model).__name__, int(model.optimizer.iterations.value))
"""
    printed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert printed.split() == ["Functional", "1"]
    loaded = pickle.loads(path.read_bytes())
    helpers.assert_close(fitted(loaded), fitted(parallel))


def test_a_clone_is_plain_and_can_be_made_parallel():
    """Keras makes it from the configuration, with new weights."""
    parallel = kp.data_parallel(make_model(), 2)
    cloned = keras.models.clone_model(parallel)
    assert type(cloned) is type(make_model())
    cloned.set_weights(parallel.get_weights())
    cloned.compile(models.sgd(), "mse", metrics=["mae"])
    helpers.assert_close(fitted(kp.data_parallel(cloned, 2)), fitted(parallel))


# A parallel model inside others


def test_a_parallel_model_as_a_layer_of_another(tmp_path):
    def nest(wrap_inner, wrap_outer):
        inner = helpers.seeded(make_model)
        inner = kp.data_parallel(inner, 2) if wrap_inner else inner
        inputs = keras.Input((6,))
        outer = keras.Model(inputs, layers.Activation("tanh")(inner(inputs)))
        outer = kp.data_parallel(outer, 4) if wrap_outer else outer
        outer.compile(models.sgd(), "mse")
        return inner, outer

    expected = None
    for wrapped in ((False, False), (True, False), (True, True)):
        inner, outer = nest(*wrapped)
        # Trained in turn: they share the weights.
        result = [fitted(outer), fitted(inner), fitted(outer)]
        result.append(outer.get_weights())
        outer.save(tmp_path / "outer.keras")
        loaded = keras.models.load_model(tmp_path / "outer.keras")
        helpers.assert_close(
            loaded.predict(X, verbose=0), outer.predict(X, verbose=0)
        )
        expected = expected or result
        helpers.assert_close(expected, result)


def test_a_part_of_a_parallel_model():
    """A feature extractor of its layers, as `get_layer` gives them."""
    parallel = kp.data_parallel(make_model(), 2)
    parallel.fit(X, Y, verbose=0)
    part = keras.Model(parallel.inputs, parallel.get_layer("hidden").output)
    assert part.predict(X, verbose=0).shape == (24, 4)
    features = kp.data_parallel(part, 3).predict(X, verbose=0)
    helpers.assert_close(part.predict(X, verbose=0), features)


# Other packages


def test_scikit_learn():
    """A function that makes the model makes it parallel."""
    sklearn = pytest.importorskip("sklearn.model_selection")
    y = (X[:, 0] > 0).astype(int)

    def make_classifier(X, y, devices):
        inputs = keras.Input((X.shape[1],))
        outputs = layers.Dense(y.shape[1], activation="softmax")(inputs)
        model = keras.Model(inputs, outputs)
        model.compile(models.sgd(0.1), "categorical_crossentropy")
        return kp.data_parallel(model, devices) if devices else model

    scores = []
    for devices in (None, 2):
        keras.utils.set_random_seed(0)
        classifier = keras.wrappers.SKLearnClassifier(
            make_classifier,
            model_kwargs={"devices": devices},
            fit_kwargs={"epochs": 10, "verbose": 0, "shuffle": False},
        )
        scores.append(sklearn.cross_val_score(classifier, X, y, cv=2))
        classifier.fit(X, y)
        assert is_parallel(classifier.model_) == bool(devices)
    np.testing.assert_allclose(*scores)


def test_scikit_learn_with_an_instance():
    """It trains a clone that Keras makes: right, and on one device."""
    regressor = keras.wrappers.SKLearnRegressor(
        kp.data_parallel(make_model(), 2), fit_kwargs={"verbose": 0}
    )
    regressor.fit(X, Y[:, 0])
    assert regressor.predict(X).shape[0] == 24
    assert not is_parallel(regressor.model_)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
def test_keras_tuner(tmp_path):
    """Its model-building function returns the parallel model."""
    tuner_of = pytest.importorskip("keras_tuner").RandomSearch
    results = []
    for devices in (None, 2):
        tuned = []

        def build(hyperparameters):
            units = hyperparameters.Int("units", 2, 8, step=2)
            model = helpers.seeded(lambda: make_model(units))
            if devices:  # noqa: B023
                model = kp.data_parallel(model, devices)  # noqa: B023
            tuned.append(model)  # noqa: B023
            return model

        tuner = tuner_of(
            build,
            objective="val_loss",
            max_trials=2,
            seed=1,
            directory=tmp_path / str(devices),
            overwrite=True,
        )
        tuner.search(
            X, Y, epochs=2, validation_data=(X, Y), shuffle=False, verbose=0
        )
        best = tuner.get_best_models()[0]
        results.append(
            [
                [t.score for t in tuner.oracle.get_best_trials(2)],
                best.predict(X, verbose=0),
            ]
        )
        assert all(is_parallel(m) == bool(devices) for m in [*tuned, best])
    helpers.assert_close(*results)
