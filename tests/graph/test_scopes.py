"""To which calls a scope belongs."""

import threading
from contextlib import nullcontext

import keras
import numpy as np
import pytest
from keras import layers
from keras.src.models import functional

import keras_parallel as kp
from keras_parallel.graph import scopes
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
    shared, inputs = layers.Dense(3, name="shared"), keras.Input((3,))
    entered, done, built = threading.Event(), threading.Event(), []

    def elsewhere():
        with kp.device_scope("gpu:3"):
            entered.set()
            done.wait(60)
            built.append(keras.Model(inputs, shared(inputs)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    entered.wait(60)
    model = keras.Model(inputs, shared(inputs))
    done.set()
    thread.join()
    assert placed(model) == {("shared", 0): "gpu:7"}
    assert placed(built[0]) == {("shared", 0): "gpu:3"}


def test_a_thread_that_builds_while_another_takes_a_part(monkeypatch):
    """The nodes of the one are not taken for those of the other."""
    inputs = keras.Input((3,))
    with kp.device_scope("gpu:0"):
        x = layers.Dense(3, name="first")(inputs)
    with kp.device_scope("gpu:1"):
        last = layers.Dense(3, name="last")(layers.ReLU(name="relu")(x))
    find = functional.find_nodes_by_inputs_and_outputs
    built = []

    def build():
        other = keras.Input((3,))
        with kp.device_scope("gpu:5"):
            outputs = layers.Dense(3, name="other")(other)
        built.append(keras.Model(other, outputs))

    def find_meanwhile(*args):
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
        return find(*args)

    monkeypatch.setattr(
        functional, "find_nodes_by_inputs_and_outputs", find_meanwhile
    )
    part = keras.Model(x, last)
    assert placed(part) == {("relu", 0): "gpu:1", ("last", 0): "gpu:1"}
    assert len(built) == 2
    assert placed(built[0]) == {("other", 0): "gpu:5"}


def test_a_scope_may_be_entered_again_and_decorate_a_function():
    inputs, scope = keras.Input((3,)), kp.device_scope("gpu:1")

    @kp.device_scope("gpu:2")
    def block(x, name):
        return layers.Dense(3, name=name)(x)

    with scope:
        x = layers.Dense(3, name="a")(inputs)
        with scope, kp.device_scope("gpu:3"):
            x = layers.Dense(3, name="b")(x)
        x = layers.Dense(3, name="c")(x)
    x = layers.Dense(3, name="d")(block(x, "one"))
    with scope:
        x = block(layers.Dense(3, name="e")(x), "two")
    assert placed(keras.Model(inputs, x)) == {
        ("a", 0): "gpu:1",
        ("b", 0): "gpu:3",
        ("c", 0): "gpu:1",
        ("one", 0): "gpu:2",
        ("d", 0): "gpu:7",
        ("e", 0): "gpu:1",
        ("two", 0): "gpu:2",
    }


def test_scopes_that_do_not_end_in_order():
    """Two generators that each build within a scope, in turn."""

    def build(device):
        with kp.device_scope(device):
            x = yield
            while x is not None:
                x = yield layers.Dense(3)(x)

    inputs = keras.Input((3,))
    one, two = build("gpu:1"), build("gpu:2")
    next(one), next(two)
    x = two.send(inputs)
    with pytest.raises(StopIteration):
        one.send(None)
    x = two.send(x)
    with pytest.raises(StopIteration):
        two.send(None)
    model = keras.Model(inputs, layers.Dense(1)(x))
    assert list(placed(model).values()) == ["gpu:2", "gpu:2", "gpu:7"]


ARRAY = np.ones((2, 3))
BUILT = keras.Sequential([keras.Input((3,)), layers.Dense(1)])


@pytest.mark.parametrize(
    "use",
    [
        lambda: layers.Dense(3),
        lambda: layers.Dense(3)(ARRAY),
        lambda: BUILT(ARRAY),
        lambda: BUILT.predict(ARRAY, verbose=0),
    ],
    ids=["making a layer", "a layer", "a model", "predict"],
)
def test_a_scope_that_places_nothing_warns(use):
    with pytest.warns(UserWarning, match=r"device_scope\('gpu:1'\)") as caught:
        with kp.device_scope("/gpu:1"):
            use()
    assert caught[0].filename == __file__
    assert "What works: `with device_scope(" in str(caught[0].message)


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
    "name",
    [
        *("gpu:99", "/gpu:x", "cpu:9", "tpu:0", "cuda:0", "gpu", "", "gpu:0\n"),
        *("/job:worker/replica:0/task:3/device:GPU:0", None, 0, ["gpu:0"]),
    ],
)
def test_a_device_that_is_not_there(name):
    with pytest.raises(kp._errors.DeviceError, match="Received: ") as caught:
        kp.device_scope(name)
    assert "works: " in str(caught.value)
    assert ("virtual" in str(caught.value)) == (name == "gpu:99")


@pytest.mark.parametrize(
    "name",
    [
        *("gpu:1", "/gpu:1", "/GPU:1", "/device:GPU:1", "device:gpu:1"),
        "/job:localhost/replica:0/task:0/device:GPU:1",
    ],
)
def test_spellings_of_a_device(name):
    inputs = keras.Input((3,))
    with kp.device_scope(name):
        outputs = layers.Dense(1, name="dense")(inputs)
    assert placed(keras.Model(inputs, outputs)) == {("dense", 0): "gpu:1"}


def two_parts():
    """Scopes in a functional model, in one within it, and in a `Sequential`."""
    stack = keras.Sequential([], name="stack")
    for i in range(2):
        with kp.device_scope(f"gpu:{3 + i}"):
            stack.add(layers.Dense(3, name=f"in_stack_{i}"))
    inputs = keras.Input((3,))
    with kp.device_scope("gpu:0"):
        x = stack(inputs)
    x = nested()(x)
    with kp.device_scope("gpu:1"):
        x = layers.Dense(3, name="last")(x) + 1
    return keras.Model(inputs, x)


@pytest.mark.parametrize(
    "how", [{}, {"recursive": True, "clone_function": None}], ids=str
)
def test_a_clone_keeps_the_scopes(how):
    model = two_parts()
    if how:
        how["clone_function"] = lambda layer: type(layer).from_config(
            layer.get_config()
        )
    clone = keras.models.clone_model(model, **how)
    assert clone.get_layer("last") is not model.get_layer("last")
    assert placed(clone) == placed(model)
    assert {*placed(model).values()} >= {f"gpu:{i}" for i in range(5)}
    with pytest.warns(UserWarning, match="no effect"):
        clone.compile("sgd", "mse")


def test_a_clone_of_a_sequential_keeps_the_scopes():
    model = keras.Sequential([keras.Input((3,))])
    for i in range(2):
        with kp.device_scope(f"gpu:{i}"):
            model.add(layers.Dense(3, name=f"dense_{i}"))
    model.add(layers.ReLU(name="free"))
    clone = keras.models.clone_model(model)
    expected = {"dense_0": "gpu:0", "dense_1": "gpu:1", "free": "gpu:7"}
    assert placed(clone) == {(k, 0): v for k, v in expected.items()}
    clone.pop()
    clone.add(layers.ReLU(name="after"))
    expected = {"dense_0": "gpu:0", "dense_1": "gpu:1", "after": "gpu:7"}
    assert placed(clone) == {(k, 0): v for k, v in expected.items()}


def test_a_clone_without_some_calls_keeps_the_other_scopes():
    clone = keras.models.clone_model(
        chain(scoped=True),
        call_function=lambda layer, x: (
            x if layer.name == "block_0" else layer(x)
        ),
    )
    assert placed(clone) == {
        ("shared", 0): "gpu:7",
        ("block_1", 0): "gpu:1",
        ("shared", 1): "gpu:7",
    }


def test_a_clone_in_a_scope():
    with kp.device_scope("gpu:5"):
        clone = keras.models.clone_model(nested())
    assert placed(clone) == {("free", 0): "gpu:5", ("bound", 0): "gpu:2"}


@pytest.mark.filterwarnings("ignore:.*no effect")
def test_a_clone_that_is_compiled_warns_where_it_is_made():
    model = nested()
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="no effect") as caught:
        keras.models.clone_model(model)
    assert caught[-1].filename == __file__


