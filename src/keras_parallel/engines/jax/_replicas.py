"""Replicas on JAX: state on every device, batches split by rows."""

import contextlib

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from keras_parallel.engines.base import Replicas
from keras_parallel.engines.jax import _apart
from keras_parallel.engines.jax._execution import JaxExecution
from keras_parallel.engines.jax._outline import outline_of
from keras_parallel.engines.jax._placement import Placement
from keras_parallel.engines.jax._processes import by_itself
from keras_parallel.engines.jax._processes import is_joint
from keras_parallel.engines.jax._program import compiled_step
from keras_parallel.engines.jax._row_sums import Rows
from keras_parallel.engines.jax._state import StepState
from keras_parallel.engines.jax._state import home_copy
from keras_parallel.engines.jax._state import lies_as
from keras_parallel.engines.jax._sum_once import summed_once
from keras_parallel.planning import lay_out_rows

_BATCH_AXIS = "batch"
# On XLA:CPU the devices meet once for each array, also for those of one fused
# all-reduce: in a small model that takes longer than all else. To join arrays
# costs a copy, which for the first number of bytes takes as long as to meet,
# and a kernel to compile for each, which a larger model does not repay.
_SMALL_SUM, _SMALL_MODEL = 2**16, 2**20
# Where the optimizer's variables are in the state of a training step.
_SLOTS = 2


class JaxReplicas(JaxExecution, Replicas):
    """One copy of a model on each of several JAX devices. See `Replicas`.

    A step is one program over the mesh of devices: XLA's partitioner turns a
    batch split by rows and a state held on every device into the step of
    each device and the collectives between them (GSPMD, arXiv:2105.04663).
    """

    def __init__(self, devices, jax_devices, report, shard_optimizer=False):
        super().__init__(devices, report, shard_optimizer)
        mesh = Mesh(np.array(jax_devices), (_BATCH_AXIS,))
        self.on_each = NamedSharding(mesh, PartitionSpec())
        self._names = {j: d.name for d, j in zip(devices, jax_devices)}
        self._mesh = mesh
        self._placement = Placement(mesh, report)
        self._slot_shardings = {}

    def state_of(self, model, kinds, groups):
        """The state of a step.

        Args:
            model: The parallel model.
            kinds: What `_get_jax_state` was asked for.
            groups: Lists of the variables.
        """
        del model
        shardings = self._shardings(kinds, groups)
        return StepState(groups, self.on_each, self.home, shardings)

    def take(self, name, step, state, data):
        """Takes a step, which is being traced or runs eagerly."""
        rows = self._rows_of(data, state[0])
        with self._taking(name):
            if rows is None:
                outputs, state = step(state, data)
            else:
                outputs, state = summed_once(step, (state, data), rows)
        if is_joint(self.on_each):
            # A process reads what its own devices hold only.
            outputs = jax.tree.map(self._pinned, outputs)
        # Without this XLA may return a part of the state sharded, and the next
        # step would be compiled once more for it.
        layout = self._layout_of_state(name, state)
        return outputs, jax.lax.with_sharding_constraint(state, layout)

    def _pinned(self, leaf):
        if not isinstance(leaf, jax.Array):
            return leaf
        return jax.lax.with_sharding_constraint(leaf, self.on_each)

    def place_batch(self, batch):
        return self._placement.place(batch)

    def _rows_of(self, batch, weights):
        """The rows of a batch that is being traced, if they are split.

        Args:
            batch: The batch.
            weights: The trainable weights of the step.
        """
        shapes = [
            leaf.shape
            for leaf in jax.tree.leaves(batch)
            if isinstance(leaf, Tracer)
        ]
        number = next((shape[0] for shape in shapes if shape), 0)
        count = len(self.devices)
        if count == 1 or not lay_out_rows(number, count).split:
            return None
        is_small = sum(w.nbytes for w in weights) <= _SMALL_MODEL
        joins = is_small and self.home.platform == "cpu"
        return Rows(number, self._mesh, _SMALL_SUM if joins else 0)

    def _shardings(self, kinds, groups):
        """The sharding of each variable, `None` if all lie on each device."""
        if not self.shard_optimizer:
            return None
        slots = _SLOTS if kinds.get("optimizer_variables") else None
        return [
            self._sharding_of_slot(v.shape) if i == slots else self.on_each
            for i, group in enumerate(groups)
            for v in group
        ]

    @contextlib.contextmanager
    def _taking(self, step):
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

    def _layout_of_state(self, step, state):
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

    def by_itself(self, variables):
        return by_itself(variables)

    def rows_on(self, array):
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
        if lies_as(value, self.on_each):
            return home_copy(value, self.home)
        if self.shard_optimizer and _apart.lies_apart(value):
            return _apart.gathered(value, self.home)
        return value

    def program(self, model, kind, batch):
        if model.run_eagerly or not model.jit_compile:
            return None
        with self.running(model):
            return compiled_step(model, kind, batch)
