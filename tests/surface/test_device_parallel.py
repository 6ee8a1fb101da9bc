"""A device-parallel model, as its user meets it."""

import copy
import types

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from keras_parallel import _errors
from keras_parallel.engines.jax import _stage_programs
from keras_parallel.planning import Device
from keras_parallel.strategies import device as device_strategy

X, Y = np.ones((10, 6), "float32"), np.ones((10, 1), "float32")


def make(scoped=True):
    inputs = keras.Input((6,), name="input")
    x = layers.Dense(5, "relu", name="first")(inputs)
    if scoped:
        with kp.device_scope("gpu:1"):
            x = layers.Dense(4, "relu", name="second")(x)
    else:
        x = layers.Dense(4, "relu", name="second")(x)
    x = layers.BatchNormalization(name="norm")(x)
    return keras.Model(inputs, layers.Dense(1, name="last")(x))


def parallel(placement=None, **arguments):
    model = kp.device_parallel(make(), placement, **arguments)
    model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
    return model


def homes(model):
    """Names of the devices of all variables."""
    devices = keras.tree.map_structure(
        lambda v: next(iter(v.value.devices())).id,
        model.variables + model.optimizer.variables,
    )
    paths = [v.path for v in model.variables + model.optimizer.variables]
    return dict(zip(paths, devices))


def assert_at_home(model):
    for path, device in homes(model).items():
        assert device == ("second" in path), path


def test_all_variables_live_where_their_layer_runs(tmp_path):
    model = parallel()
    model.fit(X, Y, batch_size=4, verbose=0)
    assert_at_home(model)
    model.save_weights(tmp_path / "a.weights.h5")
    model.set_weights(model.get_weights())
    assert_at_home(model)
    model.load_weights(tmp_path / "a.weights.h5")
    assert_at_home(model)
    stop = keras.callbacks.EarlyStopping(
        monitor="loss", patience=1, restore_best_weights=True, mode="max"
    )
    model.fit(X, Y, epochs=4, verbose=0, callbacks=[stop])
    assert_at_home(model)


def test_the_model_that_was_passed_in_works_alone():
    model = make()
    placed = kp.device_parallel(model)
    placed.compile("sgd", "mse")
    placed.fit(X, Y, verbose=0)
    expected = placed.predict(X, verbose=0)
    np.testing.assert_allclose(model(X), expected, rtol=1e-6)
    with pytest.warns(UserWarning, match="no effect"):
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    placed.fit(X, Y, verbose=0)


def test_a_plain_model_with_scopes_warns_when_it_is_compiled():
    with pytest.warns(UserWarning, match="device_parallel") as caught:
        make().compile("sgd", "mse")
    assert caught[0].filename == __file__
    parallel()  # Does not warn, nor does this one.
    make(scoped=False).compile("sgd", "mse")
    replicated = kp.data_parallel(make(), 2)
    with pytest.warns(UserWarning, match="no effect"):
        replicated.compile("sgd", "mse")


def test_a_model_of_which_nothing_is_placed_warns(tmp_path):
    model = parallel()
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="all of it runs on gpu:0") as caught:
        kp.device_parallel(loaded)
    assert caught[0].filename == __file__
    # What says where it runs does not warn.
    kp.device_parallel(loaded, default="gpu:0")
    again = kp.device_parallel(loaded, kp.plan(model).placement)
    copy.deepcopy(again).fit(X, Y, verbose=0)
    again.fit(X, Y, verbose=0)
    assert_at_home(again)


def test_reads_as_the_model(tmp_path):
    model = parallel()
    assert isinstance(model, keras.Model)
    assert [layer.name for layer in model.layers] == [
        layer.name for layer in make().layers
    ]
    history = model.fit(X, Y, verbose=0, validation_data=(X, Y)).history
    assert set(history) == {"loss", "mae", "val_loss", "val_mae"}
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-6
    )
    again = kp.device_parallel(loaded, {"second": "gpu:1"})
    again.fit(X, Y, verbose=0)
    assert_at_home(again)


