"""A parallel model reads as the model it was made from."""

import functools
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from keras_parallel import _errors
from keras_parallel.strategies import _overlay
from tests import helpers
from tests import models

RNG = np.random.default_rng(0)
X, Y = models.regression(24, RNG)


def small(compiled=True):
    inputs = keras.Input((6,), name="features")
    middle = layers.Dense(4, name="middle", activation="relu")(inputs)
    model = keras.Model(inputs, layers.Dense(1, name="score")(middle), name="m")
    if compiled:
        model.compile(models.sgd(), "mse", metrics=["mae"])
    return model


def test_names_layers_and_summary_are_the_users():
    """G05: summary, get_layer, inputs and outputs are the user's."""
    model = small()
    parallel = kp.data_parallel(model, 2)
    lines, own_lines = [], []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    parallel.summary(print_fn=lambda line, **_: own_lines.append(line))
    assert own_lines == lines
    assert parallel.name == "m"
    assert parallel.output_names == ["score"]
    assert parallel.get_layer("middle") is model.get_layer("middle")
    assert parallel.layers == model.layers
    assert parallel.inputs == model.inputs
    assert parallel.count_params() == model.count_params()
    assert parallel.get_config() == model.get_config()
    assert parallel.to_json() == model.to_json()


def test_variables_are_shared():
    model = small()
    parallel = kp.data_parallel(model, 2)
    for own, shared in zip(parallel.variables, model.variables):
        assert own is shared
    parallel.set_weights([w + 1 for w in model.get_weights()])
    helpers.assert_close(parallel.get_weights(), model.get_weights())


def test_type_and_methods_of_a_subclassed_model():
    class Scorer(keras.Model):
        threshold = 0.5

        def __init__(self):
            super().__init__()
            self.threshold = 0.7
            self.dense = layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def decide(self, x):
            return self(x) > self.threshold

        @property
        def half(self):
            return self.threshold / 2

        @half.setter
        def half(self, value):
            self.threshold = 2 * value

    model = Scorer()
    parallel = kp.data_parallel(model, 2)
    assert isinstance(parallel, Scorer)
    assert type(parallel).__name__ == "Scorer"
    assert parallel.decide(X).shape == (24, 1)
    assert parallel.threshold == 0.7
    # Set on one, seen on the other: also what the class has a value for.
    parallel.threshold = 0.1
    assert model.threshold == parallel.threshold == 0.1
    model.threshold = 0.2
    assert parallel.threshold == 0.2
    parallel.half = 3
    assert model.threshold == 6
    parallel.note = "new"
    assert model.note == "new"
    del parallel.note
    assert not hasattr(model, "note")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = parallel.nothing


def test_a_layer_set_on_one_belongs_to_both():
    model = models.Residual()
    parallel = kp.data_parallel(model, 2)
    parallel.extra = layers.Dense(2)
    assert model.extra is parallel.extra
    assert any(layer is model.extra for layer in model.layers)


def test_what_is_replaced_on_the_instance_is_used():
    model = small()
    model.predict_step = lambda state, data: (data[0] * 0 + 3.0, state)
    parallel = kp.data_parallel(model, 2)
    assert (parallel.predict(X[:4], verbose=0) == 3).all()
    model.compute_loss = lambda *args, **kwargs: keras.ops.sum(args[2]) * 0 + 7
    assert parallel.train_on_batch(X, Y, return_dict=True)["loss"] == 7
    later = kp.data_parallel(small(), 2)
    later.compute_loss = lambda *args, **kwargs: keras.ops.sum(args[2]) * 0 + 8
    assert later.train_on_batch(X, Y, return_dict=True)["loss"] == 8
    later.fit = lambda: "mine"
    assert later.fit() == "mine"


def test_the_dict_of_the_instance_is_the_users():
    class Cached(keras.Model):
        def __init__(self):
            super().__init__()
            self.gain = 3.0

        @functools.cached_property
        def table(self):
            return [self.gain]

        def call(self, x):
            return x * vars(self)["gain"] * self.__dict__["gain"]

    model = Cached()
    parallel = kp.data_parallel(model, 2)
    np.testing.assert_allclose(parallel.predict(X, verbose=0), 9 * X, 1e-6)
    assert parallel.table is parallel.table
    assert model.table is parallel.table


def test_names_of_ours_are_free_for_the_user():
    class Busy(keras.Model):
        replicas = states = template = "mine"

        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(1)
            self._placed = 2.0

        def _take(self, x):
            return x * self._placed

        def bring_state_home(self):
            return "mine"

        def call(self, x):
            return self.dense(self._take(x))

    parallel = kp.data_parallel(Busy(), 2)
    parallel.compile("sgd", "mse")
    parallel.fit(X, Y, verbose=0)
    assert parallel.bring_state_home() == parallel.states == "mine"


