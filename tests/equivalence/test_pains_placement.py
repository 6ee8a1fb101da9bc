"""Reports by users on where parts of a model run, one test for each.

The ids are those of the project's list of reports.
"""

import operator
import warnings

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

X, Y = models.regression(24, np.random.default_rng(0))


@pytest.fixture
def programs(monkeypatch):
    return staged.Programs(monkeypatch)


def compiled(make):
    with warnings.catch_warnings():
        # Made parallel after it is compiled, as `load_model` compiles too.
        warnings.filterwarnings("ignore", ".*calls in device scopes")
        model = make()
        model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def in_stages(make, x=X):
    """A model that was trained, evaluated and asked in stages."""
    keras.utils.set_random_seed(0)
    model = kp.device_parallel(compiled(make))
    model.fit(x, Y, batch_size=8, epochs=2, verbose=0)
    model.evaluate(x, Y, batch_size=8, verbose=0)
    model.predict(x, batch_size=8, verbose=0)
    return model


def equals_one_device(make, x=X):
    def batches():
        for start, end in ((0, 12), (12, 24), (0, 5)):
            rows = operator.itemgetter(slice(start, end))
            yield keras.tree.map_structure(rows, (x, Y))

    kp.testing.assert_trains_like_one_device(
        lambda: compiled(make),
        batches,
        devices="all",
        steps=6,
        parallelize=lambda model, _: kp.device_parallel(model),
    )


def two_dense():
    inputs = keras.Input((6,))
    with kp.device_scope("/GPU:1"):
        x = layers.Dense(8, "tanh", name="on_a")(inputs)
    with kp.device_scope("/GPU:2"):
        outputs = layers.Dense(1, name="on_b")(x)
    return keras.Model(inputs, outputs)


def test_weights_and_computation_where_they_were_asked_for(programs):
    """P01, P02, P04: two layers in two scopes use two devices."""
    model = in_stages(two_dense)
    for layer, device in (("on_a", "gpu:1"), ("on_b", "gpu:2")):
        weights = model.get_layer(layer).variables
        slots = [v for v in model.optimizer.variables if layer in v.path]
        assert len(weights) == 2 and len(slots) == 4
        assert {staged.home(v) for v in (*weights, *slots)} == {device}
        for step in ("train", "test", "predict"):
            assert programs.of(layer, "dot_general", step) == {device}
            assert programs.of(layer, step=step) == {device}
    equals_one_device(two_dense)


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


def test_a_report_says_whether_both_devices_compute(programs, tmp_path):
    """P05: one model called under two scopes, joined on the CPU."""
    pair = [X, X[::-1].copy()]
    model = in_stages(shared_in_two_scopes, pair)
    plan = kp.plan(model, 8)
    assert plan.placement == {
        "shared[0]/inside": "gpu:0",
        "shared[1]/inside": "gpu:1",
        "joined": "cpu:0",
        "head": "gpu:0",
    }
    for name in ("gpu:0", "gpu:1", "cpu:0", "inside", "joined"):
        assert name in str(plan)
    assert programs.of("inside", "dot_general") == {"gpu:0", "gpu:1"}
    assert programs.of("joined") == {"cpu:0"}
    report = kp.check(model, pair, Y, batch_size=8, steps=2)
    assert report.ok and report.devices == ("gpu:0", "gpu:1", "cpu:0")
    with kp.trace(tmp_path / "run.json") as trace:
        model.fit(pair, Y, batch_size=24, verbose=0)
    ran = {event.device for event in trace.timeline.events if event.program}
    assert {"gpu:0", "gpu:1", "cpu:0"} <= ran
    equals_one_device(shared_in_two_scopes, pair)


@pytest.mark.parametrize("name", ["/gpu:42", "/gpu:x", "/cpu:1", "mars:0"])
def test_a_missing_device_is_an_error(name):
    """P05, G38: it says what there is; nothing falls back in silence."""
    with pytest.raises(_errors.DeviceError, match="Received: ") as caught:
        kp.device_scope(name)
    assert name.split(":")[0] in str(caught.value)
    assert "works: " in str(caught.value)
    if name in ("/gpu:42", "/cpu:1"):
        assert "'gpu:7', 'cpu:0'" in str(caught.value)


def test_a_scope_of_keras_keeps_its_meaning():
    """P07: `keras.device` says where new arrays lie, and no more.

    It takes JAX's names, in which `cpu:1` is the device that is `gpu:1` here.
    """
    with keras.device("cpu:1"):
        layer = layers.Dense(3)
        layer.build((None, 6))
        assert staged.home(layer.kernel) == "gpu:1"
        assert staged.name_of(*ops.ones(3).devices()) == "gpu:1"
    inputs = keras.Input((6,))
    with keras.device("cpu:1"):
        x = layers.Dense(4, name="here")(inputs)
    with kp.device_scope("gpu:2"):
        x = layers.Dense(4, name="there")(x)
    model = kp.device_parallel(keras.Model(inputs, layers.Dense(1)(x)))
    placement = kp.plan(model, 8).placement
    assert placement["here"] == "gpu:0" and placement["there"] == "gpu:2"
    model.compile("adam", "mse")
    with keras.device("cpu:3"):
        model.fit(X, Y, verbose=0)
    assert staged.home(model.get_layer("here").kernel) == "gpu:0"
    assert staged.home(model.get_layer("there").kernel) == "gpu:2"
    assert "gpu:3" not in {*staged.homes(model).values()}