def test_each_program_is_compiled_once(monkeypatch):
    compiled = []
    original = _stage_programs.StagedStep._compile

    def counted(self, name, *args):
        compiled.append(name)
        return original(self, name, *args)

    monkeypatch.setattr(_stage_programs.StagedStep, "_compile", counted)
    model = parallel()
    model.fit(X, Y, batch_size=5, epochs=2, verbose=0)
    first = list(compiled)
    assert len(set(first)) == len(first) > 2
    model.fit(X, Y, batch_size=5, epochs=2, verbose=0)
    assert compiled == first
    model.fit(X, Y, batch_size=7, verbose=0)  # 7 rows, and 3
    assert len(compiled) == 3 * len(first)


def test_steps_per_execution():
    model = parallel()
    model.compile("sgd", "mse", steps_per_execution=3)
    model.fit(X, Y, batch_size=2, verbose=0)
    assert model.predict(X, batch_size=2, verbose=0).shape == (10, 1)
    assert model.optimizer.iterations == 5


def test_a_custom_train_step_obeys():
    class Custom(keras.Model):
        def train_step(self, state, data):
            logs, state = super().train_step(state, data)
            return {**logs, "twice": 2 * logs["loss"]}, state

    inputs = keras.Input((6,))
    with kp.device_scope("gpu:1"):
        outputs = layers.Dense(1, name="second")(inputs)
    model = kp.device_parallel(Custom(inputs, outputs))
    model.compile("sgd", "mse")
    history = model.fit(X, Y, verbose=0).history
    assert history["twice"] == [2 * history["loss"][0]]
    assert_at_home(model)


def test_an_exception_leaves_a_model_that_trains():
    model = parallel()

    def batches():
        yield X, Y
        yield X, Y
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        model.fit(batches(), shuffle=False, verbose=0)
    assert model.optimizer.iterations == 2
    model.fit(X, Y, verbose=0)
    assert_at_home(model)


class Asks(keras.callbacks.Callback):
    """Computes with all weights in each hook, and calls the model."""

    def __init__(self):
        super().__init__()
        self.gaps = []

    def ask(self, *_, **__):
        weights = map(keras.ops.ravel, self.model.trainable_variables)
        norm = keras.ops.norm(keras.ops.concatenate(list(weights)))
        expected = np.concatenate([w.ravel() for w in self.model.get_weights()])
        assert float(norm) <= np.linalg.norm(expected) * (1 + 1e-6)
        first, *others = self.model.layers[1:]
        by_hand = first(X)
        for layer in others:
            by_hand = layer(by_hand)
        called = self.model(X)
        self.gaps.append(float(keras.ops.max(keras.ops.abs(by_hand - called))))

    on_train_begin = on_epoch_begin = on_epoch_end = on_train_end = ask
    on_train_batch_begin = on_train_batch_end = ask
    on_test_batch_end = on_predict_batch_end = ask


def test_a_callback_computes_with_the_weights_of_all_devices():
    model, asks = parallel(), Asks()
    fit = {"batch_size": 4, "epochs": 2, "verbose": 0, "callbacks": [asks]}
    model.fit(X, Y, validation_data=(X, Y), **fit)
    model.predict(X, verbose=0, callbacks=[asks])
    assert asks.gaps == [0] * (1 + 2 * (1 + 3 + 3 + 3 + 1) + 1 + 1)
    assert_at_home(model)


def test_placement_is_not_that_of_scopes_only():
    model = parallel({"second": "gpu:0", "last": "gpu:2"}, default="gpu:3")
    model.fit(X, Y, verbose=0)
    found = homes(model)
    assert {found[path] for path in found if "last" in path} == {2}
    assert {found[path] for path in found if "second" in path} == {0}
    assert {found[path] for path in found if "first" in path} == {3}


def refused(function, exception, *texts):
    with pytest.raises(exception, match="Received: ") as caught:
        function()
    for text in texts:
        assert text in str(caught.value)


