"""The compiled step against the plan, and times of devices, as values."""

import pytest

from keras_parallel.planning import Busy
from keras_parallel.planning import Collective
from keras_parallel.planning import Device
from keras_parallel.planning import DeviceShare
from keras_parallel.planning import Event
from keras_parallel.planning import Plan
from keras_parallel.planning import Program
from keras_parallel.planning import Timeline
from keras_parallel.planning import busy_devices
from keras_parallel.planning import compare


def plan(*collectives):
    shares = [DeviceShare(Device("gpu", i), 4, 0, 0, 0, 0, 0) for i in (0, 1)]
    return Plan("model", 8, tuple(shares), collectives)


def program(*collectives):
    return Program("train_step", collectives, None, 0, 0, 0, 0.0)


def test_sums_of_bytes_are_compared_kind_by_kind():
    planned = plan(
        Collective("all-reduce", "gradients", 100_000),
        Collective("all-reduce", "statistics", 400, count=4),
    )
    compiled = program(
        Collective("all-reduce", "grad/a", 50_100),
        Collective("all-reduce", "grad/b", 50_300),
    )
    (row,) = compare(planned, compiled)
    assert (row.planned, row.compiled) == (100_400, 100_400)
    assert row.ok and row.ratio == 1.0 and row.unplanned == ()


def test_what_is_compiled_and_not_planned_is_named_largest_first():
    planned = plan(Collective("all-reduce", "gradients", 100_000))
    gathers = [
        Collective("all-gather", "rows", 30_000, count=10),
        Collective("all-gather", "more", 40_000),
        Collective("all-gather", "small", 8),
        Collective("all-gather", "smaller", 4),
    ]
    compiled = program(Collective("all-reduce", "grad", 102_000), *gathers)
    reduced, gathered = compare(planned, compiled)
    assert reduced.ok
    assert not gathered.ok and gathered.ratio is None
    assert [c.purpose for c in gathered.unplanned] == ["more", "rows", "small"]
    (row,) = compare(
        planned, program(Collective("all-reduce", "grad", 104_000))
    )
    assert not row.ok


def test_what_was_planned_and_not_compiled_is_a_row_too():
    (row,) = compare(plan(Collective("all-reduce", "gradients", 9)), program())
    assert (row.planned, row.compiled, row.ok) == (9, 0, True)


def test_time_of_a_device_counts_once():
    def event(device, kind, start, stop):
        return Event(device, kind, "op", start, stop - start)

    timeline = Timeline(
        (
            event("gpu:0", "compute", 0.0, 4.0),
            event("gpu:0", "compute", 1.0, 2.0),
            event("gpu:1", "communication", 1.0, 2.0),
            event("gpu:0", "communication", 3.0, 6.0),
            event("host", "host", 6.0, 9.0),
        )
    )
    found = busy_devices(timeline)
    assert set(found) == {"gpu:0", "gpu:1"}
    assert found["gpu:1"] == Busy(0.0, pytest.approx(1.0))
    assert found["gpu:0"].compute == pytest.approx(4.0)
    # What ran beside computing is not waited for.
    assert found["gpu:0"].communication == pytest.approx(2.0)
    assert busy_devices(Timeline(())) == {}