def test_hooks_of_the_users_class_are_left_alone():
    registered, closed = [], []

    class Registered(keras.Model):
        def __init_subclass__(cls, key, **kwargs):
            super().__init_subclass__(**kwargs)
            registered.append((key, cls))

        def __del__(self):
            closed.append(self)

    class Net(Registered, key="net"):
        def call(self, x):
            return 2 * x

    parallel = kp.data_parallel(Net(), 2)
    parallel.predict(X, verbose=0)
    del parallel
    assert registered == [("net", Net)]
    assert len(closed) <= 1


def test_replaced_weights_are_freed():
    import jax

    parallel = kp.data_parallel(small(), 4)
    parallel.fit(X, Y, verbose=0)
    kernel = parallel.trainable_variables[0]
    shape = tuple(kernel.shape)

    def copies():
        """Of this weight and its slot, which has the same shape."""
        return sum(a.shape == shape for a in jax.live_arrays())

    before = copies()
    for _ in range(3):
        parallel.set_weights(parallel.get_weights())
        parallel.fit(X, Y, verbose=0)
    assert copies() <= before


def test_constants_of_the_class():
    class Scaled(keras.Model):
        SCALE = 2.0

        def call(self, x):
            return x * type(self).SCALE

        @classmethod
        def scale(cls):
            return cls.SCALE

    parallel = kp.data_parallel(Scaled(), 2)
    assert parallel.scale() == type(parallel).SCALE == 2.0
    np.testing.assert_allclose(parallel.predict(X, verbose=0), 2 * X)


def test_from_config_makes_a_plain_model():
    parallel = kp.data_parallel(small(), 2)
    for model in (
        parallel.from_config(parallel.get_config()),
        type(parallel)(parallel.inputs, parallel.outputs),
    ):
        assert type(model) is type(small())


def test_building_one_builds_both():
    model = models.Residual()
    parallel = kp.data_parallel(model, 2)
    assert not model.built
    parallel.build((None, 6))
    assert model.built
    assert parallel.built
    assert len(parallel.weights) == len(model.weights) > 0


def test_compile_state_is_adopted_with_the_slots():
    model = small()
    model.fit(X, Y, verbose=0)
    parallel = kp.data_parallel(model, 2)
    assert parallel.optimizer is model.optimizer
    assert parallel.metrics_names == model.metrics_names
    alone = small()
    alone.set_weights(model.get_weights())
    alone.optimizer.build(alone.trainable_variables)
    for own, adopted in zip(
        alone.optimizer.variables, model.optimizer.variables
    ):
        own.assign(adopted.numpy())
    results = [
        m.fit(X, Y, shuffle=False, verbose=0).history for m in (alone, parallel)
    ]
    helpers.assert_close(*[list(h.values()) for h in results])
    helpers.assert_close(alone.get_weights(), parallel.get_weights())


def test_compiling_one_leaves_the_other_as_it_was():
    model = small()
    parallel = kp.data_parallel(model, 2)
    parallel.compile("adam", "mae")
    assert isinstance(parallel.optimizer, keras.optimizers.Adam)
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert model.loss == "mse"
    parallel.fit(X, Y, verbose=0)
    assert model.optimizer.iterations == 0
    model.fit(X, Y, verbose=0)
    parallel.fit(X, Y, verbose=0)
    assert parallel.optimizer.iterations == 2
    late = kp.data_parallel(small(compiled=False), 2)
    with pytest.raises(ValueError, match="compile"):
        late.fit(X, Y)
    assert not hasattr(late, "optimizer")


def test_what_a_custom_compile_sets_is_compile_state():
    class Own(keras.Model):
        def compile(self, scale, **kwargs):
            super().compile(**kwargs)
            self.scale = scale
            self.seen = keras.metrics.Mean(name="seen")

    inputs = keras.Input((6,))
    model = Own(inputs, layers.Dense(1)(inputs))
    model.compile(1.0, optimizer="sgd", loss="mse")
    parallel = kp.data_parallel(model, 2)
    assert parallel.scale == 1.0
    parallel.compile(2.0, optimizer="sgd", loss="mse")
    assert (model.scale, parallel.scale) == (1.0, 2.0)
    assert parallel.seen is not model.seen
    assert parallel.seen in parallel.metrics


