"""How optimizer variables are laid on devices. No Keras, no backend."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_parallel.planning import SlotLayout
from keras_parallel.planning import lay_out_slot


@pytest.mark.parametrize(
    ("shape", "dim", "part"),
    [
        ((512, 1024), 1, (512, 256)),
        ((1024, 512), 0, (256, 512)),
        ((8, 8), 0, (2, 8)),
        ((7, 4, 9), 1, (7, 1, 9)),
        ((7, 9), None, (7, 9)),
        ((0, 3), None, (0, 3)),
        ((3,), None, (3,)),
        ((), None, ()),
    ],
)
def test_split_is_the_largest_dim_that_divides(shape, dim, part):
    assert lay_out_slot(shape, 4, shard=True) == SlotLayout(shape, dim, part)


@pytest.mark.parametrize(("devices", "shard"), [(1, True), (4, False)])
def test_whole_on_one_device_and_where_nothing_is_split(devices, shard):
    layout = lay_out_slot((8, 8), devices, shard)
    assert layout == SlotLayout((8, 8), None, (8, 8))
    assert layout.parts == 1


@given(st.lists(st.integers(0, 64), max_size=4), st.integers(1, 16))
def test_the_parts_make_up_the_whole(shape, devices):
    layout = lay_out_slot(tuple(shape), devices, shard=True)
    assert layout.parts == (1 if layout.dim is None else devices)
    assert math.prod(layout.part) * layout.parts == math.prod(shape)
