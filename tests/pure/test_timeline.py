"""What ran when: sums, lanes, runs, the Chrome file and the picture."""

import io
import itertools
import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_parallel._errors import DeviceError
from keras_parallel._errors import InputError
from keras_parallel._errors import PlotError
from keras_parallel.planning import HOST
from keras_parallel.planning import Event
from keras_parallel.planning import Timeline
from tests.helpers import assert_teaches


def event(start, duration, kind="compute", device="gpu:0", **options):
    """An event with times in milliseconds."""
    name = options.pop("name", "dot")
    return Event(device, kind, name, start / 1e3, duration / 1e3, **options)


def timeline(*events, notes=()):
    return Timeline(tuple(sorted(events, key=lambda e: e.start)), notes)


def two_steps():
    """Two devices, two steps of 10 ms with 2 ms between them."""
    events = []
    for run, start in enumerate((1, 13)):
        step = {"program": "step", "run": run}
        events.append(event(start - 1, 2, "host", HOST, name="call", **step))
        for device, late in (("gpu:0", 0), ("gpu:1", 1)):
            at = start + late
            events += [
                event(at, 5, device=device, **step),
                event(
                    at + 5,
                    5 - late,
                    "communication",
                    device,
                    name="all-reduce",
                    **step,
                ),
            ]
    return timeline(*events)


def assert_chrome_draws(chrome):
    """What `chrome://tracing` and Perfetto ask of the events."""
    lanes, names = {}, {}
    for item in chrome["traceEvents"]:
        assert isinstance(item["pid"], int) and isinstance(item["tid"], int)
        if item["ph"] == "M":
            if item["name"] == "thread_name":
                names[item["tid"]] = item["args"]["name"]
            continue
        assert item["ph"] == "X"
        assert item["name"] and item["cat"] == item["args"]["kind"]
        assert item["ts"] >= 0 and item["dur"] >= 0
        lanes.setdefault(item["tid"], []).append(item)
    for items in lanes.values():
        opened = []
        for item in items:
            begin = round(item["ts"] * 1e3)
            end = begin + round(item["dur"] * 1e3)
            while opened and opened[-1] <= begin:
                opened.pop()
            assert not opened or end <= opened[-1]
            opened.append(end)
    assert set(lanes) == set(names)
    return {name: lanes[tid] for tid, name in sorted(names.items())}


@pytest.mark.parametrize(
    ("change", "received"),
    [
        ({"device": "gpu"}, "'gpu'"),
        ({"kind": "work"}, "'work'"),
        ({"start": -1.0}, "start=-1.0"),
        ({"duration": float("nan")}, "duration=nan"),
        ({"run": 0}, "run=0 of program=None"),
        ({"program": "step", "run": -1}, "run=-1"),
    ],
)
def test_events_are_validated(change, received):
    good = {
        "device": "gpu:0",
        "kind": "compute",
        "name": "dot",
        "start": 0.0,
        "duration": 0.0,
    }
    Event(**good)
    with pytest.raises(ValueError, match=received) as caught:
        Event(**{**good, **change})
    if "device" in change:
        assert caught.type is DeviceError


def test_events_are_in_order():
    with pytest.raises(ValueError, match="in which they began"):
        Timeline((event(1, 1), event(0, 1)))


def test_what_overlaps_counts_once():
    made = timeline(event(0, 4), event(2, 4), event(8, 1), event(8, 1))
    assert made.busy("gpu:0") == pytest.approx(7e-3)
    assert made.seconds("gpu:0", "compute") == pytest.approx(7e-3)
    assert made.seconds("gpu:0", "communication") == 0
    assert made.busy("gpu:7") == 0
    assert made.duration == pytest.approx(9e-3)
    with pytest.raises(ValueError, match="'work'"):
        made.seconds("gpu:0", "work")


def test_a_part_of_another_kind_is_not_counted_twice():
    loop = event(0, 10, name="while")
    body = [event(1, 3, depth=1), event(5, 4, "communication", depth=1)]
    made = timeline(loop, *body)
    assert made.busy("gpu:0") == pytest.approx(10e-3)
    assert made.seconds("gpu:0", "compute") == pytest.approx(6e-3)
    assert made.seconds("gpu:0", "communication") == pytest.approx(4e-3)
    assert len(made.lanes["gpu:0"]) == 1


