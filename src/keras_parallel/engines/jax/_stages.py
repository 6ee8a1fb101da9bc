"""Stages on JAX: the parts of a model on devices of their own.

On JAX a scope inside a compiled function changes nothing about where it runs.
So a step is traced whole, as Keras and the user wrote it, and what was traced
is cut into programs of one device each. Differentiation, the optimizer, losses
and metrics are what they are on one device, equation by equation.
"""

import time

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from keras_parallel.engines.base import Stages
from keras_parallel.engines.jax._call_costs import outline_of_calls
from keras_parallel.engines.jax._execution import JaxExecution
from keras_parallel.engines.jax._labels import labelled
from keras_parallel.engines.jax._stage_programs import StagedStep
from keras_parallel.engines.jax._staged_program import program_of
from keras_parallel.engines.jax._state import each_once
from keras_parallel.engines.jax._state import in_groups
from keras_parallel.engines.jax._state import uncommitted


class JaxStages(JaxExecution, Stages):
    """The parts of a model on several JAX devices. See `Stages`."""

    def __init__(self, devices, jax_devices, homes_of, traced):
        super().__init__(devices, homes_of, traced)
        self.jax_devices = dict(zip(devices, jax_devices))
        # Kind of step -> what was compiled last.
        self._steps = {}

    def on(self, device):
        return labelled(device)

    def place_batch(self, batch):
        # Where each array is needed is known by who runs the stages.
        return batch

    def state_of(self, model, kinds, groups):
        """The state of a step. See `JaxExecution`."""
        del kinds
        homes = self.homes_of(model, [v for group in groups for v in group])
        return _State(groups, homes, self.jax_devices)

    def take(self, name, step, state, data):
        """Takes a step, which is being traced."""
        del name
        with self.traced():
            return step(state, data)

    def pin_gradients(self, weights):
        """Nothing: a gradient lies where it is computed."""
        return weights

    def outline(self, model, rows, numbered, count):
        return outline_of_calls(model, rows, numbered, count)

    def at_home(self, value):
        """What lies on another device, on the one where Keras keeps models."""
        if isinstance(value, jax.Array) and value.devices() != {self.home}:
            return uncommitted(jax.device_put(value, self.home))
        return value

    def settle(self, model):
        optimizer = getattr(model, "optimizer", None)
        groups = [
            model.variables,
            optimizer.variables if optimizer is not None else [],
            model.metrics_variables,
        ]
        state = self.state_of(model, {}, groups)
        with self.lock:
            state.bring_home()

    def function_of(self, model, kind):
        step = self._steps[kind] = _Step(self, model, kind)
        return model._make_function(step, concatenate_outputs=kind == "predict")

    def program(self, model, kind, batch):
        with self.running(model):
            if kind not in self._steps:
                self.function_of(model, kind)
            placed = model._keras_parallel.batch_preparation(model, kind)(batch)
            model._get_jax_state(
                trainable_variables=True,
                non_trainable_variables=True,
                metrics_variables=True,
                optimizer_variables=kind == "train",
            )
            state = model._keras_parallel.states[kind]
            start = time.perf_counter()
            staged = self._steps[kind].staged_for(state.read(), placed)
            seconds = time.perf_counter() - start
            return program_of(f"{kind}_step", staged, state.names(), seconds)


class _State:
    """The variables that a step takes, each on the device of its home.

    No array is committed to it: what a callback or the user computes of
    several variables, by calling the model for example, goes where it can.
    """

    def __init__(self, groups, homes, jax_devices):
        self._variables = [v for group in groups for v in group]
        self._lengths = [len(group) for group in groups]
        self.homes = homes
        self._shardings = [
            SingleDeviceSharding(jax_devices[home]) for home in homes
        ]

    def names(self):
        """What people call the variables."""
        return [variable.path for variable in self._variables]

    def read(self):
        """The values of the variables, in their groups."""
        arrays = self._at_home()
        self._assign(arrays)
        return in_groups(arrays, self._lengths)

    def write(self, groups):
        """Gives the variables the arrays that a step returned."""
        self._assign([array for group in groups for array in group])

    def bring_home(self):
        """Puts each array on the device of its home."""
        self._assign(self._at_home())

    def _at_home(self):
        arrays = each_once([v._value for v in self._variables])
        missing = [
            i
            for i, (array, sharding) in enumerate(zip(arrays, self._shardings))
            if getattr(array, "sharding", None) != sharding or array.committed
        ]
        if missing:
            placed = jax.device_put(
                [arrays[i] for i in missing],
                [self._shardings[i] for i in missing],
            )
            for i, array in zip(missing, placed):
                arrays[i] = uncommitted(array)
        return arrays

    def _assign(self, arrays):
        for variable, array in zip(self._variables, arrays):
            variable._value = array


class _Step:
    """A step of a model, compiled in stages for each shape of a batch."""

    def __init__(self, stages, model, kind):
        self._stages = stages
        self._model = model
        self._kind = kind
        self._compiled = {}

    def __call__(self, state, data):
        leaves, staged, outputs = self._for(state, data)
        return jax.tree.unflatten(outputs, staged(*leaves))

    def staged_for(self, state, data):
        """What runs for such a state and such data."""
        return self._for(state, data)[1]

    def _for(self, state, data):
        leaves, structure = jax.tree.flatten((state, data))
        key = structure, tuple(map(_shape_of, leaves))
        if key not in self._compiled:
            self._compiled[key] = self._staged(state, data)
        return leaves, *self._compiled[key]

    def _staged(self, state, data):
        described = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                np.shape(leaf), jax.dtypes.canonicalize_dtype(leaf.dtype)
            ),
            data,
        )
        traced, shapes = jax.make_jaxpr(self._take, return_shape=True)(
            state, described
        )
        homes = self._model._keras_parallel.states[self._kind].homes
        count = len(jax.tree.leaves(state))
        others = [None] * (len(traced.jaxpr.invars) - count)
        staged = StagedStep(
            f"{self._kind}_step",
            traced,
            [*homes, *others],
            self._stages.devices[0],
            self._stages.jax_devices,
            count,
        )
        return staged, jax.tree.structure(shapes)

    def _take(self, state, data):
        """The step as Keras compiles it: with a state like the one taken."""
        step = getattr(self._model, f"{self._kind}_step")
        outputs, new = step(state, data)
        if self._kind == "predict":
            new = state[0], new
        return outputs, new


def _shape_of(leaf):
    return np.shape(leaf), leaf.dtype, getattr(leaf, "weak_type", False)