def test_the_model_that_was_passed_in_is_trained():
    model = small()
    parallel = kp.data_parallel(model, 8)
    before = model.get_weights()
    parallel.fit(X, Y, verbose=0)
    assert any((b != a).any() for b, a in zip(before, model.get_weights()))
    np.testing.assert_allclose(
        model.predict(X, verbose=0),
        parallel.predict(X, verbose=0),
        rtol=1e-5,
        atol=1e-6,
    )


def test_training_in_turn_with_the_model_it_was_made_from():
    plain = small()
    model = small()
    model.set_weights(plain.get_weights())
    parallel = kp.data_parallel(model, 2)  # adopts the very optimizer
    other = kp.data_parallel(model, ["gpu:4", "gpu:5", "gpu:6"])
    for trained in (parallel, model, other, parallel):
        plain.train_on_batch(X, Y)
        trained.train_on_batch(X, Y)
    helpers.assert_close(helpers.state_of(plain), helpers.state_of(model))


# Files


def test_arrays_on_other_devices_go_along_with_the_weights():
    import jax

    model = small()
    parallel = kp.data_parallel(model, 2)
    parallel.fit(X, Y, verbose=0)
    elsewhere = jax.device_put(X, jax.devices()[5])
    for called in (model, parallel):
        helpers.assert_close(called(elsewhere), called(X))