def test_a_model_up_to_a_layer_keeps_the_scopes():
    model = two_parts()
    output = model.get_layer("stack").output
    part = keras.Model(model.inputs, output)
    assert placed(part).items() <= placed(model).items()
    assert {*placed(part).values()} == {"gpu:0", "gpu:3", "gpu:4"}


def test_a_sequential_that_is_built_by_a_call_in_a_scope():
    """Its second call runs in the scope of that, not of the first."""
    stack = keras.Sequential([layers.Dense(3, name="dense")], name="stack")
    scopes._of_added.pop(stack, None)  # As if no scope had been entered yet.
    inputs = keras.Input((3,))
    with kp.device_scope("gpu:0"):
        x = stack(inputs)
    with kp.device_scope("gpu:1"):
        x = stack(x)
    model = keras.Model(inputs, x)
    placement = Placement(calls_of(model), {}, DEFAULT)
    found = [placement.device_of(call).name for call in placement.leaves()]
    assert found == ["gpu:0", "gpu:1"]


# Placement


def chain(scoped=False):
    inputs = x = keras.Input((3,))
    shared = layers.Dense(3, name="shared")
    for i in range(2):
        block = layers.Dense(3, name=f"block_{i}")
        with kp.device_scope(f"gpu:{i}") if scoped else nullcontext():
            x = block(x)
        x = shared(x)
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
