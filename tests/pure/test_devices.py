"""Device names and the selection of devices. No Keras, no backend."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_parallel._errors import DeviceError
from keras_parallel.planning import Device
from keras_parallel.planning import choose_devices
from keras_parallel.planning import lay_out_rows

GPUS = tuple(Device("gpu", i) for i in range(4))
HOST = (*GPUS, Device("cpu", 0))


@pytest.mark.parametrize(
    "name",
    [
        *("gpu:1", "/gpu:1", "GPU:1", "/device:GPU:1", "device:gpu:1"),
        "/job:localhost/replica:0/task:0/device:GPU:1",
    ],
)
def test_accepted_spellings(name):
    assert Device.parse(name) == Device("gpu", 1)
    assert Device.parse(name).name == "gpu:1"


@pytest.mark.parametrize(
    "name",
    [
        *("gpu", "gpu:", "gpu:-1", "gpu:x", "gpu:1\n", "", "0", 3, None),
        *("xpu:0", "/job:worker/replica:0/task:0/device:GPU:1"),
    ],
)
def test_other_spellings_are_refused(name):
    with pytest.raises(DeviceError, match=r"Received: "):
        Device.parse(name)


def test_none_takes_all_of_the_best_kind():
    assert choose_devices(None, HOST) == GPUS
    assert choose_devices(None, HOST[-1:]) == HOST[-1:]


def test_a_number_takes_the_first():
    assert choose_devices(2, HOST) == GPUS[:2]


def test_names_are_taken_in_their_order():
    assert choose_devices(["gpu:3", "/GPU:0"], HOST) == (GPUS[3], GPUS[0])
    assert choose_devices(("cpu:0",), HOST) == HOST[-1:]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (True, "devices=True"),
        (0, "devices=0"),
        (-2, "devices=-2"),
        (1.5, "devices=1.5"),
        ("gpu:0", "devices='gpu:0'"),
        ({"gpu:0": 1}, "of type dict"),
        ([], "devices="),
        (["gpu:0", "/gpu:0"], "more than once"),
        (["gpu:0", "cpu:0"], "one kind"),
        (["gpu:0", "gpu:9"], "gpu:9"),
        ([0, 1], "Received: 0"),
        (5, "Expected 5 devices"),
    ],
)
def test_bad_devices_are_refused(devices, said):
    with pytest.raises(ValueError) as caught:
        choose_devices(devices, HOST)
    assert said in str(caught.value)
    assert "Received" in str(caught.value)


def test_too_few_gpus_says_what_is_there_and_how_to_try():
    with pytest.raises(ValueError) as caught:
        choose_devices(8, HOST, "gpus")
    message = str(caught.value)
    assert "Expected 8 GPUs" in message
    assert "has 4 of kind 'gpu'" in message
    assert "use_virtual_devices(8)" in message
    assert "keras-parallel run --virtual-devices 8" in message


@given(rows=st.integers(0, 500), devices=st.integers(1, 16))
def test_rows_are_split_evenly_or_not_at_all(rows, devices):
    layout = lay_out_rows(rows, devices)
    assert len(layout.per_device) == devices
    if layout.split:
        assert sum(layout.per_device) == rows
        assert len(set(layout.per_device)) == 1
    else:
        assert set(layout.per_device) == {rows}
        assert rows == 0 or rows % devices
