"""`kp.trace`: what a real run gives, and what is refused."""

import gzip
import json
import os
import tempfile
import types

import jax
import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from keras_parallel._errors import InputError
from keras_parallel._errors import TraceError
from keras_parallel.engines.jax import _xspace
from keras_parallel.planning import HOST
from keras_parallel.planning import Device
from keras_parallel.planning import Timeline
from tests.helpers import assert_teaches
from tests.pure.test_timeline import assert_chrome_draws

STEPS = 4


def make_model(width=16):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(width, activation="relu"),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    return model


def data(rows=8 * STEPS):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 8)), rng.normal(size=(rows, 1))


@pytest.fixture(scope="module", params=[2, 8])
def traced(request, tmp_path_factory):
    """The number of devices, and the trace of a short training on them."""
    parallel = kp.data_parallel(make_model(), request.param)
    x, y = data()
    parallel.train_on_batch(x[:8], y[:8])
    path = tmp_path_factory.mktemp("trace") / "run.json"
    with kp.trace(path) as trace:
        parallel.fit(x, y, batch_size=8, verbose=0)
    return request.param, trace


def test_every_step_ran_on_every_device(traced):
    count, trace = traced
    devices = tuple(f"gpu:{i}" for i in range(count))
    timeline = trace.timeline
    assert timeline.devices == devices
    runs = timeline.runs("jit_train_step")
    assert [run.number for run in runs] == list(range(STEPS))
    assert {run.devices for run in runs} == {devices}
    reduced = {
        (event.run, event.device)
        for event in timeline.events
        if event.kind == "communication" and "all-reduce" in event.name
    }
    assert reduced == {(n, d) for n in range(STEPS) for d in devices}
    assert timeline.notes == ()


def test_every_device_computes_the_same_operations(traced):
    _, trace = traced
    operations = {}
    for event in trace.timeline.events:
        if event.program == "jit_train_step" and event.device != HOST:
            of_run = operations.setdefault((event.device, event.run), [])
            of_run.append(event.name)
    each = {tuple(sorted(names)) for names in operations.values()}
    assert len(each) == 1


def test_times_add_up(traced):
    _, trace = traced
    timeline = trace.timeline
    for device in timeline.devices:
        computed = timeline.seconds(device, "compute")
        communicated = timeline.seconds(device, "communication")
        assert 0 < computed and 0 < communicated
        assert timeline.seconds(device, "host") == 0
        busy = timeline.busy(device)
        assert max(computed, communicated) < busy < timeline.duration
        assert busy <= computed + communicated + 1e-9


def test_the_host_calls_each_step_before_it_ends(traced):
    _, trace = traced
    calls = [
        event
        for event in trace.timeline.events
        if event.device == HOST and event.program == "jit_train_step"
    ]
    assert [call.run for call in calls] == list(range(STEPS))
    for call, run in zip(calls, trace.timeline.runs("jit_train_step")):
        assert call.kind == "host"
        assert call.start < run.start


def test_the_file_opens_in_perfetto(traced):
    count, trace = traced
    chrome = json.loads(trace.path.read_text())
    drawn = assert_chrome_draws(chrome)
    first = [name for name in drawn if not name.endswith(")")]
    assert first == [HOST, *(f"gpu:{i}" for i in range(count))]
    assert sum(map(len, drawn.values())) == len(trace.timeline.events)


def test_printed_and_drawn(traced, tmp_path):
    count, trace = traced
    lines = str(trace).splitlines()
    assert f"on {count} devices" in lines[0]
    row = next(line.split() for line in lines if "jit_train_step" in line)
    assert row[1:3] == [str(STEPS), str(count)]
    figure = trace.plot(tmp_path / "run.png", steps=2)
    assert (tmp_path / "run.png").stat().st_size > 1000
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == [str(STEPS - 2), str(STEPS - 1)]


