"""Reports by users on where parts of a model run, one test for each.

The ids are those of the project's list of reports.
"""

import warnings

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from keras_parallel import _errors
from keras_parallel.engines.jax import _stage_programs

X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
Y = X[:, :1] - X[:, 1:2]


def home(variable):
    """The number of the device on which the array of a variable lies."""
    (device,) = variable.value.devices()
    return device.id


def programs_of(monkeypatch, run):
    """The devices on which `run` executes compiled stages, as they come."""
    found = []
    make = _stage_programs.StagedStep._compile

    def compiled(self, name, stage, donated):
        function = make(self, name, stage, donated)

        def noted(*arguments):
            results = function(*arguments)
            for result in results:
                found.append((stage.place.name, result.devices()))
            return results

        return noted

    monkeypatch.setattr(_stage_programs.StagedStep, "_compile", compiled)
    run()
    return found


def two_dense():
    inputs = keras.Input((6,))
    with kp.device_scope("/GPU:0"):
        x = layers.Dense(8, "tanh", name="on_a")(inputs)
    with kp.device_scope("/GPU:1"):
        outputs = layers.Dense(1, name="on_b")(x)
    return keras.Model(inputs, outputs)


def trained(model, **options):
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0, **options)
    return model


def equal_to_one_device(make, monkeypatch):
    """Trains in stages and on one device; returns the former, and what ran."""
    keras.utils.set_random_seed(0)
    staged = kp.device_parallel(make())
    ran = programs_of(monkeypatch, lambda: trained(staged, epochs=2))
    keras.utils.set_random_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = trained(make(), epochs=2)
    for one, other in zip(plain.variables, staged.variables):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    return staged, ran


def test_weights_and_computation_where_they_were_asked_for(monkeypatch):
    """P01, P02, P04: two layers in two scopes use two devices."""
    model, ran = equal_to_one_device(two_dense, monkeypatch)
    for layer, device in (("on_a", 0), ("on_b", 1)):
        assert {home(v) for v in model.get_layer(layer).variables} == {device}
        slots = [v for v in model.optimizer.variables if layer in v.path]
        assert len(slots) == 4
        assert {home(v) for v in slots} == {device}
    by_place = {}
    for place, devices in ran:
        by_place.setdefault(place, set()).update(d.id for d in devices)
    assert by_place == {"gpu:0": {0}, "gpu:1": {1}}


def shared_in_two_scopes():
    shared = keras.Sequential(
        [keras.Input((6,)), layers.Dense(4, "tanh", name="inside")],
        name="shared",
    )
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    with kp.device_scope("gpu:0"):
        left = shared(a)
    with kp.device_scope("gpu:1"):
        right = shared(b)
    with kp.device_scope("cpu:0"):
        joined = layers.concatenate([left, right], name="joined")
    return keras.Model([a, b], layers.Dense(1, name="head")(joined))


def test_a_report_says_whether_both_devices_compute(monkeypatch):
    """P05: one model called under two scopes, joined on the CPU."""
    model = kp.device_parallel(shared_in_two_scopes())
    plan = kp.plan(model, 8)
    assert plan.placement["shared[0]/inside"] == "gpu:0"
    assert plan.placement["shared[1]/inside"] == "gpu:1"
    assert plan.placement["joined"] == "cpu:0"
    for name in ("gpu:0", "gpu:1", "cpu:0", "inside", "joined"):
        assert name in str(plan)
    model.compile("sgd", "mse")
    ran = programs_of(
        monkeypatch,
        lambda: model.fit([X, X], Y, batch_size=8, verbose=0),
    )
    assert {place for place, _ in ran} == {"gpu:0", "gpu:1", "cpu:0"}
    for place, devices in ran:
        number = {"gpu:0": 0, "gpu:1": 1, "cpu:0": 8}[place]
        assert {d.id for d in devices} == {number}


@pytest.mark.parametrize("name", ["/gpu:42", "/gpu:x", "/cpu:1", "mars:0"])
def test_a_missing_device_is_an_error(name):
    """P05: nothing falls back to another device in silence."""
    with pytest.raises(_errors.DeviceError, match="Received: ") as caught:
        kp.device_scope(name)
    assert name.split(":")[0] in str(caught.value)
    assert "works: " in str(caught.value)


def test_a_scope_of_keras_keeps_its_meaning():
    """P07: `keras.device` says where new tensors lie, and no more."""
    keras.utils.set_random_seed(0)
    with keras.device("cpu:1"):
        layer = layers.Dense(3)
        layer.build((None, 6))
        assert home(layer.kernel) == 1
    inputs = keras.Input((6,))
    with keras.device("cpu:1"):
        x = layers.Dense(4, name="here")(inputs)
    with kp.device_scope("gpu:2"):
        x = layers.Dense(4, name="there")(x)
    model = kp.device_parallel(keras.Model(inputs, layers.Dense(1)(x)))
    placement = kp.plan(model, 8).placement
    assert placement["here"] == "gpu:0" and placement["there"] == "gpu:2"
    trained(model)
    assert home(model.get_layer("here").kernel) == 0
    assert home(model.get_layer("there").kernel) == 2


def test_nothing_is_put_on_one_device_in_silence(monkeypatch):
    """P08: inside one compiled function a device is ignored; stages are not."""
    _, ran = equal_to_one_device(two_dense, monkeypatch)
    assert {place for place, _ in ran} == {"gpu:0", "gpu:1"}
    with pytest.warns(UserWarning, match="they have no effect"):
        two_dense().compile("sgd", "mse")


def with_state():
    inputs = keras.Input((6,))
    with kp.device_scope("gpu:2"):
        x = layers.BatchNormalization(name="norm")(inputs)
        x = layers.Dropout(0.3, seed=5, name="drop")(x)
    with kp.device_scope("gpu:1"):
        outputs = layers.Dense(1, name="head")(x)
    return keras.Model(inputs, outputs)


def test_the_state_of_a_layer_is_placed_too(monkeypatch):
    """P10: moving statistics and seeds lie where their layer runs."""
    model, _ = equal_to_one_device(with_state, monkeypatch)
    norm, drop = model.get_layer("norm"), model.get_layer("drop")
    assert len(norm.variables) == 4
    assert {home(v) for v in norm.variables} == {2}
    assert home(drop.seed_generator.state) == 2
    assert int(np.array(drop.seed_generator.state)[1]) == 6  # Steps taken.
    assert home(model.get_layer("head").kernel) == 1


def nested_scopes():
    inputs = keras.Input((6,))
    with kp.device_scope("cpu:0"):
        x = layers.Dense(4, name="outer")(inputs)
        with kp.device_scope("gpu:1"):
            x = layers.Dense(4, name="inner")(x)
        x = layers.Dense(4, name="outer_again")(x)
    return keras.Model(inputs, layers.Dense(1, name="free")(x))


def test_the_innermost_scope_wins(monkeypatch):
    """P11: weights and computation, also after the inner scope has ended."""
    model, _ = equal_to_one_device(nested_scopes, monkeypatch)
    homes = {
        layer.name: {home(v) for v in layer.variables}
        for layer in model.layers
        if layer.variables
    }
    assert homes == {
        "outer": {8},
        "inner": {1},
        "outer_again": {8},
        "free": {0},
    }
