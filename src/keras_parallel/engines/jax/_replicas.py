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
from keras_parallel.engines.jax import _apart
from keras_parallel.engines.jax._state import home_copy
from keras_parallel.engines.jax._state import lies_as
from keras_parallel.engines.jax._trainer import JaxTrainerLayer
from keras_parallel.planning import lay_out_rows

_BATCH_AXIS = "batch"
_KINDS = ("train", "test", "predict")
# Where the optimizer's variables are in the state of a training step.
_SLOTS = 2


class JaxReplicas(Replicas):
    """One copy of a model on each of several JAX devices. See `Replicas`.

    A step is one program over the mesh of devices: XLA's partitioner turns a
    batch split by rows and a state held on every device into the step of
    each device and the collectives between them (GSPMD, arXiv:2105.04663).
    """

    runtime_attributes = ("_jax_state", "_jax_state_synced")
    reserved_methods = ("_get_jax_state", "jax_state_sync")

    def __init__(self, devices, jax_devices, report, shard_optimizer=False):
        super().__init__(devices, report, shard_optimizer)
        mesh = Mesh(np.array(jax_devices), (_BATCH_AXIS,))
        self.on_each = NamedSharding(mesh, PartitionSpec())
        self.by_rows = NamedSharding(mesh, PartitionSpec(_BATCH_AXIS))
        self._names = {j: d.name for d, j in zip(devices, jax_devices)}
        # Where Keras keeps a model that is not parallel.
        self.home = next(iter(jax.numpy.zeros(()).devices()))
        self._layouts = {}
        self._slot_shardings = {}
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

    def shardings(self, kinds, groups):
        """The sharding of each variable, `None` if all lie on each device.

        Args:
            kinds: What `_get_jax_state` was asked for.
            groups: Lists of the variables.
        """
        if not self.shard_optimizer:
            return None
        slots = _SLOTS if kinds.get("optimizer_variables") else None
        return [
            self._sharding_of_slot(v.shape) if i == slots else self.on_each
            for i, group in enumerate(groups)
            for v in group
        ]

    @contextlib.contextmanager
    def taking(self, step):
        """The context in which a step is compiled, or run eagerly."""
        before = getattr(self.of_thread, "step", None)
        self.of_thread.step = step
        try:
            yield
        finally:
            self.of_thread.step = before

    def pin_gradients(self, weights):
        """The weights of a step, with gradients that lie on each device.

        What pins an array inside a function pins its gradient. Where slots
        are in parts, gradients in parts would draw others with them, such as
        the statistics of BatchNormalization, to be gathered in each step.
        """
        step = getattr(self.of_thread, "step", None)
        if not self.shard_optimizer or step != "train_step":
            return weights
        return jax.lax.with_sharding_constraint(weights, self.on_each)

    def layout_of_state(self, step, state):
        """How what a step returns has to lie, as a tree for JAX."""
        if not self.shard_optimizer or step != "train_step":
            return self.on_each
        slots = [self._sharding_of_slot(a.shape) for a in state[_SLOTS]]
        others = (self.on_each,)
        return (*others * _SLOTS, slots, *others * (len(state) - _SLOTS - 1))

    def _sharding_of_slot(self, shape):
        if shape not in self._slot_shardings:
            dim, sharding = self.lay_out_slot(shape).dim, self.on_each
            if dim is not None:
                split = PartitionSpec(*[None] * dim, _BATCH_AXIS)
                sharding = NamedSharding(self.on_each.mesh, split)
            self._slot_shardings[shape] = sharding
        return self._slot_shardings[shape]

    def rows_on(self, array):
        return {
            self._names[shard.device]: shard.data.shape[0]
            for shard in array.addressable_shards
        }

    def at_home(self, value):
        """The copy on one device of what lies on each, else `value`."""
        if lies_as(value, self.on_each):
            return home_copy(value, self.home)
        if self.shard_optimizer and _apart.lies_apart(value):
            return _apart.gathered(value, self.home)
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
                            states = model._keras_parallel.states
                            # First the one that has all variables, and sees
                            # which of them hold one array.
                            for kind in sorted(states, key=_KINDS.index):
                                states[kind].bring_home()
        finally:
            with self.lock:
                self._depth -= 1


def _is_numeric(leaf):
    return isinstance(leaf, jax.Array) or (
        isinstance(leaf, np.ndarray | np.generic)
        and leaf.dtype.kind in "biufcV"
    )