def test_training_the_model_inside_a_callback():
    model = small()
    parallel = kp.data_parallel(model, 2)
    parallel.compile(models.sgd(), "mse")

    class Train(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            model.train_on_batch(X[:8], Y[:8])

    parallel.fit(
        X, Y, batch_size=8, shuffle=False, verbose=0, callbacks=[Train()]
    )
    model.fit(X, Y, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == 4
    assert int(parallel.optimizer.iterations) == 3


def test_data_that_uses_the_model_it_is_made_for():
    """Predicting in a generator, as a detector's second stage does."""
    parallel = kp.data_parallel(small(), 2)
    seen = []

    def data():
        while True:
            predicted = parallel.predict(X, verbose=0)
            seen.append(predicted)
            yield X, predicted / 2

    parallel.fit(data(), steps_per_epoch=3, shuffle=False, verbose=0)
    # The last is made by weights that have been trained since.
    assert np.abs(seen[-1]).mean() < np.abs(seen[-2]).mean()
    assert np.isfinite(parallel.get_weights()[0]).all()


@pytest.mark.parametrize("good", [1, 2, 5, 6])
def test_data_that_fails_inside_one_execution_of_several_steps(good):
    parallel = kp.data_parallel(small(), 2)
    parallel.compile(models.sgd(), "mse", steps_per_execution=4)

    def data():
        for _ in range(good):
            yield X[:8], Y[:8]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        parallel.fit(data(), steps_per_epoch=12, shuffle=False, verbose=0)
    assert int(parallel.optimizer.iterations) == good // 4 * 4
    assert np.isfinite(parallel.predict(X, verbose=0)).all()


def test_a_saved_file_is_one_of_plain_keras(tmp_path):
    """G07, G13, G16: saved, loaded and resumed without keras_parallel."""
    model = small()
    parallel = kp.data_parallel(model, 8)
    parallel.fit(X, Y, verbose=0)
    parallel.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        for name in archive.namelist():
            assert b"keras_parallel" not in archive.read(name)
    expected = parallel.evaluate(X, Y, verbose=0)
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    code = f"""
import sys
sys.modules["keras_parallel"] = None
import keras, numpy as np
model = keras.models.load_model({str(tmp_path / "m.keras")!r})
data = np.load({str(tmp_path / "data.npz")!r})
print(*model.evaluate(data["x"], data["y"], verbose=0))
model.fit(data["x"], data["y"], verbose=0, shuffle=False)
print(int(model.optimizer.iterations.value))
model.save({str(tmp_path / "resumed.keras")!r})
"""
    printed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.split()
    np.testing.assert_allclose([float(v) for v in printed[:2]], expected, 1e-5)
    assert int(printed[2]) == 2
    parallel.fit(X, Y, verbose=0, shuffle=False)
    resumed = keras.models.load_model(tmp_path / "resumed.keras")
    helpers.assert_close(helpers.state_of(parallel), helpers.state_of(resumed))


def test_weight_files_are_interchangeable(tmp_path):
    """G11, G14: in both directions."""
    parallel = kp.data_parallel(small(), 2)
    parallel.fit(X, Y, verbose=0)
    parallel.save_weights(tmp_path / "p.weights.h5")
    plain = small()
    plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(tmp_path / "p.weights.h5")
    helpers.assert_close(plain.get_weights(), parallel.get_weights(), 0)
    plain.set_weights([w + 1 for w in plain.get_weights()])
    plain.save_weights(tmp_path / "q.weights.h5")
    parallel.load_weights(tmp_path / "q.weights.h5")
    helpers.assert_close(plain.get_weights(), parallel.get_weights(), 0)


def test_callbacks_that_save_see_a_model_that_can_be_saved(tmp_path):
    """G08, G10: ModelCheckpoint and `self.model.save` work unchanged."""
    parallel = kp.data_parallel(small(), 2)
    saved = []

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            path = tmp_path / f"batch{batch}.keras"
            self.model.save(path)
            saved.append((path, self.model.get_weights()))

    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "e{epoch}.keras")
    parallel.fit(
        X, Y, batch_size=12, epochs=2, verbose=0, callbacks=[checkpoint, Save()]
    )
    assert (tmp_path / "e1.keras").exists()
    last = keras.models.load_model(tmp_path / "e2.keras")
    helpers.assert_close(last.get_weights(), parallel.get_weights(), 0)
    for path, weights in saved[-2:]:
        helpers.assert_close(
            keras.models.load_model(path).get_weights(), weights, 0
        )


# Exceptions


@pytest.mark.parametrize("where", ["data", "callback", "interrupt", "loss"])
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_after_an_exception_the_model_is_usable(where, method):
    if where == "loss" and method == "predict":
        method = "fit"
    plain, parallel = small(), kp.data_parallel(small(), 2)
    parallel.set_weights(plain.get_weights())
    error = KeyboardInterrupt if where == "interrupt" else ZeroDivisionError

    def data():
        for _ in range(2):
            yield (X[:8], Y[:8]) if method != "predict" else (X[:8],)
        if where == "data":
            raise error
        while True:
            yield (X[:8], Y[:8]) if method != "predict" else (X[:8],)

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1 and where in ("callback", "interrupt"):
                raise error

        on_test_batch_end = on_predict_batch_end = on_train_batch_end

    if where == "loss":

        def broken(y_true, y_pred):
            raise error

        parallel.compile(models.sgd(), broken)
    options = {"steps_per_epoch": 5, "shuffle": False}
    if method != "fit":
        options = {"steps": 5}
    with pytest.raises(error):
        getattr(parallel, method)(
            data(), verbose=0, callbacks=[Fail()], **options
        )
    if method == "fit" and where != "loss":
        for _ in range(2):
            plain.train_on_batch(X[:8], Y[:8])
    helpers.assert_close(plain.get_weights(), parallel.get_weights())
    homes = {d for v in parallel.variables for d in v.value.devices()}
    assert len(homes) == 1
    parallel.compile(models.sgd(), "mse")
    parallel.fit(X, Y, verbose=0)


# What is refused


def refused(make):
    with pytest.raises(_errors.KerasParallelError) as caught:
        make()
    message = str(caught.value)
    assert "Received: " in message
    return message


def test_what_is_refused_when_wrapping():
    assert "keras.Sequential" in refused(
        lambda: kp.data_parallel(layers.Dense(1))
    )
    refused(lambda: kp.data_parallel(len))
    refused(lambda: kp.data_parallel(None))
    refused(lambda: kp.data_parallel(keras.Sequential))
    parallel = kp.data_parallel(small(), 2)
    assert "parallel already" in refused(lambda: kp.data_parallel(parallel))

    class OwnState(keras.Model):
        def _get_jax_state(self, **kwargs):
            return super()._get_jax_state(**kwargs)

    inputs = keras.Input((6,))
    assert "_get_jax_state" in refused(
        lambda: kp.data_parallel(OwnState(inputs, layers.Dense(1)(inputs)))
    )


def test_a_global_distribution_is_refused_by_name():
    parallel = kp.data_parallel(small(), 2)
    distribution = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
    keras.distribution.set_distribution(distribution)
    try:
        message = refused(lambda: parallel.fit(X, Y, verbose=0))
        laid_out = small()
    finally:
        keras.distribution.set_distribution(None)
    assert "DataParallel is set" in message
    assert "set_distribution(None)" in message
    assert "set_distribution" in refused(lambda: kp.data_parallel(laid_out))
    parallel.fit(X, Y, verbose=0)


def test_the_list_of_refusals_grows_only_on_purpose():
    """Each refusal stands in docs/concepts/refused.md."""
    import inspect

    from keras_parallel.engines.jax import _engine
    from keras_parallel.engines.jax import _puts
    from keras_parallel.strategies import _training
    from keras_parallel.strategies import device

    modules = (_training, _overlay, device, _puts)
    source = "".join(map(inspect.getsource, modules))
    assert inspect.getsource(_engine).count("raise BackendError(") == 2
    assert source.count("raise RefusedModelError(") == 9
    assert source.count("raise DistributionSetError(") == 1
