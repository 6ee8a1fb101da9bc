"""The values of a plan, and how they are shown. No Keras, no backend."""

import builtins
import html.parser
import json
import sys

import pytest

from keras_parallel._errors import InputError
from keras_parallel._errors import PlanError
from keras_parallel._errors import PlotError
from keras_parallel.planning import Collective
from keras_parallel.planning import Device
from keras_parallel.planning import DeviceShare
from keras_parallel.planning import Outline
from keras_parallel.planning import Plan
from keras_parallel.planning._table import readable
from keras_parallel.planning._table import summary_of
from tests.helpers import assert_teaches

LONG = "<b>a_model_with_a_name_of_many_letters</b>" * 3


def share(index, **changes):
    values = {
        "device": Device("gpu", index, virtual=True),
        "rows": 4,
        "weights": 12_345_678,
        "gradients": 12_345_678,
        "optimizer": 24_691_356,
        "non_trainable": 0,
        "activations": None,
    }
    return DeviceShare(**values | changes)


def plan(devices=2, normalizations=0, **changes):
    crossings = [
        Collective(
            *("all-reduce", f"statistics of 'norm_{i}'", 96, 4),
            group="statistics of BatchNormalization layers",
        )
        for i in range(normalizations)
    ]
    if devices > 1:
        crossings.append(Collective("all-reduce", "gradients", 12_345_678))
    values = {
        "model": LONG,
        "batch_size": 4 * devices,
        "shares": tuple(share(i) for i in range(devices)),
        "collectives": tuple(crossings),
        "notes": ("A sentence that a reader should know, " * 4,),
    }
    return Plan(**values | changes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Collective("all-reduced", "gradients", 1),
        lambda: Collective("all-reduce", "gradients", -1),
        lambda: Collective("all-reduce", "gradients", 1, count=-1),
        lambda: share(0, weights=-1),
        lambda: share(0, activations=-1),
        lambda: plan(shares=()),
        lambda: plan(shares=(share(0), share(0))),
        lambda: plan(batch_size=9),
        lambda: plan(1, collectives=(Collective("all-reduce", "x", 1),)),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(make):
    with pytest.raises(PlanError) as caught:
        make()
    assert_teaches(caught.value)


def test_rows_are_shared_out_or_whole_on_each_device():
    assert plan(2, batch_size=8)
    assert plan(2, batch_size=4)


def test_totals():
    assert share(0).total == 2 * 12_345_678 + 24_691_356
    assert share(0, optimizer=None, activations=1).total == 24_691_357
    assert plan(2, 3).bytes_per_step == 12_345_678 + 3 * 96


def test_the_activations_of_rows_are_shared_out():
    outline = Outline(100, 7, (), ())
    assert [outline.activations(n) for n in (1, 3)] == [107, 41]


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (None, "?"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9_994, "9.99 kB"),
        (12_345, "12.3 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (25_600_000_000, "25.6 GB"),
    ],
)
def test_bytes_are_readable(size, said):
    assert readable(size) == said


def test_a_large_group_is_told_in_one_line_and_the_biggest_is_first():
    lines = summary_of(plan(2, 100).collectives)
    assert [(line.purpose, line.bytes, line.count) for line in lines] == [
        ("gradients", 12_345_678, 1),
        ("statistics of BatchNormalization layers (100)", 9600, 400),
    ]
    assert len(summary_of(plan(2, 3).collectives)) == 4


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_text_is_aligned_and_narrow(devices):
    lines = str(plan(devices, 100 * (devices > 1))).splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) < 25
    head = next(i for i, line in enumerate(lines) if line.startswith("device"))
    table = lines[head : head + devices + 2]
    assert len({len(line) for line in table}) == 1
    assert table[-1].split() == [
        *(f"gpu:{devices - 1}", "(virtual)", "4", "12.3", "MB", "12.3", "MB"),
        *("24.7", "MB", "0", "B", "?", "49.4", "MB"),
    ]


