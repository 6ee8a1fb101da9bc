"""`kp.plan` and `kp.check` of a device-parallel model."""

import json

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from tests.helpers import compilations

pytestmark = pytest.mark.filterwarnings("ignore:.*calls in device scopes")


def towers(width=5, steps=7):
    a, b = keras.Input((steps, 4), name="a"), keras.Input((steps, 4), name="b")
    shared = layers.LSTM(width, name="shared")
    with kp.device_scope("gpu:0"):
        left = shared(a)
    with kp.device_scope("gpu:1"):
        right = shared(b)
    with kp.device_scope("cpu:0"):
        merged = layers.Concatenate(name="merged")([left, right])
    same = layers.Dense(1, "sigmoid", name="same")(merged)
    return keras.Model([a, b], same, name="towers")


def parallel(model=None, **options):
    model = kp.device_parallel(model or towers(), **options)
    model.compile("adam", "binary_crossentropy", metrics=["mae"])
    return model


def values(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [np.array(v) for v in variables]


def test_nothing_runs_for_a_plan():
    model = parallel()
    keras.utils.set_random_seed(1)
    drawn = keras.random.uniform((1,))
    keras.utils.set_random_seed(1)
    before, built = values(model), model.optimizer.built
    with compilations() as compiled:
        plan = kp.plan(model, 16)
    assert not compiled
    assert model.optimizer.built == built
    for one, other in zip(before, values(model), strict=True):
        np.testing.assert_array_equal(one, other)
    assert keras.random.uniform((1,)) == drawn
    assert [s.device.name for s in plan.stages] == [
        *("gpu:0", "gpu:1", "cpu:0", "gpu:0")
    ]


def test_what_each_device_holds():
    """By hand: an LSTM of 5 units on 4 features, a dense layer on 10."""
    plan = kp.plan(parallel(), 16)
    lstm, dense = 4 * (4 * 20 + 5 * 20 + 20), 4 * (10 + 1)
    found = {share.device.name: share for share in plan.shares}
    assert list(found) == ["gpu:0", "gpu:1", "cpu:0"]
    assert found["gpu:0"].weights == found["gpu:0"].gradients == lstm + dense
    assert found["gpu:1"].weights == found["gpu:1"].gradients == lstm
    # Adam has two slots for each weight, and two numbers.
    assert found["gpu:0"].optimizer == 2 * (lstm + dense) + 8
    assert found["gpu:1"].optimizer == found["cpu:0"].weights == 0
    assert {share.rows for share in plan.shares} == {16}
    sent = {
        (t.what, t.purpose, t.source and t.source.name, t.target.name): t.bytes
        for t in plan.transfers
    }
    assert sent["b", "input", None, "gpu:1"] == 16 * 7 * 4 * 4
    assert sent["shared[1]", "activation", "gpu:1", "cpu:0"] == 16 * 5 * 4
    assert sent["shared[1]", "gradient", "cpu:0", "gpu:1"] == 16 * 5 * 4
    assert sent["shared/lstm_cell", "weight", "gpu:0", "gpu:1"] == lstm
    assert sent["shared/lstm_cell", "gradient", "gpu:1", "gpu:0"] == lstm
    assert plan.losses["same"].name == "gpu:0"
    # Of 7 steps, products with the inputs and with the state.
    products = 2 * 16 * 7 * (4 * 20 + 5 * 20)
    assert [s.flops for s in plan.stages] == [
        *(products, products, 0, 2 * 16 * 10)
    ]
    assert 1.9 < plan.speedup_bound < 2


def test_a_placement_goes_through_json_and_back():
    plan = kp.plan(parallel(), 16)
    placement = json.loads(json.dumps(plan.to_dict()))["placement"]
    assert placement == {
        "shared[0]": "gpu:0",
        "shared[1]": "gpu:1",
        "merged": "cpu:0",
        "same": "gpu:0",
    }
    config = keras.Model.from_config(towers().get_config())
    again = kp.plan(parallel(config, placement=placement), 16)
    assert again.to_dict()["stages"] == plan.to_dict()["stages"]
    assert again.to_dict()["transfers"] == plan.to_dict()["transfers"]


def test_the_sentences():
    text = str(kp.plan(parallel(), 16))
    assert "Plan of 'towers' on 3 virtual devices, batches of 16 rows" in text
    for said in (
        "on gpu:0, the default: same.",
        "shared/lstm_cell are sent to",
        "losses, metrics",
    ):
        assert said in " ".join(text.split()), said
    uncompiled = str(kp.plan(kp.device_parallel(towers())))
    assert "not compiled" in uncompiled

    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, **_):
            return keras.ops.mean((y - y_pred) ** 2)

    inputs = keras.Input((4,))
    own = Own(inputs, layers.Dense(1)(inputs))
    own = kp.device_parallel(own, default="gpu:0")
    own.compile("sgd")
    assert "computes its loss itself" in str(kp.plan(own))