def test_the_host_that_waits_is_not_busy():
    made = timeline(
        event(0, 1, "host", HOST), event(1, 8, "wait", HOST), event(0, 2)
    )
    assert made.busy(HOST) == pytest.approx(1e-3)
    assert made.seconds(HOST, "wait") == pytest.approx(8e-3)


def test_devices_and_lanes_are_in_order():
    made = timeline(
        *[event(0, 1, device=f"gpu:{i}") for i in (10, 2, 0)],
        event(0, 1, device="cpu:0"),
        event(0, 1, "host", HOST),
    )
    assert made.devices == ("gpu:0", "gpu:2", "gpu:10", "cpu:0")
    assert list(made.lanes) == [HOST, *made.devices]
    assert list(assert_chrome_draws(made.to_chrome())) == list(made.lanes)


def test_what_ran_at_the_same_time_is_in_several_lanes():
    made = timeline(event(0, 4), event(2, 4), event(3, 0.5))
    # The last lies inside the first, but is no part of it.
    assert [len(lane) for lane in made.lanes["gpu:0"]] == [1, 1, 1]
    drawn = assert_chrome_draws(made.to_chrome())
    assert list(drawn) == ["gpu:0", "gpu:0 (2)", "gpu:0 (3)"]


def test_runs_are_told_over_all_devices():
    made = two_steps()
    assert made.programs == ("step",)
    runs = made.runs("step")
    assert [run.number for run in runs] == [0, 1]
    assert {run.devices for run in runs} == {("gpu:0", "gpu:1")}
    assert runs[1].start == pytest.approx(13e-3)
    assert runs[1].end == pytest.approx(23e-3)
    assert made.runs("other") == ()


def test_the_stages_of_a_step_are_one_program():
    events = [
        event(20 * run + at, 3, device=device, program=program, run=run)
        for run in range(2)
        for at, device, program in (
            (0, "gpu:0", "jit_train_step_gpu_0_0"),
            (1, "gpu:1", "jit_train_step_gpu_1_1"),
            (9, "gpu:0", "jit_train_step_gpu_0_2"),
            (13, "gpu:0", "jit_train_step_gpu_0_0 (2)"),
        )
    ]
    found = timeline(*events)
    assert found.programs == ("jit_train_step", "jit_train_step (2)")
    runs = found.runs("jit_train_step")
    assert [r.duration for r in runs] == [pytest.approx(0.012)] * 2
    assert {run.devices for run in runs} == {("gpu:0", "gpu:1")}
    # What ran keeps its own name.
    assert {e.program for e in found.events} == {e.program for e in events}


def test_the_program_that_took_longest_comes_first():
    made = timeline(
        event(0, 1, program="small", run=0),
        event(1, 1, program="small", run=1),
        event(2, 5, program="large", run=0),
    )
    assert made.programs == ("large", "small")


def test_a_chrome_event_says_when_and_what():
    made = two_steps()
    drawn = assert_chrome_draws(made.to_chrome())
    last = drawn["gpu:1"][-1]
    assert last["name"] == "all-reduce"
    assert last["ts"] == pytest.approx(19_000)  # Microseconds.
    assert last["dur"] == pytest.approx(4_000)
    assert last["args"] == {
        "kind": "communication",
        "program": "step",
        "run": 1,
    }


def test_what_is_written_is_what_is_told():
    made = timeline(*two_steps().events, notes=("some were dropped.",))
    file = io.StringIO()
    made.write_chrome(file)
    assert json.loads(file.getvalue()) == made.to_chrome()
    assert "dropped" in json.dumps(made.to_chrome()["otherData"])
    file = io.StringIO()
    Timeline(()).write_chrome(file)
    assert json.loads(file.getvalue()) == Timeline(()).to_chrome()


spans = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(0, 12),
        st.sampled_from(["compute", "communication"]),
        st.integers(0, 2),
    ),
    max_size=25,
)


@given(spans)
def test_any_events_can_be_drawn_and_summed(spans):
    made = timeline(
        # Times that are no whole nanoseconds.
        *[event(a / 7e4, b / 7e4, k, depth=d) for a, b, k, d in spans]
    )
    assert_chrome_draws(made.to_chrome())
    drawn = [e for lane in made.lanes.get("gpu:0", ()) for e in lane]
    assert sorted(map(repr, drawn)) == sorted(map(repr, made.events))
    ticks = {t for e in made.events for t in range(e.begin_ns, e.end_ns)}
    assert made.busy("gpu:0") == pytest.approx(len(ticks) / 1e9)
    of_kinds = [
        made.seconds("gpu:0", kind) for kind in ("compute", "communication")
    ]
    assert max(of_kinds) <= made.busy("gpu:0") + 1e-12
    assert sum(of_kinds) >= made.busy("gpu:0") - 1e-12