def test_everything_is_in_the_dict():
    given = json.loads(json.dumps(plan(2, 100).to_dict()))
    assert list(given) == [
        *("model", "batch_size", "devices", "collectives"),
        *("bytes_per_step", "notes"),
    ]
    assert given["devices"][1] == {
        **{"device": "gpu:1", "virtual": True, "rows": 4},
        **{"weights": 12_345_678, "gradients": 12_345_678},
        **{"optimizer": 24_691_356, "non_trainable": 0, "activations": None},
        "total": 49_382_712,
    }
    assert len(given["collectives"]) == 101
    assert given["collectives"][0] == {
        **{"kind": "all-reduce", "purpose": "statistics of 'norm_0'"},
        **{"bytes": 96, "count": 4},
    }


def test_html_is_closed_escaped_and_without_scripts_or_colors():
    text = plan(8, 100)._repr_html_()
    opened, seen = [], set()

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            opened.append(tag)
            seen.add(tag)

        def handle_endtag(self, tag):
            assert opened.pop() == tag

    Reader().feed(text)
    assert not opened
    assert seen <= set("div p strong table thead tbody tr th td ul li".split())
    assert "color" not in text and "&lt;b&gt;a_model" in text


@pytest.mark.parametrize(
    ("devices", "normalizations"), [(1, 0), (2, 3), (8, 100)]
)
def test_every_device_and_crossing_is_in_the_picture(
    devices, normalizations, tmp_path
):
    given = plan(devices, normalizations)
    figure = given.plot(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").stat().st_size > 1000
    texts = figure.axes[0].texts
    said = "\n".join(text.get_text() for text in texts)
    for i in range(devices):
        assert f"gpu:{i} (virtual)" in said
    assert said.count("weights\n12.3 MB") == devices
    for line in summary_of(given.collectives):
        assert line.purpose in said
        assert readable(line.bytes) in said
    _assert_nothing_overlaps(figure)
    assert figure._repr_png_().startswith(b"\x89PNG")
    # Nothing pops up, and nothing is kept.
    assert sys.modules["matplotlib.pyplot"].get_fignums() == []


def _assert_nothing_overlaps(figure):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [
        (text.get_text(), text.get_window_extent(renderer))
        for text in figure.axes[0].texts
        if text.get_text()
    ]
    for i, (said, box) in enumerate(boxes):
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width, said
        assert box.y0 >= 0 and box.y1 <= figure.bbox.height, said
        for other, its in boxes[:i]:
            assert not box.overlaps(its), (said, other)


def test_a_picture_of_many_kinds_of_crossings_is_of_limited_height():
    many = tuple(Collective("all-gather", f"part {i}", i) for i in range(40))
    figure = plan(2, collectives=many).plot()
    said = [text.get_text() for text in figure.axes[0].texts]
    assert "28 smaller ones" in said
    assert figure.get_figheight() < 14


def test_no_bytes_at_all_can_be_drawn():
    sizes = {"weights": 0, "gradients": 0, "optimizer": None}
    shares = tuple(share(i, **sizes) for i in range(2))
    nothing = (Collective("all-reduce", "gradients", 0),)
    _assert_nothing_overlaps(plan(shares=shares, collectives=nothing).plot())


@pytest.mark.parametrize(
    "path",
    [5, b"plan.png", "plan", "plan.word", "", ".", "no/such/place/plan.png"],
)
def test_a_picture_that_cannot_be_written_is_refused_first(
    path, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    given = plan()
    with pytest.raises(InputError) as caught:
        given.plot(path)
    assert_teaches(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_no_picture(tmp_path):
    (tmp_path / "made.png").mkdir()
    for path in (tmp_path, tmp_path / "made.png", str(tmp_path)):
        with pytest.raises(InputError, match="a directory"):
            plan().plot(path)
    assert [path.name for path in tmp_path.iterdir()] == ["made.png"]


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    module = "keras_parallel.planning._picture"
    monkeypatch.delitem(sys.modules, module, raising=False)
    ordinary = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return ordinary(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PlotError) as caught:
        plan().plot()
    assert 'pip install "keras-parallel[plot]"' in str(caught.value)
    assert isinstance(caught.value, ImportError)