def test_state_that_is_updated_in_an_order_is_named():
    a, b = keras.Input((4,)), keras.Input((4,))
    norm = layers.BatchNormalization(name="norm")
    with kp.device_scope("gpu:1"):
        left = norm(a)
    with kp.device_scope("gpu:2"):
        right = norm(b)
    model = kp.device_parallel(keras.Model([a, b], left + right))
    text = " ".join(str(kp.plan(model)).split())
    assert (
        "The state of 'norm' lives on gpu:1 and is updated in the order of 2 "
        "calls: norm[0], norm[1]." in text
    )


def test_inputs_of_any_length():
    inputs = keras.Input((None, 3))
    with kp.device_scope("gpu:1"):
        x = layers.Conv1D(4, 2)(inputs)
    outputs = layers.GlobalAveragePooling1D()(x)
    plan = kp.plan(kp.device_parallel(keras.Model(inputs, outputs)), 8)
    assert plan.shares[0].activations is None
    assert plan.critical_path == () and plan.speedup_bound is None
    assert "8 x ? x 4 float32" in str(plan)
    assert "shapes of its inputs are not known" in " ".join(str(plan).split())
    json.dumps(plan.to_dict())


def test_a_model_within_a_model_that_is_called_in_two_scopes():
    inputs = keras.Input((4,))
    dense = layers.Dense(4, name="dense")(inputs)
    inner = keras.Model(inputs, dense, name="inner")
    a, b = keras.Input((4,)), keras.Input((4,))
    with kp.device_scope("gpu:1"):
        left = inner(a)
    with kp.device_scope("gpu:2"):
        right = inner(b)
    model = kp.device_parallel(keras.Model([a, b], left * right))
    plan = kp.plan(model, 8)
    assert plan.placement["inner[0]/dense"] == "gpu:1"
    assert plan.placement["inner[1]/dense"] == "gpu:2"
    model.compile("sgd", "mse")
    x = np.ones((8, 4), "float32")
    model.train_on_batch([x, x], x)
    execution = model._keras_parallel.execution
    program = execution.program(model, "train", ([x, x], x))
    computing = {t.source and t.source.name for t in program.transfers}
    assert {"gpu:1", "gpu:2"} <= computing
    copy = keras.Model.from_config(model.get_config())
    again = kp.plan(kp.device_parallel(copy, plan.placement), 8)
    assert again.placement == plan.placement


def batches(rows, *shape):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, *shape)).astype("float32")
    return x, rng.integers(0, 2, size=(rows, 1)).astype("float32")


def test_a_check_of_two_towers():
    x, y = batches(32, 7, 4)
    model = parallel()
    before = values(model)
    report = kp.check(model, [x, x[::-1].copy()], y, batch_size=16, steps=3)
    assert report.ok and report.equal and report.compared, str(report)
    assert report.devices == ("gpu:0", "gpu:1", "cpu:0")
    assert report.rows_each == report.batch_size == 16
    assert report.compilations == 1
    assert report.program.parts > 3
    assert {row.kind for row in report.against_plan} >= {
        "gpu:0 to cpu:0",
        "gpu:1 to gpu:0",
    }
    text = str(report)
    assert "go from device to device" in text and "between devices" in text
    json.dumps(report.to_dict())
    for one, other in zip(before, values(model)):
        np.testing.assert_array_equal(one, other)


def test_a_check_of_a_chain():
    """That it gains no speed is known before; what limits it is measured."""
    inputs = x = keras.Input((64,))
    for device in ("gpu:0", "gpu:1"):
        with kp.device_scope(device):
            for _ in range(3):
                x = layers.Dense(64, "relu")(x)
    outputs = layers.Dense(1, "sigmoid")(x)
    x, y = batches(64, 64)
    model = parallel(keras.Model(inputs, outputs))
    assert kp.plan(model, 32).speedup_bound == pytest.approx(1.0)
    report = kp.check(model, x, y, batch_size=32, steps=3)
    assert report.ok, str(report)
    assert report.program.parts > 1
    assert report.bottleneck.name != "more than planned", str(report)
