"""Replicas on JAX: state on every device, batches split by rows."""

import contextlib
import threading

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from keras_parallel.engines._interrupts import Interrupts
from keras_parallel.engines.base import Replicas
from keras_parallel.engines.jax._outline import outline_of
from keras_parallel.engines.jax._placement import Placement
from keras_parallel.engines.jax._row_sums import Rows
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
        self._names = {j: d.name for d, j in zip(devices, jax_devices)}
        # Where Keras keeps a model that is not parallel.
        self.home = next(iter(jax.numpy.zeros(()).devices()))
        self._mesh = mesh
        self._placement = Placement(mesh, report)
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
        return self._placement.place(batch)

    def rows_of(self, batch):
        """The rows of a batch that is being traced, if they are split."""
        shapes = [
            leaf.shape
            for leaf in jax.tree.leaves(batch)
            if isinstance(leaf, Tracer)
        ]
        number = next((shape[0] for shape in shapes if shape), 0)
        count = len(self.devices)
        if count == 1 or not lay_out_rows(number, count).split:
            return None
        return Rows(number, self._mesh)

    def rows_on(self, array):
        if isinstance(array, np.ndarray):
            (name,) = self._names.values()
            return {name: array.shape[0]}
        return {
            self._names[shard.device]: shard.data.shape[0]
            for shard in array.addressable_shards
        }

    def outline(self, model, rows):
        widths = {}
        if self.home.platform == "cpu":
            # XLA:CPU has no arithmetic in it.
            widths["bfloat16"] = 4
        return outline_of(model, rows, widths)

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
