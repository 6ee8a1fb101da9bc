"""Batches on the devices: rows split, what has no rows whole on each.

Touches a private name of JAX, `pxla.batched_device_put`, on which the public
`jax.device_put` ends: what that does before, anew for each batch, takes longer
than the rest of a step's input.
"""

import jax
import numpy as np
from jax._src.interpreters import pxla
from jax.core import ShapedArray
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from keras_parallel.engines.jax._processes import put
from keras_parallel.planning import lay_out_rows

# Arrays of other kinds go the long way, which knows what to do with them.
_PLAIN_KINDS = "biuf"


class Placement:
    """Puts batches on the devices of a mesh with one axis.

    Args:
        mesh: The mesh.
        report: Called with the `RowLayout` of each new number of rows.
    """

    def __init__(self, mesh, report):
        self._count = mesh.size
        self._on_each = NamedSharding(mesh, PartitionSpec())
        self._by_rows = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))
        self._report = report
        self._shardings = {}
        self._senders = {}

    def place(self, batch):
        """See `Replicas.place_batch`."""
        leaves, structure = jax.tree.flatten(batch)
        key = tuple(
            [
                (x.shape, x.dtype) if type(x) is np.ndarray else None
                for x in leaves
            ]
        )
        senders = self._senders.get(key)
        if senders is None:
            senders = self._make_senders(leaves, key)
        if senders:
            leaves = [send(x) for send, x in zip(senders, leaves)]
        else:
            leaves = self._send_any(leaves)
        return jax.tree.unflatten(structure, leaves)

    def _make_senders(self, leaves, key):
        """A function for each leaf; none if there are leaves of other kinds."""
        if not all(k is not None and _is_plain(k[1]) for k in key):
            return ()
        shardings = self._shardings_of(leaves)
        senders = tuple(map(_sender, leaves, shardings))
        self._senders[key] = senders
        return senders

    def _send_any(self, leaves):
        shardings = self._shardings_of(leaves)
        if None in shardings:
            return [
                x if s is None else put([x], [s])[0]
                for x, s in zip(leaves, shardings)
            ]
        if any(
            not isinstance(x, jax.Array) or x.sharding != s
            for x, s in zip(leaves, shardings)
        ):
            # One call for all of them costs little more than one leaf.
            return put(leaves, shardings)
        return leaves

    def _shardings_of(self, leaves):
        shapes = tuple(np.shape(x) if _is_numeric(x) else None for x in leaves)
        shardings = self._shardings.get(shapes)
        if shardings is None:
            shardings = self._shardings[shapes] = self._lay_out(shapes)
        return shardings

    def _lay_out(self, shapes):
        rows = next((s[0] for s in shapes if s), None)
        if rows is None:
            split = False
        else:
            layout = lay_out_rows(rows, self._count)
            split = layout.split
            self._report(layout)
        return [
            None
            if shape is None
            else self._by_rows
            if split and shape and shape[0] == rows
            else self._on_each
            for shape in shapes
        ]


def _sender(array, sharding):
    """What `jax.device_put(x, sharding)` does, for arrays like `array`."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    aval = ShapedArray(array.shape, dtype)
    parts = sharding.addressable_devices_indices_map(array.shape)
    devices, parts = list(parts), list(parts.values())

    def send(x):
        if x.dtype != dtype:
            x = x.astype(dtype)
        shards = [x[part] for part in parts]
        return pxla.batched_device_put(aval, sharding, shards, devices)

    return send


def _is_plain(dtype):
    # Not long doubles, which JAX has none of.
    return dtype.kind in _PLAIN_KINDS and dtype.itemsize <= 8 and dtype.isnative


def _is_numeric(leaf):
    return isinstance(leaf, jax.Array) or (
        isinstance(leaf, np.ndarray | np.generic)
        and leaf.dtype.kind in "biufcV"
    )