def test_the_table():
    text = str(timeline(*two_steps().events, notes=("some were dropped.",)))
    lines = text.splitlines()
    assert lines[0] == "23.00 ms on 2 devices"
    assert lines[1].split() == [
        "busy",
        "compute",
        "communication",
        "transfer",
        "idle",
    ]
    assert lines[2].split() == ["host", "4.00", "ms", "17%", *"----"]
    cells = " ".join(lines[4].split())
    assert cells == "gpu:1 18.00 ms 78% 10.00 ms 43% 8.00 ms 35% - 5.00 ms 22%"
    assert lines[-2].split() == [
        "step",
        "2",
        "2",
        "10.00",
        "ms",
        "10.00",
        "ms",
    ]
    assert lines[-1] == "Note: some were dropped."
    assert max(map(len, lines)) <= 80


def test_nothing_ran():
    for made in (Timeline(()), timeline(event(0, 1, "host", HOST))):
        assert str(made) == "Nothing ran on a device."
        assert made.devices == made.programs == ()
        figure = made.plot()
        assert "nothing ran" in figure.axes[0].get_title(loc="left")


def labels(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_the_picture_shows_the_last_steps(tmp_path):
    made = timeline(
        *itertools.chain.from_iterable(
            (
                event(10 * n, 4, program="step", run=n),
                event(10 * n + 4, 2, "communication", program="step", run=n),
                event(10 * n - 1, 1, "host", HOST, program="step", run=n)
                if n
                else event(0, 0, "host", HOST),
            )
            for n in range(6)
        )
    )
    figure = made.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    axes = figure.axes[0]
    assert labels(figure) == ["3", "4", "5"]
    assert "steps 3 to 5 (recorded: 0 to 5)" in axes.get_title(loc="left")
    assert [t.get_text() for t in axes.get_yticklabels()] == [HOST, "gpu:0"]
    # From the call of step 3 to the end of step 5.
    assert axes.get_xlim() == pytest.approx((0, 27))
    assert labels(made.plot(steps=1)) == ["5"]
    assert labels(made.plot(steps=range(1, 3))) == ["1", "2"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["compute", "communication", "host"]
    made.plot(tmp_path / "run.svg", steps=6)
    assert "<svg" in (tmp_path / "run.svg").read_text()


@pytest.mark.parametrize(
    "steps",
    [
        *(0, -1, 3, True, 1.0, "1", range(1, 3), range(0), range(-1, 1)),
        *(range(0, 2, 2), range(1, -1, -1)),
    ],
)
def test_steps_that_are_not_there(steps):
    with pytest.raises(InputError, match=r"Received: steps=") as caught:
        two_steps().plot(steps=steps)
    assert_teaches(caught.value)


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"keras-parallel\[plot\]") as caught:
        two_steps().plot()
    assert caught.type is PlotError


def test_the_training_step_is_drawn_unless_another_is_chosen():
    made = timeline(
        event(0, 1, program="jit_train_step", run=0),
        event(1, 9, program="jit_test_step", run=0),
    )
    assert "train_step" in made.plot().axes[0].get_title(loc="left")
    chosen = made.plot(program="test_step", steps=np.int64(1))
    assert "test_step" in chosen.axes[0].get_title(loc="left")
    assert chosen._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="jit_test_step, jit_train") as caught:
        made.plot(program="predict")
    assert_teaches(caught.value)


def test_steps_that_are_no_program():
    made = timeline(
        *[event(n, 0.5, program="jit_add", run=n) for n in range(5)]
    )
    figure = made.plot()
    assert labels(figure) == []
    assert "not compiled" in figure.axes[0].get_title(loc="left")
    assert figure.axes[0].get_xlim() == pytest.approx((0, 4.5))
    assert "No program is a step" in str(made)


def test_short_operations_can_be_seen():
    made = timeline(event(0, 1000), event(500, 0.01, device="gpu:1"))
    for bars in made.plot().axes[0].collections:
        for path in bars.get_paths():
            assert path.get_extents().width > 1


@pytest.mark.parametrize(
    "path", ["run.xyz", "run", 5, "folder.png", "no/a.png"]
)
def test_a_picture_that_cannot_be_written(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match="Received: path=") as caught:
        two_steps().plot(path)
    assert_teaches(caught.value)
