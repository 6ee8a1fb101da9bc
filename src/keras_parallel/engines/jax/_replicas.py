"""Replicas on JAX: state on every device, batches split by rows."""

import contextlib
import threading

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from keras_parallel.engines._interrupts import Interrupts
from keras_parallel.engines.base import Replicas
from keras_parallel.engines.jax._program import compiled_step
from keras_parallel.engines.jax._state import home_copy
from keras_parallel.engines.jax._state import is_replicated
from keras_parallel.engines.jax._trainer import JaxTrainerLayer
from keras_parallel.planning import lay_out_rows

_BATCH_AXIS = "batch"


class JaxReplicas(Replicas):
    """One copy of a model on each of several JAX devices. See `Replicas`.

    A step is one program over the mesh of devices: XLA's partitioner turns a
    batch split by rows and a state held on every device into the step of
    each device and the collectives between them (GSPMD, arXiv:2105.04663).
    """

    runtime_attributes = ("_jax_state", "_jax_state_synced")
    reserved_methods = ("_get_jax_state", "jax_state_sync")

    def __init__(self, devices, jax_devices, report):
        super().__init__(devices, report)
        mesh = Mesh(np.array(jax_devices), (_BATCH_AXIS,))
        self.on_each = NamedSharding(mesh, PartitionSpec())
        self.by_rows = NamedSharding(mesh, PartitionSpec(_BATCH_AXIS))
        self._names = {j: d.name for d, j in zip(devices, jax_devices)}
        # Where Keras keeps a model that is not parallel.
        self.home = next(iter(jax.numpy.zeros(()).devices()))
        self._layouts = {}
        # How many methods run, one inside another or in several threads.
        self._depth = 0
        # A step consumes the state that it is given: one thread at a time.
        self.lock = threading.RLock()
        self.of_thread = threading.local()
        self.interrupts = Interrupts()

    @property
    def trainer_layer(self):
        return JaxTrainerLayer

    def place_batch(self, batch):
        leaves, structure = jax.tree.flatten(batch)
        key = tuple(np.shape(x) if _is_numeric(x) else None for x in leaves)
        shardings = self._layouts.get(key)
        if shardings is None:
            shardings = self._layouts[key] = self._lay_out(key)
        if None in shardings:
            leaves = [
                x if s is None else jax.device_put(x, s)
                for x, s in zip(leaves, shardings)
            ]
        elif any(
            not isinstance(x, jax.Array) or x.sharding != s
            for x, s in zip(leaves, shardings)
        ):
            # One call for all of them costs little more than one leaf.
            leaves = jax.device_put(leaves, shardings)
        return jax.tree.unflatten(structure, leaves)

    def _lay_out(self, shapes):
        rows = next((s[0] for s in shapes if s), None)
        if rows is None:
            split = False
        else:
            layout = lay_out_rows(rows, len(self.devices))
            split = layout.split
            self.report(layout)
        return [
            None
            if shape is None
            else self.by_rows
            if split and shape and shape[0] == rows
            else self.on_each
            for shape in shapes
        ]

    def rows_on(self, array):
        return {
            self._names[shard.device]: shard.data.shape[0]
            for shard in array.addressable_shards
        }

    def at_home(self, value):
        """The copy on one device of what lies on each, else `value`."""
        if is_replicated(value, self.on_each):
            return home_copy(value, self.home)
        return value

    @contextlib.contextmanager
    def running(self, model):
        with self.lock:
            self._depth += 1
        try:
            with self.interrupts.watched():
                try:
                    yield
                finally:
                    with self.lock, self.interrupts:
                        # Another thread may still run a method.
                        if self._depth == 1:
                            for state in model._keras_parallel.states.values():
                                state.bring_home()
        finally:
            with self.lock:
                self._depth -= 1

    def program(self, model, kind, batch):
        if model.run_eagerly or not model.jit_compile:
            return None
        with self.running(model):
            return compiled_step(model, kind, batch)


def _is_numeric(leaf):
    return isinstance(leaf, jax.Array) or (
        isinstance(leaf, np.ndarray | np.generic)
        and leaf.dtype.kind in "biufcV"
    )
