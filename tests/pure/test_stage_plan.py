"""The plan of stages as a value, without Keras and without a device."""

import builtins
import html.parser
import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from matplotlib.backends import backend_agg

from keras_parallel._errors import InputError
from keras_parallel._errors import PlanError
from keras_parallel._errors import PlotError
from keras_parallel.planning import Device
from keras_parallel.planning import DeviceShare
from keras_parallel.planning import PlacedCall
from keras_parallel.planning import PlannedStage
from keras_parallel.planning import StagePlan
from keras_parallel.planning import Tensor
from keras_parallel.planning import Transfer
from keras_parallel.planning import Weight
from keras_parallel.planning import plan_stages
from tests.helpers import assert_teaches

GPUS = tuple(Device("gpu", i, virtual=True) for i in range(3))
ONE, TWO, THREE = GPUS
INPUT = Tensor("input", (None, 4), "float32")
LONG = "<b>a_call_with_a_name_of_many_letters</b>" * 2
ROWS = 10


def tensor(name, dtype="float32", shape=(None, 4)):
    return Tensor(name, shape, dtype)


def call(name, device, takes, weights=(), **costs):
    """A call that makes one tensor of its name."""
    return PlacedCall(
        name,
        device,
        tuple(map(tensor, takes)),
        (tensor(name),),
        weights,
        **costs,
    )


def weight(number, home, size=100, trainable=True, updated=False):
    name = f"layer_{number}/kernel"
    return Weight(number, name, size, home, trainable, updated)


def sent(planned, purpose):
    return {
        (t.what, t.source and t.source.name, t.target.name): t.bytes
        for t in planned.transfers
        if t.purpose == purpose
    }


@st.composite
def models(draw):
    """Calls that take what is there, some with weights, on three devices."""
    there, calls = ["input"], []
    homes = draw(st.lists(st.sampled_from(GPUS), min_size=3, max_size=3))
    weights = [weight(i, home) for i, home in enumerate(homes)]
    for i in range(draw(st.integers(1, 16))):
        takes = draw(st.lists(st.sampled_from(there), min_size=1, max_size=3))
        used = draw(st.lists(st.sampled_from(weights), max_size=1))
        device = draw(st.sampled_from(GPUS))
        calls.append(
            call(
                f"call_{i}",
                device,
                dict.fromkeys(takes),
                tuple(used),
                flops=float(draw(st.integers(0, 5))),
                activations=draw(st.integers(0, 5)),
            )
        )
        there.append(f"call_{i}")
    return calls


@given(models())
@settings(max_examples=200, deadline=None)
def test_stages_hold_all_calls_and_run_in_order(calls):
    planned = plan_stages(calls, [tensor(calls[-1].name)], ROWS)
    stage_of = {
        name: i for i, s in enumerate(planned.stages) for name in s.calls
    }
    assert sorted(stage_of) == sorted(c.name for c in calls)
    for one in calls:
        number = stage_of[one.name]
        assert planned.stages[number].device == one.device
        for taken in one.takes:
            other = stage_of.get(taken.name, number)
            assert other == number or other in planned.stages[number].after
    for kind in ("flops", "activations"):
        of_stages = [getattr(s, kind) for s in planned.stages]
        assert sum(of_stages) == sum(getattr(c, kind) for c in calls)


@given(models())
@settings(max_examples=200, deadline=None)
def test_each_tensor_is_sent_once_to_each_device_that_takes_it(calls):
    planned = plan_stages(calls, [tensor(calls[-1].name)], ROWS)
    made_on = {c.name: c.device.name for c in calls}
    needed = {
        (t.name, made_on.get(t.name), c.device.name)
        for c in calls
        for t in c.takes
        if made_on.get(t.name) != c.device.name
    }
    forward = [t for t in planned.transfers if t.what in made_on]
    there = sent(planned, "activation")
    assert {*there, *sent(planned, "input")} == needed
    assert set(there.values()) <= {ROWS * 4 * 4}
    assert len({(t.what, t.purpose, t.source, t.target) for t in forward}) == (
        len(forward)
    )


@given(models())
@settings(max_examples=200, deadline=None)
def test_gradients_come_back_where_a_weight_needs_them(calls):
    """Counted anew, by walking from each weight and from the output."""
    output = calls[-1].name
    planned = plan_stages(calls, [tensor(output)], ROWS)
    by_name = {c.name: c for c in calls}

    def trained(name):
        if name not in by_name:
            return False
        one = by_name[name]
        return bool(one.weights) or any(trained(t.name) for t in one.takes)

    def wanted(name):
        return name == output or any(
            wanted(c.name) for c in calls if tensor(name) in c.takes
        )

    back = {
        (what, target, source)
        for what, source, target in sent(planned, "gradient")
        if what in by_name
    }
    expected = {
        (what, source, target)
        for what, source, target in sent(planned, "activation")
        if trained(what) and wanted(what)
    }
    assert back == expected