def test_a_plain_model_and_loops_in_a_step(tmp_path):
    model = keras.Sequential(
        [keras.Input((5, 3)), layers.LSTM(4), layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    x, y = np.ones((8, 5, 3), "float32"), np.ones((8, 1), "float32")
    path = tmp_path / "run.json.gz"
    with kp.trace(str(path)) as trace:
        model.fit(x, y, batch_size=4, verbose=0)
    timeline = trace.timeline
    assert timeline.devices == ("gpu:0",)  # The first device of JAX.
    assert len(timeline.runs("jit_train_step")) == 2
    loops = [e for e in timeline.events if e.name.startswith("while")]
    assert loops and any(event.depth for event in timeline.events)
    busy = timeline.busy("gpu:0")
    assert timeline.seconds("gpu:0", "compute") == pytest.approx(busy)
    assert busy < sum(event.duration for event in timeline.events)
    assert_chrome_draws(json.loads(gzip.decompress(path.read_bytes())))


def test_the_trace_waits_for_what_was_asked_for(tmp_path):
    work = jax.jit(lambda x: x @ x / 1000)
    x = work(np.ones((1000, 1000), "float32")).block_until_ready()
    with kp.trace(tmp_path / "run.json") as trace:
        for _ in range(4):
            x = work(x)
    (program,) = [p for p in trace.timeline.programs if "lambda" in p]
    assert len(trace.timeline.runs(program)) == 4


def test_nothing_ran(tmp_path):
    with kp.trace(tmp_path / "run.json") as trace:
        pass
    assert "Nothing ran on a device." in str(trace)
    assert json.loads((tmp_path / "run.json").read_text())
    trace.plot(tmp_path / "run.png")


def test_what_ran_before_an_exception_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    model, (x, y) = make_model(), data()
    trace = kp.trace(tmp_path / "run.json")

    def fail():
        with trace:
            model.train_on_batch(x, y)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert trace.timeline.runs("jit_train_step")
    assert "jit_train_step" in (tmp_path / "run.json").read_text()
    assert os.listdir(tmp_path / "temporary") == []
    assert sorted(os.listdir(tmp_path)) == ["run.json", "temporary"]


def test_a_file_is_replaced_when_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    path.write_text("old")
    path.chmod(0o640)

    def full(timeline, file):
        file.write("half")
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Timeline, "write_chrome", full)
        with pytest.raises(OSError, match="full"), kp.trace(path) as trace:
            pass
    assert path.read_text() == "old"
    assert trace.timeline.events == ()  # What was recorded is not lost.
    with kp.trace(path):
        pass
    assert json.loads(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["run.json"]


@pytest.mark.parametrize(
    "path",
    [
        *("run.txt", "run", "missing/run.json", "folder.json", 3, None, b"a"),
        "a\0b.json",
        f"{'a' * 300}.json",
    ],
)
def test_a_bad_path_is_told_before_anything_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder.json")
    with pytest.raises(InputError, match="Received: path=") as caught:
        kp.trace(path)
    assert_teaches(caught.value)
    assert ".. " not in str(caught.value).replace("...", "")
    assert os.listdir() == ["folder.json"]


def test_a_path_is_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace = kp.trace("run.json")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with trace:
        pass
    assert (tmp_path / "run.json").exists()


def enter(trace):
    with trace:
        pytest.fail("the body ran")


def test_one_trace_at_a_time(tmp_path):
    with kp.trace(tmp_path / "run.json") as trace:
        with pytest.raises(TraceError) as caught:
            enter(kp.trace(tmp_path / "inner.json"))
        assert_teaches(caught.value)
        with pytest.raises(TraceError, match="when its `with` has ended"):
            _ = trace.timeline
        assert "not recorded yet" in str(trace)
    assert not (tmp_path / "inner.json").exists()
    with pytest.raises(TraceError, match="records once"):
        enter(trace)
    assert trace.timeline.events == ()


def test_a_profiler_of_the_user(tmp_path):
    jax.profiler.start_trace(str(tmp_path / "theirs"))
    try:
        with pytest.raises(TraceError, match="profile_batch") as caught:
            enter(kp.trace(tmp_path / "run.json"))
        assert_teaches(caught.value)
    finally:
        jax.profiler.stop_trace()
    model, (x, y) = make_model(), data()

    # So does `TensorBoard(profile_batch=2)`, from Python 3.12 on.
    class Profile(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                jax.profiler.start_trace(str(tmp_path / "theirs"))

    trace = kp.trace(tmp_path / "run.json")
    with pytest.raises(RuntimeError, match="Only one profile") as caught, trace:
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[Profile()])
    assert "profile_batch" in caught.value.__notes__[0]
    assert trace.timeline.runs("jit_train_step")
    trace = kp.trace(tmp_path / "run.json")
    with pytest.raises(TraceError, match="stopped inside") as caught, trace:
        jax.profiler.stop_trace()
    assert_teaches(caught.value)


# A plane of a GPU as XLA's profiler writes it: metadata by number, times in
# picoseconds.
GPU = """
planes {{
  name: "/device:GPU:{index}"
  event_metadata {{ key: 1 value {{ id: 1 name: "loop_add_fusion" }} }}
  event_metadata {{ key: 2 value {{ id: 2 name: "ncclDevKernel_AllReduce" }} }}
  event_metadata {{ key: 3 value {{ id: 3 name: "MemcpyH2D" }} }}
  stat_metadata {{ key: 1 value {{ id: 1 name: "hlo_op" }} }}
  stat_metadata {{ key: 2 value {{ id: 2 name: "hlo_module" }} }}
  lines {{
    id: 1 name: "Stream #13(Compute)"
    {steps}
  }}
  lines {{
    id: 2 name: "Stream #14(MemcpyH2D)"
    events {{ metadata_id: 3 offset_ps: 500000 duration_ps: 1500000 }}
  }}
  lines {{
    id: 3 name: "XLA Modules"
    events {{ metadata_id: 1 offset_ps: 0 duration_ps: 90000000 }}
  }}
}}
"""
GPU_STEP = """
    events {{ metadata_id: 1 offset_ps: {0}000000 duration_ps: 4000000
      stats {{ metadata_id: 1 str_value: "fusion.1" }}
      stats {{ metadata_id: 2 str_value: "jit_train_step" }} }}
    events {{ metadata_id: 2 offset_ps: {1}000000 duration_ps: 2000000
      stats {{ metadata_id: 1 str_value: "all-reduce-start" }}
      stats {{ metadata_id: 2 str_value: "jit_train_step" }} }}
"""
HOST_OF_GPUS = """
planes {
  name: "/host:CPU"
  event_metadata { key: 1 value { id: 1 name: "PjitFunction(train_step)" } }
  lines { id: 1 name: "python"
    events { metadata_id: 1 offset_ps: 0 duration_ps: 900000 }
    events { metadata_id: 1 offset_ps: 1000000 duration_ps: 900000 }
  }
}
"""


def read_gpus(text, count=2):
    known = {
        Device("gpu", i): types.SimpleNamespace(
            platform="gpu", local_hardware_id=i, id=i
        )
        for i in range(count)
    }
    serialized = jax.profiler.ProfileData.text_proto_to_serialized_xspace(text)
    return _xspace.read(serialized, known)


def test_planes_of_gpus():
    steps = GPU_STEP.format(10, 14) + GPU_STEP.format(20, 24)
    planes = [GPU.format(index=i, steps=steps) for i in range(3)]
    # The third is no device of ours.
    timeline = read_gpus("".join([*planes, HOST_OF_GPUS]))
    assert timeline.devices == ("gpu:0", "gpu:1")
    runs = timeline.runs("jit_train_step")
    assert [run.number for run in runs] == [0, 1]
    assert runs[1].start == pytest.approx(20e-6)
    assert runs[1].duration == pytest.approx(6e-6)
    for device in timeline.devices:
        seconds = {
            kind: timeline.seconds(device, kind)
            for kind in ("compute", "communication", "transfer")
        }
        assert seconds == pytest.approx(
            {"compute": 8e-6, "communication": 4e-6, "transfer": 1.5e-6}
        )
    calls = [event.run for event in timeline.events if event.device == HOST]
    assert calls == [0, 1]
    assert timeline.notes == ()


def test_what_the_profiler_has_dropped_is_told():
    plane = GPU.format(index=0, steps=GPU_STEP.format(10, 14))
    errors = 'errors: "no CUPTI" warnings: "dropped 7 events"'
    timeline = read_gpus("".join([plane, HOST_OF_GPUS, errors]), count=1)
    assert timeline.notes == (
        "the profiler says: no CUPTI",
        "the profiler says: dropped 7 events",
        "the host called jit_train_step 2 times; of its runs 1 were recorded.",
    )
    assert "dropped 7 events" in str(timeline)


def test_results_that_nobody_holds_are_waited_for(tmp_path):
    def on(count, work):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:count]), ("d",))
        rows = jax.sharding.NamedSharding(mesh, jax.P("d"))
        x = jax.device_put(np.ones((800, 800), "float32"), rows)
        program = jax.jit(work)
        program(x).block_until_ready()
        return program, x

    one, x1 = on(1, lambda x: (x @ x @ x).sum())
    four, x4 = on(4, lambda x: (x @ x.T @ x).sum(0))
    for _ in range(2):
        with kp.trace(tmp_path / "run.json") as trace:
            for _ in range(4):
                four(x4)
                one(x1)
        timeline = trace.timeline
        runs = {p: len(timeline.runs(p)) for p in timeline.programs}
        assert sorted(runs.values()) == [4, 4], runs
        assert timeline.notes == ()
        assert "keras_parallel" not in (tmp_path / "run.json").read_text()


