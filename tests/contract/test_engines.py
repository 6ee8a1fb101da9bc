"""What `engines/base.py` promises, held against every engine."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

from keras_parallel._errors import TraceError
from keras_parallel.engines import active_engine
from keras_parallel.engines import base
from keras_parallel.engines.fake import FakeEngine
from keras_parallel.strategies import data

ENGINES = {"fake": lambda: FakeEngine(8), "active": active_engine}


@pytest.fixture(params=list(ENGINES))
def engine(request):
    return ENGINES[request.param]()


def make_model():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def parallel_on(engine, count, model=None, **options):
    """`data_parallel`, with the engine chosen by the test."""
    model = model or make_model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "active_engine", lambda: engine)
        return data.data_parallel(model, count, **options)


def test_the_seam_has_at_most_twelve_methods():
    promised = {
        name
        for cls in (base.Engine, base.Replicas)
        for name in cls.__abstractmethods__
    }
    assert len(promised) <= 12


def test_devices_are_listed_best_kind_first(engine):
    devices = engine.list_devices()
    kinds = [d.kind for d in devices]
    assert kinds == ["gpu"] * 8 + ["cpu"]
    assert [d.index for d in devices] == [*range(8), 0]


def test_asking_for_the_same_virtual_devices_again_is_fine(engine):
    engine.use_virtual_devices(8)
    assert len(engine.list_devices()) == 9


def test_backend_is_the_one_of_keras(engine):
    assert engine.backend == keras.config.backend()


def test_a_process_with_the_environment_of_a_worker_takes_no_accelerator(
    engine,
):
    assert isinstance(engine.fork_is_safe, bool)
    environment = dict(engine.worker_environment)
    assert all(isinstance(v, str) for v in environment.values())
    code = "import keras_parallel as kp; print(kp.list_devices())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": engine.backend, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "['cpu:0']\n", done.stderr


@pytest.mark.parametrize("rows", [1, 3, 4, 8, 9])
def test_batches_lie_as_planned(engine, rows):
    reported = []
    replicas = engine.replicas(engine.list_devices()[:4], reported.append)
    x, none = replicas.place_batch((np.ones((rows, 3), "float32"), None))
    assert none is None
    share = rows // 4 if rows % 4 == 0 else rows
    assert replicas.rows_on(x) == {f"gpu:{i}": share for i in range(4)}
    assert [layout.rows for layout in reported] == [rows]
    assert reported[0].split is (rows % 4 == 0)


def test_slots_are_laid_out_as_asked(engine):
    devices = engine.list_devices()[:4]
    whole, split = (
        engine.replicas(devices, print, shard_optimizer=shard)
        for shard in (False, True)
    )
    assert whole.lay_out_slot((6, 8)).part == (6, 8)
    assert split.lay_out_slot((6, 8)).part == (6, 2)
    assert split.lay_out_slot((6, 7)).part == (6, 7)


def test_slots_that_are_sharded_are_those_of_one_device(engine):
    plain = make_model()
    plain.compile(keras.optimizers.Adam(0.01), "mse")
    parallel = make_model()
    parallel.set_weights(plain.get_weights())
    parallel.compile(keras.optimizers.Adam(0.01), "mse")
    parallel = parallel_on(engine, 2, parallel, shard_optimizer=True)
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(8, n)).astype("float32") for n in (3, 2))
    for model in (plain, parallel):
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    for expected, actual in zip(
        plain.optimizer.variables, parallel.optimizer.variables
    ):
        np.testing.assert_allclose(
            expected.numpy(), actual.numpy(), rtol=1e-5, atol=1e-7
        )
        assert expected.value.devices() == actual.value.devices()


def test_every_batch_of_a_step_is_prepared(engine):
    parallel = parallel_on(engine, 2)
    preparation, seen = parallel._keras_parallel.batch_preparation, []

    def watched(model, kind):
        prepare = preparation(model, kind)
        return lambda batch: seen.append(kind) or prepare(batch)

    parallel._keras_parallel.batch_preparation = watched
    x, y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
    parallel.fit(x, y, batch_size=4, verbose=0)
    parallel.evaluate(x, y, batch_size=4, verbose=0)
    parallel.predict(x, batch_size=4, verbose=0)
    parallel.train_on_batch(x, y)
    parallel.test_on_batch(x, y)
    parallel.predict_on_batch(x)
    kinds = ["train", "test", "predict"]
    assert seen == [kind for kind in kinds for _ in range(2)] + kinds


def test_running_may_be_nested_and_ends_by_an_exception(engine):
    parallel = parallel_on(engine, 2)
    replicas = parallel._keras_parallel.replicas

    def fail():
        with replicas.running(parallel):
            with replicas.running(parallel):
                pass
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    x = np.ones((4, 3), "float32")
    np.testing.assert_allclose(
        parallel.predict(x, verbose=0), make_model_output(parallel, x)
    )


def make_model_output(model, x):
    kernel, bias = model.get_weights()
    return x @ kernel + bias


@pytest.mark.parametrize("kind", ["train", "test"])
def test_a_program_is_had_without_a_step(engine, kind):
    parallel = parallel_on(engine, 4)
    x, y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
    parallel.fit(x, y, verbose=0)
    variables = [*parallel.variables, *parallel.optimizer.variables]
    before = [v.numpy() for v in variables]
    replicas = parallel._keras_parallel.replicas
    program = replicas.program(parallel, kind, (x, y))
    assert program.name == f"{kind}_step"
    for value, variable in zip(before, variables):
        np.testing.assert_array_equal(value, variable.numpy())
        assert len(variable.value.devices()) == 1
    if not isinstance(engine, FakeEngine):
        reduced = sum(c.bytes * c.count for c in program.collectives)
        # Kernel and bias, and the loss, which alone a test step sums.
        assert reduced == 4 * ((3 * 2 + 2) * (kind == "train") + 1)
        assert program.flops > 0 and program.argument_bytes > 0


def test_steps_that_are_not_compiled_have_no_program():
    model = make_model()
    model.compile("sgd", "mse", run_eagerly=True)
    parallel = parallel_on(active_engine(), 2, model)
    x, y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
    replicas = parallel._keras_parallel.replicas
    assert replicas.program(parallel, "train", (x, y)) is None


def test_what_is_compiled_is_told():
    parallel = parallel_on(active_engine(), 2)
    with active_engine().compilations() as compiled:
        for rows in (4, 4, 6, 4):
            x, y = np.ones((rows, 3), "float32"), np.ones((rows, 2), "float32")
            parallel.train_on_batch(x, y)
    steps = [c for c in compiled if c.name == "train_step"]
    assert len(steps) == 2
    assert all(c.seconds > 0 for c in steps)
    parallel.train_on_batch(np.ones((8, 3)), np.ones((8, 2)))
    assert len([c for c in compiled if c.name == "train_step"]) == 2


def test_a_recording_has_a_timeline(engine):
    parallel = parallel_on(engine, 2)
    x, y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
    parallel.fit(x, y, batch_size=4, verbose=0)
    with engine.profile() as recording:
        assert recording.timeline is None
        parallel.fit(x, y, batch_size=4, verbose=0)
    events = recording.timeline.events
    if not isinstance(engine, FakeEngine):
        assert {e.device for e in events} == {"gpu:0", "gpu:1", "host"}
        assert {"compute", "communication"} <= {e.kind for e in events}


def test_the_fake_engine_records_what_it_is_told():
    engine = FakeEngine(8)
    parallel = parallel_on(engine, 4)
    x, y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
    parallel.fit(x, y, batch_size=4, verbose=0)
    parallel.train_on_batch(x, y)
    assert engine.calls == [
        ("replicas", ("gpu:0", "gpu:1", "gpu:2", "gpu:3")),
        ("enter", 1),
        *[
            ("step", "train"),
            ("place_batch", {f"gpu:{i}": 1 for i in range(4)}),
        ]
        * 2,
        ("leave", 1),
        ("enter", 1),
        ("step", "train"),
        ("place_batch", {f"gpu:{i}": 2 for i in range(4)}),
        ("leave", 1),
    ]


def test_state_is_current_between_steps_and_assignments_count():
    """J28: weights changed by a callback during fit take effect."""
    plain, parallel = make_model(), parallel_on(active_engine(), 2)
    parallel.set_weights(plain.get_weights())
    seen = []

    class Halve(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kernel = self.model.trainable_variables[0]
            before = kernel.numpy()
            kernel.assign(kernel / 2)
            seen.append((before, kernel.numpy()))

    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 3)).astype("float32")
    y = rng.normal(size=(12, 2)).astype("float32")
    parallel.fit(
        x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[Halve()]
    )
    for start in range(0, 12, 4):
        plain.train_on_batch(x[start : start + 4], y[start : start + 4])
        kernel = plain.trainable_variables[0]
        np.testing.assert_allclose(
            seen[start // 4][0], kernel.numpy(), rtol=1e-5, atol=1e-6
        )
        kernel.assign(kernel / 2)
    np.testing.assert_allclose(
        parallel.get_weights()[0], plain.get_weights()[0], rtol=1e-5, atol=1e-6
    )


def test_what_ran_is_recorded(engine):
    parallel = parallel_on(engine, 2)
    x, y = np.ones((12, 3), "float32"), np.ones((12, 2), "float32")
    parallel.fit(x, y, batch_size=4, verbose=0)  # Is not recorded.
    with engine.profile() as recording:
        assert recording.timeline is None
        parallel.fit(x, y, batch_size=4, verbose=0)
        parallel.predict(x, batch_size=6, verbose=0)
    timeline = recording.timeline
    assert timeline.devices == ("gpu:0", "gpu:1")
    for step, count in (("train_step", 3), ("predict_step", 2)):
        (program,) = [p for p in timeline.programs if step in p]
        runs = timeline.runs(program)
        assert [run.number for run in runs] == list(range(count))
        assert {run.devices for run in runs} == {timeline.devices}
        calls = [e for e in timeline.events if e.program == program]
        assert [e.run for e in calls if e.device == "host"] == [*range(count)]
        kinds = {(e.device, e.kind, e.run) for e in calls if e.device != "host"}
        exchanged = ["communication"] if step == "train_step" else []
        for kind in ["compute", *exchanged]:
            for device in timeline.devices:
                for number in range(count):
                    assert (device, kind, number) in kinds


def test_one_recording_at_a_time_and_an_exception_ends_it(engine):
    def record(inside):
        with engine.profile() as recording:
            inside(recording)

    with pytest.raises(TraceError):
        record(lambda _: record(lambda _: pytest.fail("recorded twice")))
    kept = []

    def fail(recording):
        kept.append(recording)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        record(fail)
    assert kept[0].timeline.events == ()
    record(lambda _: None)