def test_a_weight_is_sent_to_where_it_does_not_live_and_its_gradient_back():
    shared, frozen = weight(0, ONE), weight(1, TWO, trainable=False)
    counted = weight(2, ONE, size=8, trainable=False, updated=True)
    calls = [
        call("a", ONE, ["input"], (shared, frozen, counted)),
        call("b", TWO, ["input"], (shared, counted)),
        call("c", TWO, ["a", "b"], (shared,)),
    ]
    planned = plan_stages(calls, [tensor("c")], ROWS)
    there, back = ("layer_0", "gpu:0", "gpu:1"), ("layer_0", "gpu:1", "gpu:0")
    assert sent(planned, "weight") == {there: 100}
    assert sent(planned, "gradient") == {
        back: 100,
        ("a", "gpu:1", "gpu:0"): 160,
    }
    assert sent(planned, "state") == {
        ("layer_1", "gpu:1", "gpu:0"): 100,
        ("layer_2", "gpu:0", "gpu:1"): 8,
        ("layer_2", "gpu:1", "gpu:0"): 8,
    }
    # Each counts at its home: the frozen one is never used there.
    assert {s.calls: s.weights for s in planned.stages} == {
        ("a",): 108,
        ("b",): 0,
        ("c",): 0,
    }


def test_what_has_no_gradient_does_not_come_back():
    index = tensor("index", "int32")
    calls = [
        PlacedCall("index", ONE, (INPUT,), (index,), (weight(0, ONE),)),
        PlacedCall("out", TWO, (index,), (tensor("out"),)),
    ]
    planned = plan_stages(calls, [tensor("out")], ROWS)
    assert sent(planned, "activation") == {("index", "gpu:0", "gpu:1"): 160}
    assert sent(planned, "gradient") == {}


@pytest.mark.parametrize("dtype", ["string", "object"])
def test_a_dtype_that_cannot_cross_is_refused(dtype):
    words = tensor("words", dtype)
    calls = [
        PlacedCall("words", ONE, (INPUT,), (words,)),
        PlacedCall("out", TWO, (words,), (tensor("out"),)),
    ]
    with pytest.raises(PlanError, match="from gpu:0 to gpu:1") as caught:
        plan_stages(calls, [tensor("out")], ROWS)
    assert_teaches(caught.value)
    calls[1] = PlacedCall("out", ONE, (words,), (tensor("out"),))
    assert len(plan_stages(calls, [tensor("out")], ROWS).stages) == 1


def test_a_call_that_waits_for_itself_is_refused():
    calls = [call("a", ONE, ["b"]), call("b", TWO, ["a"])]
    with pytest.raises(PlanError) as caught:
        plan_stages(calls, [tensor("b")], ROWS)
    assert "'a' reads" in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((None, 3), "float32", 120),
        ((None, 3), "bfloat16", 60),
        ((None, 3), "bool", 30),
        ((None,), "int8", 10),
        ((None, 3), "int4", 15),
        ((2, 3), "float32", 24),
        ((), "float32", 4),
        ((None, None, 3), "float32", None),
    ],
)
def test_sizes_of_tensors(shape, dtype, size):
    assert Tensor("x", shape, dtype).bytes(ROWS) == size


def share(device):
    return DeviceShare(device, ROWS, 100, 100, None, 8, None)


def stage(device, *after, flops=1.0, calls=("dense",)):
    return PlannedStage(device, calls, after, 100, 333, flops)


