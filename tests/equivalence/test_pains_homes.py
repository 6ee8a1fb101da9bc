"""Reports by users on where weights, slots and inputs lie, in stages.

The ids are those of the project's list of reports: G is `multi_gpu_model`,
J is `keras.distribution`, D is Keras on torch, F is detection nets.
"""

import gc
import json
import re

import jax
import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_parallel as kp
from keras_parallel import _errors
from tests import helpers
from tests import models
from tests import staged

# Made parallel after it is compiled, as `load_model` compiles too.
pytestmark = pytest.mark.filterwarnings("ignore:.*calls in device scopes")

X, Y = models.regression(24, np.random.default_rng(0))


def chain(width=8):
    """Two layers on devices that are not the default, and one that is."""
    inputs = keras.Input((6,), name="input")
    with kp.device_scope("gpu:1"):
        x = layers.Dense(width, "tanh", name="near")(inputs)
    with kp.device_scope("gpu:2"):
        x = layers.Dense(width, "tanh", name="far")(x)
    model = keras.Model(inputs, layers.Dense(1, name="last")(x))
    model.compile("adam", "mse", metrics=["mae"])
    return model


PLACES = {"near": "gpu:1", "far": "gpu:2", "last": "gpu:0"}


def assert_at_home(model, with_slots=True):
    """Each weight and slot lies where its layer runs."""
    found = staged.homes(model, with_slots)
    for name, place in PLACES.items():
        of_layer = {k: v for k, v in found.items() if name in k}
        assert of_layer and {*of_layer.values()} == {place}, of_layer


def equals_one_device(make_model, steps=4, parallelize=None):
    keras.utils.set_random_seed(0)
    kp.testing.assert_trains_like_one_device(
        make_model,
        lambda: [(X[:12], Y[:12]), (X[12:], Y[12:]), (X[:5], Y[:5])],
        devices="all",
        steps=steps,
        parallelize=parallelize or (lambda m, _: kp.device_parallel(m)),
    )


def sent(model, kind="train", batch=(X, Y)):
    """What goes to another place in a compiled step."""
    execution = model._keras_parallel.execution
    return execution.program(model, kind, batch).transfers


METHODS = {
    "fit": lambda m: m.fit(X, Y, batch_size=10, verbose=0).history,
    "evaluate": lambda m: m.evaluate(X, Y, batch_size=10, verbose=0),
    "predict": lambda m: m.predict(X, batch_size=10, verbose=0),
    "train_on_batch": lambda m: m.train_on_batch(X, Y),
    "test_on_batch": lambda m: m.test_on_batch(X, Y),
    "predict_on_batch": lambda m: m.predict_on_batch(X),
}


@pytest.mark.parametrize("names", [[*METHODS], [*METHODS][::-1]], ids=" ".join)
def test_state_lies_in_the_same_place_for_every_method(names):
    """J05: what one method leaves, the next one takes as it lies."""
    model = kp.device_parallel(helpers.seeded(chain))
    plain = helpers.seeded(chain)
    for name in [*names, names[0]]:
        keras.utils.set_random_seed(2)
        expected = METHODS[name](plain)
        keras.utils.set_random_seed(2)
        helpers.assert_close(expected, METHODS[name](model))
        trained = model.optimizer.built and model.optimizer.iterations > 0
        # Keras makes slots on its own device, and the first step takes them.
        assert_at_home(model, with_slots=trained)
    helpers.assert_close(helpers.state_of(plain), helpers.state_of(model))


def test_slots_lie_where_their_weights_lie(monkeypatch):
    """J13: in every step, and each is updated there."""
    programs, seen = staged.Programs(monkeypatch), []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            assert_at_home(self.model)
            seen.append(batch)

    model = kp.device_parallel(chain())
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Look()])
    assert seen == [0, 1, 2]
    # Only single numbers of the optimizer go elsewhere.
    slots = [t for t in sent(model) if "adam" in t.what and t.bytes > 8]
    assert not slots
    equals_one_device(chain)
    for name, place in PLACES.items():
        assert programs.of(name, "dot_general") == {place}


