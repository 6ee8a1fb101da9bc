"""What a step is predicted to cost. Values that can be told by hand."""

import dataclasses

import pytest

from keras_parallel.planning import Collective
from keras_parallel.planning.cost import Compute
from keras_parallel.planning.cost import Host
from keras_parallel.planning.cost import Link
from keras_parallel.planning.cost import exchange_seconds
from keras_parallel.planning.cost import predict

# 1 MB a second and no latency: a megabyte is a second.
SLOW = Link(1e6, 0.0)
MEGABYTE = Collective("all-reduce", "gradients", 1_000_000)


def step(num_devices, **changed):
    given = {
        "compute": Compute(0.5),
        "collectives": [MEGABYTE],
        "link": SLOW,
        "host": Host(0.25),
    }
    return predict(num_devices, **(given | changed))


def test_one_device_exchanges_nothing():
    one = step(1)
    assert one.communication == 0
    assert one.seconds == 0.75


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        # By hand for 4 devices: of 4 quarters each sends 3, or 3 twice.
        ("all-reduce", 1.5),
        ("reduce-scatter", 0.75),
        ("all-gather", 3.0),
        ("all-to-all", 0.75),
        ("collective-permute", 1.0),
    ],
)
def test_bytes_by_hand(kind, seconds):
    collective = Collective(kind, "", 1_000_000)
    assert exchange_seconds(collective, 4, SLOW) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("num_devices", "messages"), [(2, 2), (3, 4), (4, 4), (8, 6), (1024, 20)]
)
def test_messages_of_an_all_reduce(num_devices, messages):
    one_second_each = Link(1e30, 1.0)
    twice = dataclasses.replace(MEGABYTE, count=2)
    for collective, operations in ((MEGABYTE, 1), (twice, 2)):
        seconds = exchange_seconds(collective, num_devices, one_second_each)
        assert seconds == pytest.approx(operations * messages)


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        # By hand for 4 devices: 4 are read, and what they get is written.
        ("all-reduce", 8),
        ("reduce-scatter", 5),
        ("all-gather", 20),
        ("all-to-all", 8),
        ("collective-permute", 8),
    ],
)
def test_a_shared_memory_is_read_and_written(kind, seconds):
    shared = dataclasses.replace(SLOW, shared=True)
    collective = Collective(kind, "", 1_000_000)
    assert exchange_seconds(collective, 4, shared) == pytest.approx(seconds)


def test_more_devices_bytes_and_latency_cost_more():
    costs = [step(n).communication for n in (1, 2, 4, 8, 64, 1024)]
    assert costs == sorted(set(costs))
    assert costs[-1] < 2, "the bytes that a ring sends are bounded"
    more = dataclasses.replace(MEGABYTE, bytes=2_000_000)
    assert step(2, collectives=[more]).communication == pytest.approx(
        2 * step(2).communication
    )
    assert step(2, link=Link(1e6, 0.1)).seconds > step(2).seconds


def test_devices_that_share_cores_queue_for_them():
    compute = Compute(seconds=1.0, core_seconds=1.0, cores=2)
    assert [compute.on(n) for n in (1, 2, 4, 8)] == [1, 1, 2, 4]
    alone = dataclasses.replace(compute, cores=None)
    assert [alone.on(n) for n in (1, 8)] == [1, 1]


def test_operations_per_second():
    assert Compute.from_flops(3e12, rate=1e12).on(64) == 3


def test_host_cost_grows_with_variables_and_devices():
    host = Host(step=1, variable=0.1, device=2, array=0.01)
    assert host.on(1, 10) == pytest.approx(1 + 1)
    assert host.on(3, 10) == pytest.approx(1 + 1 + 2 * 2 + 2 * 10 * 0.01)
    assert step(3, host=host, num_variables=10).host == host.on(3, 10)
    meets = Host(meeting=0.5)
    assert meets.on(1, 10, 4) == 0
    assert meets.on(3, 10, 4) == pytest.approx(2 * 4 * 0.5)
    assert step(3, host=meets, num_crossing=4).host == meets.on(3, 0, 4)


def test_a_prediction_says_what_it_is():
    assert str(step(2)) == (
        "prediction, not measured: 1750 ms a step on 2 devices "
        "(compute 500, communication 1000, host 250)"
    )


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: Link(0, 1e-6),
        lambda: Link(1e9, -1),
        lambda: Link(float("nan"), 0),
        lambda: Compute(-1),
        lambda: Compute(1, 1, cores=0),
        lambda: Compute.from_flops(1, 0),
        lambda: Host(variable=-1),
        lambda: Host(meeting=-1),
        lambda: step(0),
    ],
)
def test_impossible_inputs_are_refused(mistake):
    with pytest.raises(ValueError, match=r"Received: .* A value that works: "):
        mistake()