def plan(**changes):
    values = {
        "model": "model",
        "batch_size": ROWS,
        "default": ONE,
        "shares": tuple(map(share, GPUS)),
        "stages": (
            stage(ONE, flops=6.0),
            stage(TWO, flops=5.0),
            stage(THREE, 0, 1, flops=1.0, calls=(LONG, "b", "c", "d")),
        ),
        "transfers": (
            Transfer("input", "input", None, ONE, 50),
            Transfer("dense", "activation", ONE, THREE, 160, (10, 4), "int8"),
            Transfer("dense", "gradient", THREE, ONE, 160, (10, 4), "int8"),
            Transfer("layer", "weight", ONE, TWO, 7),
            Transfer("unknown", "activation", TWO, THREE, None, (10, None)),
        ),
        "placement": {"dense": "gpu:0"},
        "losses": {"head": TWO},
        "notes": ("A sentence that a reader should know, " * 4,),
    }
    return StagePlan(**values | changes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: plan(shares=()),
        lambda: plan(shares=(share(ONE), share(ONE))),
        lambda: plan(default=Device("cpu", 0)),
        lambda: plan(stages=(stage(Device("gpu", 9)),)),
        lambda: plan(stages=(stage(ONE, 0),)),
        lambda: plan(stages=(stage(ONE), stage(TWO, 2))),
        lambda: plan(
            transfers=(Transfer("x", "input", None, Device("cpu", 0), 1),)
        ),
        lambda: Transfer("x", "input", ONE, ONE, 1),
        lambda: Transfer("x", "gradients", ONE, TWO, 1),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(make):
    with pytest.raises(PlanError) as caught:
        make()
    assert_teaches(caught.value)


def test_the_critical_path_and_what_it_bounds():
    assert plan().critical_path == (0, 2)
    assert plan().speedup_bound == pytest.approx(12 / 7)
    chain = plan(stages=(stage(ONE), stage(TWO, 0), stage(ONE, 1)))
    assert chain.critical_path == (0, 1, 2)
    assert chain.speedup_bound == 1.0
    # Two stages that could run beside each other, if one device could.
    busy = plan(stages=(stage(ONE), stage(ONE), stage(TWO)))
    assert len(busy.critical_path) == 1
    assert busy.speedup_bound == 1.5
    unknown = plan(stages=(stage(ONE, flops=None), stage(TWO)))
    assert unknown.critical_path == () and unknown.speedup_bound is None
    nothing = plan(stages=(stage(ONE, flops=0.0),))
    assert nothing.speedup_bound is None


def test_the_text():
    text = str(plan())
    for said in (
        *("0 *", "2 *", "160 B  160 B", "10 x 4 int8", "10 x ?"),
        *("weight of layer", "head", "between devices, in all", "327 B"),
        *("0 (gpu:0) → 2 (gpu:2)", "1.7 times as fast", "34 B"),
    ):
        assert said in text, said
    assert all(len(line) <= 140 for line in text.splitlines())
    chain = str(plan(stages=(stage(ONE), stage(TWO, 0))))
    assert "one after another" in chain and "*" not in chain
    many = tuple(
        Transfer(f"tensor_{i}", "activation", ONE, TWO, 100 + i)
        for i in range(40)
    )
    text = str(plan(transfers=many))
    assert "16 smaller ones" in text and "tensor_39" in text
    assert "tensor_3 " not in text


def test_html_escapes_what_users_name():
    class Reader(html.parser.HTMLParser):
        tags, text = [], ""

        def handle_starttag(self, tag, attrs):
            self.tags.append(tag)

        def handle_data(self, data):
            self.text += data

    reader = Reader()
    reader.feed(plan(model=LONG)._repr_html_())
    assert "b" not in reader.tags
    assert {"table", "tr", "td", "li"} <= set(reader.tags)
    assert "1.7 times" in reader.text


def test_a_dict_for_json():
    found = json.loads(json.dumps(plan().to_dict()))
    assert found["bytes_per_step"] == 160 + 160 + 7
    assert found["critical_path"] == [0, 2]
    assert found["stages"][0]["activations_per_row"] == 34
    assert found["transfers"][0]["source"] is None
    assert found["placement"] == {"dense": "gpu:0"}
    assert found["losses"] == {"head": "gpu:1"}
    names = [device["device"] for device in found["devices"]]
    assert names == ["gpu:0", "gpu:1", "gpu:2"]


def boxes(figure):
    """What texts and boxes cover, in pixels."""
    renderer = backend_agg.FigureCanvasAgg(figure).get_renderer()
    (axes,) = figure.axes
    texts = [t for t in axes.texts if t.get_text().strip()]
    return {t.get_text(): t.get_window_extent(renderer) for t in texts}


@pytest.mark.parametrize("count", [3, 12])
def test_the_picture(tmp_path, count):
    """Texts lie within it, and each stage is in the lane of its device."""
    stages = tuple(
        stage(GPUS[i % 3], *([i - 1] if i else []), calls=(f"call_{i}",))
        for i in range(count)
    )
    transfers = tuple(
        Transfer(f"call_{i}", "activation", s.device, t.device, 100 + i)
        for i, (s, t) in enumerate(itertools.pairwise(stages))
    )
    one = plan(stages=stages, transfers=transfers, model="$x$" * 40)
    figure = one.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 1000
    found, page = boxes(figure), figure.bbox
    for i in range(count):
        assert f"call_{i}" in found and f"stage {i}" in found
    for text, box in found.items():
        assert page.x0 <= box.x0 and box.x1 <= page.x1 + 1, text
        assert page.y0 <= box.y0 and box.y1 <= page.y1 + 1, text
    heights = [found[f"stage {i}"].y0 for i in range(count)]
    assert all(math.isclose(h, heights[i % 3]) for i, h in enumerate(heights))
    assert heights[0] > heights[1] > heights[2]
    sizes = [text for text in found if "10" in text and "B" in text]
    assert len(sizes) >= count - 1


def test_pictures_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(InputError):
        plan().plot(tmp_path / "missing" / "plan.png")
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PlotError):
        plan().plot()
