"""The private names of JAX that we depend on, and that they do the same.

If one fails under a new JAX, that name has moved: the file that is named in
the test says why it is used.
"""

import inspect

import jax
import ml_dtypes
import numpy as np
import pytest
from jax._src.array import ArrayImpl
from jax._src.interpreters import pxla
from jax.interpreters import partial_eval
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from keras_parallel.engines.jax._labels import label_of
from keras_parallel.engines.jax._labels import labelled
from keras_parallel.engines.jax._placement import Placement
from keras_parallel.planning import Device
from keras_parallel.planning import lay_out_rows


def test_arrays_are_sent_by_batched_device_put():
    """`engines/jax/_placement.py`."""
    parameters = list(inspect.signature(pxla.batched_device_put).parameters)
    assert parameters[:4] == ["aval", "sharding", "xs", "devices"]
    assert "batched_device_put(aval, sharding, shards, devices)" in (
        inspect.getsource(pxla._shard_np_array)
    )


def test_an_array_can_be_made_that_is_not_committed():
    """`engines/jax/_state.py`."""
    one = jax.device_put(np.ones(3), jax.devices()[0])
    free = ArrayImpl(one.aval, one.sharding, [one], committed=False)
    assert one.committed and not free.committed
    np.testing.assert_array_equal(free, one)


def arrays(rows):
    """What a batch may hold, all with `rows` rows."""
    numbers = np.random.default_rng(0).normal(size=(rows, 6)) * 50
    whole = numbers.astype("int64")
    return {
        "float32": numbers.astype("float32"),
        "float64": numbers,
        "float16": numbers.astype("float16"),
        "bfloat16": numbers.astype(ml_dtypes.bfloat16),
        "bool": numbers > 0,
        "uint8": whole.astype("uint8"),
        "int64": whole,
        "int64 too large": whole + 2**33,
        "columns": numbers[:, ::2],
        "Fortran order": np.asfortranarray(numbers),
        "read only": np.broadcast_to(np.float32(3), (rows, 2)),
        "on a device": jax.numpy.asarray(numbers),
        "one column": numbers[:, 0],
    }


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("rows", [6, 7, 1, 0])
def test_a_batch_is_placed_as_by_device_put(rows, count):
    mesh = Mesh(np.array(jax.devices()[:count]), ("batch",))
    split = rows > 0 and lay_out_rows(rows, count).split
    spec = PartitionSpec("batch") if split else PartitionSpec()
    placement = Placement(mesh, lambda layout: None)
    every = arrays(rows)
    # All at once, as one kind that is not plain sends all the long way.
    for kinds in [*([kind] for kind in every), list(every)]:
        batch = {kind: every[kind] for kind in kinds}
        placed = placement.place((batch, None))
        again = placement.place((batch, None))
        for kind in kinds:
            expected = jax.device_put(every[kind], NamedSharding(mesh, spec))
            for found in (placed[0][kind], again[0][kind]):
                assert found.sharding == expected.sharding
                assert found.dtype == expected.dtype
                assert found.committed
                assert found.aval.weak_type == expected.aval.weak_type
                np.testing.assert_array_equal(found, expected)
                assert [s.device for s in found.addressable_shards] == [
                    s.device for s in expected.addressable_shards
                ]


def test_a_placed_batch_is_not_moved():
    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))
    placement = Placement(mesh, lambda layout: None)
    batch = placement.place((np.ones((4, 2)), np.ones(4)))
    again = placement.place(batch)
    assert all(a is b for a, b in zip(batch, again))


def test_what_has_no_rows_lies_whole_on_each_device():
    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))
    placement = Placement(mesh, lambda layout: None)
    x, table, scalar, text = placement.place(
        (np.ones((4, 2)), np.ones((3, 2)), np.float32(2), np.array(["a"]))
    )
    shapes = [
        {shard.data.shape for shard in array.addressable_shards}
        for array in (x, table, scalar)
    ]
    assert shapes == [{(2, 2)}, {(3, 2)}, {()}]
    assert isinstance(text, np.ndarray)


def test_labels_go_along_with_gradients():
    """`engines/jax/_labels.py`."""
    device = Device("gpu", 3)

    def loss(w, x):
        with labelled(Device("gpu", 1)):
            with labelled(device):
                h = jax.nn.relu(x @ w)
            return (jax.numpy.sin(h) ** 2).sum()

    args = np.ones((2, 3)), np.ones((5, 2))
    jaxpr = jax.make_jaxpr(jax.grad(loss))(*args).jaxpr
    labels = {e.primitive.name: label_of(e) for e in jaxpr.eqns}
    assert labels["dot_general"] == device
    assert labels["sin"] == labels["cos"] == Device("gpu", 1)
    products = [e for e in jaxpr.eqns if e.primitive.name == "dot_general"]
    assert len(products) == 2 and set(map(label_of, products)) == {device}


def test_a_condition_can_be_cut_to_some_of_its_results():
    """`engines/jax/_places.py`."""

    def both(flag, a, b):
        return jax.lax.cond(flag, lambda: (a + 1, b * 2), lambda: (a, b))

    (equation,) = [
        e
        for e in jax.make_jaxpr(both)(True, 1.0, 2.0).jaxpr.eqns
        if e.primitive.name == "cond"
    ]
    rule = partial_eval.dce_rules[equation.primitive]
    _, cut = rule([False, True], equation)
    assert len(cut.outvars) == 1
    assert len(cut.invars) == len(equation.invars) - 1