def test_weights_live_where_their_layer_runs_not_on_the_cpu():
    """G40: a model that was made on the CPU keeps no weight there."""
    with keras.device(staged.HOST):
        template = chain()
    assert {*staged.homes(template).values()} == {"cpu:0"}
    model = kp.device_parallel(template)
    model.fit(X, Y, verbose=0)
    assert_at_home(model)
    assert "cpu:0" not in {*staged.homes(model).values()}
    # No weight is sent in a step.
    assert {t.purpose for t in sent(model)} == {
        *("input", "activation", "gradient")
    }
    big = {t.what for t in sent(model) if t.bytes >= 4 * 6 * 8}
    assert not {what for what in big if "kernel" in what}


def test_a_model_too_large_for_one_device(tmp_path):
    """J14: made in the memory of the host, no weight passes by another."""
    seen = []

    def look(*_, **__):
        """Where kernels of `far`, their slots and gradients lie."""
        arrays = [a for a in jax.live_arrays() if a.shape == (11, 11)]
        seen.append({staged.name_of(d) for a in arrays for d in a.devices()})

    def make():
        model = kp.device_parallel(chain(width=11))
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    callback = keras.callbacks.LambdaCallback(
        on_train_begin=look, on_train_batch_end=look
    )
    with keras.device(staged.HOST):
        make().save_weights(tmp_path / "a.weights.h5")
        model = make()
        look()
        model.load_weights(tmp_path / "a.weights.h5")
    gc.collect()
    look()
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[callback])
    look()
    assert seen == [{"cpu:0"}] + 6 * [{"gpu:2"}]
    assert_at_home(model)


def with_a_side_input():
    rows, side = keras.Input((6,), name="rows"), keras.Input((3,), name="side")
    with kp.device_scope("gpu:1"):
        x = layers.Dense(4, name="near")(rows)
    with kp.device_scope("cpu:0"):
        y = layers.Dense(4, name="on_cpu")(side)
    return keras.Model([rows, side], layers.Dense(1, name="last")(x * y))


def test_an_input_goes_where_it_was_placed_and_nowhere_else():
    """D04: an explicit place wins over the default, for inputs too."""
    model = kp.device_parallel(with_a_side_input())
    model.compile("sgd", "mse")
    batch = [X, X[:, :3]], Y
    model.train_on_batch(*batch)
    assert staged.home(model.get_layer("on_cpu").kernel) == "cpu:0"
    inputs = {
        (t.shape, t.target.name)
        for t in sent(model, batch=batch)
        if t.source is None and len(t.shape) == 2
    }
    assert inputs == {
        ((24, 6), "gpu:1"),
        ((24, 3), "cpu:0"),
        ((24, 1), "gpu:0"),  # The targets.
    }
    model.predict_on_batch(batch[0])
    predicted = {
        (t.shape, t.target.name)
        for t in sent(model, "predict", (batch[0],))
        if t.source is None
    }
    assert predicted == {((24, 6), "gpu:1"), ((24, 3), "cpu:0")}


def one_table_in_two_scopes():
    table = np.arange(24.0, dtype="float32").reshape(6, 4) / 24
    look_up = layers.Lambda(lambda t: t @ table, name="look_up")
    inputs = keras.Input((6,))
    with kp.device_scope("gpu:1"):
        left = look_up(inputs)
    with kp.device_scope("gpu:2"):
        right = look_up(inputs * 2)
    model = keras.Model(inputs, layers.Dense(1)(left + right))
    model.compile("sgd", "mse")
    return model


def test_constants_lie_on_each_device_that_uses_them(monkeypatch):
    """F01: they are not sent in each step."""
    programs = staged.Programs(monkeypatch)
    model = kp.device_parallel(one_table_in_two_scopes())
    model.train_on_batch(X, Y)
    assert programs.of("look_up", "dot_general") == {"gpu:1", "gpu:2"}
    assert (6, 4) not in {t.shape for t in sent(model)}
    equals_one_device(one_table_in_two_scopes)