def test_bad_arguments():
    model = make()
    missing, place = _errors.DeviceError, _errors.PlacementError
    refused(
        lambda: kp.device_parallel(model, {"sekond": "gpu:1"}),
        place,
        "'second'",
    )
    refused(lambda: kp.device_parallel(model, ["gpu:1"]), place)
    refused(lambda: kp.device_parallel(model, {"second": "gpu:9"}), missing)
    refused(lambda: kp.device_parallel(model, default="gpu:9"), missing)
    refused(lambda: kp.device_parallel(model, default=1), missing)
    refused(lambda: kp.device_parallel("model"), _errors.RefusedModelError)
    refused(lambda: kp.device_parallel(parallel()), _errors.RefusedModelError)
    refused(
        lambda: kp.device_parallel(keras.Sequential([layers.Dense(1)])),
        _errors.RefusedModelError,
        "not built",
    )


def test_mistakes_are_told_with_calls_that_work():
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(6, name="in")])
    inputs = keras.Input((6,))
    model = keras.Model(inputs, inner(inner(inputs)))
    for key in ("in", 2), ("in",), ("in", -1), "in[7]":
        refused(
            lambda key=key: kp.device_parallel(model, {key: "gpu:0"}),
            _errors.PlacementError,
            "placement={'sequential[0]/in': 'gpu:0'}".replace(
                "sequential", inner.name
            ),
        )
    first = f"placement={{{inner.name!r}: 'gpu:0'}}"
    for placement in ["gpu:1"], {"in": "gpu:9"}, {"in": None}:
        refused(
            lambda placement=placement: kp.device_parallel(model, placement),
            ValueError,
            f"device_parallel(model, {first})",
        )
    for thing in (None, keras.Model, layers.Dense(1), parallel()):
        with pytest.raises(ValueError) as caught:
            kp.device_parallel(thing)
        assert "device_parallel(" in str(caught.value)
        assert "data_parallel(" not in str(caught.value)


def test_no_device_is_named_that_is_not_there(monkeypatch):
    engine = types.SimpleNamespace(list_devices=lambda: (Device("cpu", 0),))
    monkeypatch.setattr(device_strategy, "active_engine", lambda: engine)
    for name in "gpu:0", None:
        refused(
            lambda name=name: kp.device_scope(name),
            _errors.DeviceError,
            "device_scope('cpu:0')",
        )


@pytest.mark.parametrize("how", [{"run_eagerly": True}, {"jit_compile": False}])
def test_uncompiled_steps_are_refused(how):
    refused(
        lambda: parallel().compile("sgd", "mse", **how),
        _errors.RefusedModelError,
        next(iter(how)),
    )
    compiled = make(scoped=False)
    compiled.compile("sgd", "mse", **how)
    refused(
        lambda: kp.device_parallel(compiled, {"second": "gpu:1"}),
        _errors.RefusedModelError,
        next(iter(how)),
    )


def test_eager_steps_are_refused_before_training_if_asked_for_later():
    model = parallel()
    model.run_eagerly = True
    for method in (model.fit, model.evaluate, model.train_on_batch):
        refused(
            lambda method=method: method(X, Y),
            _errors.RefusedModelError,
            "run_eagerly=True",
        )
    model.run_eagerly = False
    model.fit(X, Y, verbose=0)
    assert model.optimizer.iterations == 1


def test_layers_that_keras_does_not_compile_by_itself(tmp_path):
    inputs = keras.Input((8, 8, 3))
    with kp.device_scope("gpu:1"):
        x = layers.RandomZoom(0.1, name="zoom")(inputs)
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))
    x, y = np.ones((4, 8, 8, 3), "float32"), np.ones((4, 1), "float32")
    with pytest.warns(UserWarning, match="no effect"):
        model.compile("sgd", "mse")
    assert model.jit_compile is False  # What "auto" means here.
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    placement = {"zoom": "gpu:1"}
    for compiled in (model, loaded):
        placed = kp.device_parallel(compiled, placement)
        placed.fit(x, y, verbose=0)
        copy.deepcopy(placed).fit(x, y, verbose=0)
        placed.compile_from_config(placed.get_compile_config())
        placed.fit(x, y, verbose=0)