def test_nothing_is_put_on_one_device_in_silence(programs):
    """P08: each compiled function is of one device, and there are several."""
    model = in_stages(two_dense)
    execution = model._keras_parallel.execution
    program = execution.program(model, "train", (X, Y))
    assert program.parts > 1
    crossings = {(t.source, t.target) for t in program.transfers}
    names = {(a and a.name, b.name) for a, b in crossings}
    assert {("gpu:1", "gpu:2"), ("gpu:2", "gpu:1")} <= names
    with pytest.warns(UserWarning, match="they have no effect"):
        two_dense().compile("sgd", "mse")


class Puts(layers.Layer):
    """Asks for a device itself, in its `call` or in a loop there."""

    def __init__(self, device, in_loop=False):
        super().__init__(name="puts")
        self.wanted, self.in_loop = device, in_loop

    def call(self, x):
        def once(_, x):
            return jax.device_put(x, self.wanted) * 2

        return jax.lax.fori_loop(0, 2, once, x) if self.in_loop else once(0, x)


@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize("wanted", [1, 3])
def test_a_device_that_a_layer_asks_for_itself(wanted, in_loop):
    """P08: `device_put` inside a compiled function warns, and names it."""

    def make():
        inputs = keras.Input((6,))
        with kp.device_scope("gpu:1"):
            x = Puts(jax.devices()[wanted], in_loop)(inputs)
        return keras.Model(inputs, layers.Dense(1)(x))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        in_stages(make)
    told = [str(w.message) for w in caught if "device_put" in str(w.message)]
    if wanted == 1:
        assert not told
    else:
        assert told
        for text in told:
            assert "inside 'puts'" in text and "one device, gpu:1" in text


@pytest.mark.parametrize("wanted", [1, 3])
def test_a_sharding_that_a_layer_asks_for_itself(wanted):
    """P08, too: JAX would compile the whole part for that device."""
    inputs = keras.Input((6,))
    with kp.device_scope("gpu:1"):
        place = jax.sharding.SingleDeviceSharding(jax.devices()[wanted])
        x = Puts(place)(inputs)
    model = kp.device_parallel(keras.Model(inputs, layers.Dense(1)(x)))
    model.compile("sgd", "mse")
    if wanted == 1:
        model.fit(X, Y, verbose=0)
        return
    with pytest.raises(_errors.RefusedModelError, match="'puts'") as caught:
        model.fit(X, Y, verbose=0)
    helpers.assert_teaches(caught.value)
    model.set_weights(model.get_weights())  # They are still there.


def with_state():
    inputs = keras.Input((6,))
    with kp.device_scope("gpu:1"):
        x = layers.Dense(12, use_bias=False, name="before")(inputs)
    with kp.device_scope("gpu:2"):
        x = layers.BatchNormalization(name="norm")(x)
        x = layers.Dropout(0.3, seed=5, name="drop")(x)
    with kp.device_scope("gpu:1"):
        outputs = layers.Dense(1, name="head")(x)
    return keras.Model(inputs, outputs)


def test_the_state_of_a_layer_is_placed_too(programs):
    """P10: moving statistics and seeds lie where their layer runs."""
    model = in_stages(with_state)
    norm, drop = model.get_layer("norm"), model.get_layer("drop")
    seed = drop.seed_generator.state
    assert len(norm.variables) == 4
    state = [*norm.variables, seed]
    assert {staged.home(v) for v in state} == {"gpu:2"}
    assert int(np.array(seed)[1]) == 6  # Steps taken.
    assert staged.home(model.get_layer("head").kernel) == "gpu:1"
    # Random bits are drawn, and statistics are computed, there.
    assert programs.of("norm") == programs.of("drop") == {"gpu:2"}
    assert programs.of("drop", step="train")
    execution = model._keras_parallel.execution
    program = execution.program(model, "train", (X, Y))
    paths = {v.path for v in state}
    assert not paths & {transfer.what for transfer in program.transfers}
    equals_one_device(with_state)


def nested_scopes():
    inputs = keras.Input((6,))
    with kp.device_scope("cpu:0"):
        x = layers.Dense(4, name="outer")(inputs)
        with kp.device_scope("gpu:1"):
            x = layers.Dense(4, name="inner")(x)
        x = layers.Dense(4, name="outer_again")(x)
    return keras.Model(inputs, layers.Dense(1, name="free")(x))


def test_the_innermost_scope_wins(programs):
    """P11: weights and computation, also after the inner scope has ended."""
    model = in_stages(nested_scopes)
    places = {
        "outer": "cpu:0",
        "inner": "gpu:1",
        "outer_again": "cpu:0",
        "free": "gpu:0",
    }
    assert kp.plan(model).placement == places
    for name, place in places.items():
        weights = model.get_layer(name).variables
        assert {staged.home(v) for v in weights} == {place}
        assert programs.of(name, "dot_general") == {place}
    equals_one_device(nested_scopes)