def test_what_was_called_and_not_recorded_is_told():
    timeline = read_gpus(HOST_OF_GPUS)
    assert timeline.notes == (
        "the host called jit_train_step 2 times; of its runs 0 were recorded.",
    )


def test_programs_of_one_name_are_told_apart(tmp_path):
    models = [kp.data_parallel(make_model(), count) for count in (2, 4)]
    x, y = data()
    for parallel in models:
        parallel.train_on_batch(x[:8], y[:8])
    with kp.trace(tmp_path / "run.json") as trace:
        for parallel in (*models, models[0]):
            parallel.fit(x[:16], y[:16], batch_size=8, verbose=0)
    timeline = trace.timeline
    for program, count, steps in (
        ("jit_train_step", 2, 4),
        ("jit_train_step (2)", 4, 2),
    ):
        runs = timeline.runs(program)
        assert [run.number for run in runs] == list(range(steps))
        assert {len(run.devices) for run in runs} == {count}
        calls = [
            event.run
            for event in timeline.events
            if event.device == HOST and event.program == program
        ]
        assert calls == list(range(steps))
    assert timeline.notes == ()


def test_a_compilation_inside_is_no_loss(tmp_path):
    parallel = kp.data_parallel(make_model(width=24), 2)
    x, y = data()
    with kp.trace(tmp_path / "run.json") as trace:
        parallel.fit(x, y, batch_size=8, verbose=0)
        parallel.evaluate(x, y, batch_size=8, verbose=0)
        parallel.predict(x, batch_size=8, verbose=0)
    timeline = trace.timeline
    assert timeline.notes == ()
    assert len(timeline.runs("jit_train_step")) == STEPS


def test_a_file_that_is_read_only_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    path.write_text("old")
    asked = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda p, mode: os.fspath(p) != str(path) and asked(p, mode),
    )
    with pytest.raises(InputError, match="cannot be written"):
        kp.trace(path)
    assert path.read_text() == "old"


def test_a_notebook_shows_the_table(tmp_path):
    with kp.trace(tmp_path / "run.json") as trace:
        pass
    assert "Nothing ran on a device." in trace._repr_html_()
