"""To which calls a scope belongs."""

import threading

import keras
import pytest
from keras import layers

import keras_parallel as kp
from keras_parallel.graph.calls import calls_of
from keras_parallel.graph.placement import Placement
from keras_parallel.planning import Device

DEFAULT = Device("gpu", 7)


def placed(model, asked_for=None):
    """Name and index of each call -> its device."""
    placement = Placement(calls_of(model), asked_for or {}, DEFAULT)
    return {
        (call.name, call.index): placement.device_of(call).name
        for top in placement.calls
        for call in top.all()
    }


def test_a_layer_called_in_two_scopes_runs_on_both():
    inputs = keras.Input((3,))
    shared = layers.Dense(3, name="shared")
    with kp.device_scope("/gpu:0"):
        x = shared(inputs)
    with kp.device_scope("/device:GPU:1"):
        x = shared(x)
    x = shared(x)
    assert placed(keras.Model(inputs, x)) == {
        ("shared", 0): "gpu:0",
        ("shared", 1): "gpu:1",
        ("shared", 2): "gpu:7",
    }


def test_the_innermost_scope_counts():
    inputs = keras.Input((3,))
    with kp.device_scope("gpu:0"):
        with kp.device_scope("gpu:1"):
            x = layers.Dense(3, name="inner")(inputs)
        x = layers.Dense(3, name="outer")(x)
    found = placed(keras.Model(inputs, x))
    assert found == {("inner", 0): "gpu:1", ("outer", 0): "gpu:0"}


def test_operations_have_scopes_too():
    inputs = keras.Input((3,))
    with kp.device_scope("gpu:2"):
        x = keras.ops.relu(inputs) * 2
    assert set(placed(keras.Model(inputs, x)).values()) == {"gpu:2"}


def test_an_exception_ends_the_scope():
    with pytest.raises(KeyError):
        with kp.device_scope("gpu:1"):
            raise KeyError
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layers.Dense(1, name="after")(inputs))
    assert placed(model) == {("after", 0): "gpu:7"}


def test_scopes_of_another_thread_do_not_count():
    entered, done = threading.Event(), threading.Event()

    def elsewhere():
        with kp.device_scope("gpu:3"):
            entered.set()
            done.wait(60)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    entered.wait(60)
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layers.Dense(1, name="here")(inputs))
    done.set()
    thread.join()
    assert placed(model) == {("here", 0): "gpu:7"}


def nested():
    inputs = keras.Input((3,))
    x = layers.Dense(3, name="free")(inputs)
    with kp.device_scope("gpu:2"):
        x = layers.Dense(3, name="bound")(x)
    return keras.Model(inputs, x, name="inner")


def test_the_scopes_of_an_inner_model_win():
    inner, inputs = nested(), keras.Input((3,))
    with kp.device_scope("gpu:1"):
        outputs = inner(inputs)
    assert placed(keras.Model(inputs, outputs)) == {
        ("inner", 0): "gpu:1",
        ("inner/free", 0): "gpu:1",
        ("inner/bound", 0): "gpu:2",
    }


def test_a_sequential_called_in_a_scope():
    inputs = keras.Input((3,))
    stack = keras.Sequential([layers.Dense(3, name="dense")], name="stack")
    with kp.device_scope("gpu:1"):
        outputs = stack(inputs)
    assert set(placed(keras.Model(inputs, outputs)).values()) == {"gpu:1"}


@pytest.mark.parametrize("built", [True, False])
def test_layers_added_to_a_sequential_in_scopes(built):
    """Each keeps its scope, though Keras makes the graph anew each time."""
    with kp.device_scope("gpu:5"):
        model = keras.Sequential([keras.Input((3,))] if built else [])
    for i in range(3):
        with kp.device_scope(f"gpu:{i}"):
            model.add(layers.Dense(3, name=f"dense_{i}"))
    model.add(layers.Dense(1, name="free"))
    model.build((None, 3))
    assert placed(model) == {
        **{(f"dense_{i}", 0): f"gpu:{i}" for i in range(3)},
        ("free", 0): "gpu:7",
    }


def test_a_model_of_a_part_of_a_graph_keeps_the_scopes():
    inputs = keras.Input((3,))
    with kp.device_scope("gpu:0"):
        first = layers.Dense(4, name="first")(inputs)
    with kp.device_scope("gpu:1"):
        second = layers.Dense(5, name="second")(first)
    assert placed(keras.Model(first, second)) == {("second", 0): "gpu:1"}
    assert placed(keras.Model(inputs, second)) == {
        ("first", 0): "gpu:0",
        ("second", 0): "gpu:1",
    }


@pytest.mark.parametrize(
    "name", ["gpu:99", "tpu:0", "gpu", "", None, 0, ["gpu:0"]]
)
def test_a_device_that_is_not_there(name):
    with pytest.raises(kp._errors.DeviceError, match="Received: ") as caught:
        with kp.device_scope(name):
            pytest.fail("the scope was entered")
    assert "works: " in str(caught.value)


# Placement


def chain():
    inputs = x = keras.Input((3,))
    shared = layers.Dense(3, name="shared")
    for i in range(2):
        x = shared(layers.Dense(3, name=f"block_{i}")(x))
    return keras.Model(inputs, x)


def test_keys_of_a_placement():
    model, (one, two) = chain(), (Device("gpu", 1), Device("gpu", 2))
    assert placed(
        model,
        {
            "block_1": one,
            model.get_layer("block_0"): two,
            "shared": one,
            ("shared", 1): two,
        },
    ) == {
        ("block_0", 0): "gpu:2",
        ("shared", 0): "gpu:1",
        ("block_1", 0): "gpu:1",
        ("shared", 1): "gpu:2",
    }
    assert placed(model, {"shared[0]": two, "shared": one}) == {
        ("block_0", 0): "gpu:7",
        ("shared", 0): "gpu:2",
        ("block_1", 0): "gpu:7",
        ("shared", 1): "gpu:1",
    }


def test_a_placement_goes_through_json():
    model = chain()
    asked = {("shared", 1): Device("gpu", 2), "block_0": Device("gpu", 1)}
    given = Placement(calls_of(model), asked, DEFAULT).to_dict()
    assert given == {
        "block_0": "gpu:1",
        "shared[0]": "gpu:7",
        "block_1": "gpu:7",
        "shared[1]": "gpu:2",
    }
    again = {key: Device.parse(name) for key, name in given.items()}
    assert placed(chain(), again) == placed(model, asked)


@pytest.mark.parametrize(
    "key", ["block_3", ("shared", 2), ("shared", "1"), layers.Dense(1), 3]
)
def test_a_key_that_names_no_call(key):
    with pytest.raises(kp._errors.PlacementError) as caught:
        placed(chain(), {key: DEFAULT})
    near = "shared[1]" if isinstance(key, tuple) else "block_0"
    assert "Received: " in str(caught.value)
    assert near in str(caught.value)


def test_variables_live_where_they_are_used_first():
    inputs = keras.Input((3,))
    shared = layers.Dense(3)
    with kp.device_scope("gpu:1"):
        x = shared(inputs)
    with kp.device_scope("gpu:2"):
        x = layers.BatchNormalization()(shared(x))
    model = keras.Model(inputs, x)
    placement = Placement(calls_of(model), {}, DEFAULT)
    homes = [placement.home_of(v).name for v in model.variables]
    assert homes == ["gpu:1"] * 2 + ["gpu:2"] * 4
    other = keras.Variable(1.0)
    assert placement.home_of(other) == DEFAULT