def with_lora():
    inputs = keras.Input((6,))
    x = layers.Dense(8, "tanh", name="dense")(inputs)
    x = layers.Dense(8, "tanh", name="dense_2")(x)
    model = keras.Model(inputs, layers.Dense(1, name="last")(x))
    keras.utils.set_random_seed(1)
    model.get_layer("dense").enable_lora(2)
    model.compile("adam", "mse")
    return model


def by_layer(model, _=None):
    return kp.device_parallel(model, {model.get_layer("dense"): "gpu:3"})


def test_placement_is_by_layer_and_not_by_a_pattern_of_names(monkeypatch):
    """J16: the weights of LoRA are with their layer; one like it is not."""
    programs = staged.Programs(monkeypatch)
    model = by_layer(with_lora())
    model.fit(X, Y, verbose=0)
    found = staged.homes(model)
    assert len([path for path in found if "lora" in path]) == 2 * 3
    for path, place in found.items():
        of_layer = re.search(r"\bdense[/_](?!2)", path)
        assert place == ("gpu:3" if of_layer else "gpu:0"), path
    assert programs.of("dense", "dot_general") == {"gpu:3"}
    assert programs.of("dense_2", "dot_general") == {"gpu:0"}
    equals_one_device(with_lora, parallelize=by_layer)


def test_a_key_that_matches_nothing_is_an_error():
    """J17: and what lies where is in the plan."""
    model = chain()
    for key in ("foo.*kernel", "far/kernel", ("far", 1), layers.Dense(1)):
        with pytest.raises(_errors.PlacementError, match="Received: ") as told:
            kp.device_parallel(model, {key: "gpu:3"})
        assert "'near'" in str(told.value) or "'far" in str(told.value)
    plan = kp.plan(kp.device_parallel(model), 12)
    assert json.loads(json.dumps(plan.placement)) == PLACES
    held = {share.device.name: share.weights for share in plan.shares}
    assert held == {"gpu:0": 36, "gpu:1": 4 * 8 * 7, "gpu:2": 4 * 8 * 9}


def test_weights_that_a_callback_changes_count_and_stay():
    """J28: in the middle of `fit`, from an array of whatever device."""

    class Halve(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for variable in self.model.trainable_variables:
                variable.assign(ops.convert_to_numpy(variable) / 2)

    model = kp.device_parallel(helpers.seeded(chain))
    model.fit(
        *(X, Y),
        batch_size=8,
        shuffle=False,
        verbose=0,
        callbacks=[Halve()],
    )
    assert_at_home(model)
    plain = helpers.seeded(chain)
    for start in range(0, 24, 8):
        plain.train_on_batch(X[start : start + 8], Y[start : start + 8])
        for variable in plain.trainable_variables:
            variable.assign(variable / 2)
    helpers.assert_close(helpers.state_of(plain), helpers.state_of(model))


def test_a_callback_computes_on_a_device_that_it_chooses():
    """J07: it evaluates, and `keras.device` says where one operation runs."""
    seen = []

    class Evaluate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            with keras.device("cpu:5"):
                array = ops.ones((2, 3)) @ ops.ones((3, 2))
                loss = self.model.evaluate(X, Y, verbose=0)
            seen.append([loss, self.model.get_weights(), self.model.predict(X)])
            assert staged.name_of(*array.devices()) == "gpu:5"
            if hasattr(self.model, "_keras_parallel"):
                assert_at_home(self.model)

    for parallelize in (lambda m: m, kp.device_parallel):
        model = parallelize(helpers.seeded(chain))
        model.fit(X, Y, epochs=3, verbose=0, callbacks=[Evaluate()])
    for expected, actual in zip(seen[:3], seen[3:]):
        helpers.assert_close(expected, actual)
