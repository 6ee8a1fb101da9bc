"""What `engines/base.py` promises of stages, held against every engine."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from keras_parallel.engines import active_engine
from keras_parallel.engines.fake import FakeEngine
from keras_parallel.graph import calls as graph_calls
from keras_parallel.strategies import device as device_module

pytestmark = pytest.mark.filterwarnings("ignore:.*calls in device scopes")

ENGINES = {"fake": lambda: FakeEngine(8), "active": active_engine}
X, Y = np.ones((8, 3), "float32"), np.zeros((8, 2), "float32")


@pytest.fixture(params=list(ENGINES))
def engine(request, monkeypatch):
    made = ENGINES[request.param]()
    monkeypatch.setattr(device_module, "active_engine", lambda: made)
    return made


def make_model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    x = layers.Dense(4, name="first")(inputs)
    with kp.device_scope("gpu:1"):
        x = layers.BatchNormalization(name="norm")(x)
    return keras.Model(inputs, layers.Dense(2, name="last")(x))


def compiled(model):
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def test_training_is_that_of_one_device(engine):
    plain, parallel = compiled(make_model()), make_model()
    parallel = compiled(kp.device_parallel(parallel))
    for model in (plain, parallel):
        model.fit(X, Y, batch_size=3, epochs=2, verbose=0)
    for one, other in zip(
        [*plain.variables, *plain.optimizer.variables],
        [*parallel.variables, *parallel.optimizer.variables],
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        plain.predict(X, verbose=0), parallel.predict(X, verbose=0), rtol=1e-5
    )


def test_what_runs_on_a_device_may_be_nested(engine):
    devices = engine.list_devices()
    stages = engine.stages(devices[:2], lambda *_: [], lambda: None)
    assert stages.devices == devices[:2]
    with stages.on(devices[0]), stages.on(devices[1]), stages.on(devices[0]):
        pass


def test_calls_run_where_the_strategy_says():
    engine = FakeEngine(8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_module, "active_engine", lambda: engine)
        model = compiled(kp.device_parallel(make_model()))
    with model._keras_parallel.execution.traced():
        model._keras_parallel.template(X)
    assert [what for told, what in engine.calls if told == "on"] == [
        *("gpu:0", "gpu:1", "gpu:0")
    ]
    model.set_weights(model.get_weights())
    assert engine.calls[-1] == ("settle", model.name)


def test_an_outline_is_had_without_a_step(engine):
    model = compiled(kp.device_parallel(make_model()))
    state = model._keras_parallel
    numbers = {call.nodes: i for i, call in enumerate(state.placement.leaves())}
    before = [v.numpy() for v in model.variables]
    outline = state.execution.outline(
        state.template, 8, lambda on: graph_calls.placed(numbers, on), 3
    )
    for value, variable in zip(before, model.variables):
        np.testing.assert_array_equal(value, variable.numpy())
    if isinstance(engine, FakeEngine):
        assert outline is None
        return
    assert [call.flops for call in outline.calls] == [
        *(2 * 8 * 3 * 4, 0, 2 * 8 * 4 * 2)
    ]
    # What a layer takes is kept, for the gradient of its kernel.
    assert outline.calls[1].activations >= 8 * 4 * 4
    assert outline.updates == (1, 1)


@pytest.mark.parametrize("kind", ["train", "test"])
def test_a_program_is_had_without_a_step(engine, kind):
    model = compiled(kp.device_parallel(make_model()))
    model.fit(X, Y, verbose=0)
    variables = [*model.variables, *model.optimizer.variables]
    before = [v.numpy() for v in variables]
    program = model._keras_parallel.execution.program(model, kind, (X, Y))
    assert program.name == f"{kind}_step"
    for value, variable in zip(before, variables):
        np.testing.assert_array_equal(value, variable.numpy())
    if isinstance(engine, FakeEngine):
        return
    assert program.parts > 2 and program.collectives == ()
    pairs = {
        (t.source and t.source.name, t.target.name) for t in program.transfers
    }
    assert {("gpu:0", "gpu:1"), ("gpu:1", "gpu:0"), (None, "gpu:0")} <= pairs
    assert program.flops > 0 and program.argument_bytes > 0


def test_variables_live_at_home_after_each_method(engine):
    model = compiled(kp.device_parallel(make_model()))
    homes = {"norm": 1}

    def is_at_home(variable):
        if isinstance(engine, FakeEngine):
            return True
        index = homes.get(variable.path.split("/")[0], 0)
        (device,) = variable.value.devices()
        return device.id == index

    model.fit(X, Y, verbose=0)
    assert all(map(is_at_home, model.variables))
    model.evaluate(X, Y, verbose=0)
    assert all(map(is_at_home, model.variables))
    model.set_weights([w + 1 for w in model.get_weights()])
    assert all(map(is_at_home, model.variables))
