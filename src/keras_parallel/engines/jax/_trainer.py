"""What is overridden in Keras's JAX trainer.

Private names of Keras that are touched here:

- `_get_jax_state`: reads the state that a step takes. Public hooks begin
  after it, when the variables are emptied and the state lies on one device.
- `_jax_state`, `_jax_state_synced`: set by `fit` around each step.

`tests/surface/test_keras_private.py` names each when a new Keras moves it.
"""

import itertools
import typing

import jax
import keras

from keras_parallel.engines.jax._input import Input

if typing.TYPE_CHECKING:
    _Trainer = keras.Model
else:
    _Trainer = object


class JaxTrainerLayer(_Trainer):
    """Runs each step of Keras's JAX trainer on several devices.

    Keras passes the state from step to step in a tuple and leaves the
    variables without a value meanwhile, so that a callback that reads,
    evaluates or assigns meets stale or missing values, and an exception
    leaves the model empty. Here the variables are the truth: a step's result
    is written to them at once, and the next step starts from what they hold.
    """

    # Set by the strategy: see `Execution.trainer_layer`.
    _keras_parallel: typing.Any

    def _get_jax_state(self, *, purge_model_variables=False, **kinds):
        del purge_model_variables  # The variables keep their values.
        groups = [
            variables_of(self)
            for kind, variables_of in _STATE_GROUPS.items()
            if kinds.get(kind)
        ]
        execution = self._keras_parallel.execution
        with execution.lock:
            state = execution.state_of(self, kinds, groups)
            self._keras_parallel.states[_step_that_takes(kinds)] = state
            return state.read()

    def jax_state_sync(self):
        self._jax_state_synced = True

    # Each thread that asks the model has its own: Keras takes a state from the
    # last step where it finds `False`, which may be what another thread set.

    @property
    def _jax_state_synced(self):
        return getattr(self._keras_parallel.execution.of_thread, "synced", True)

    @_jax_state_synced.setter
    def _jax_state_synced(self, synced):
        self._keras_parallel.execution.of_thread.synced = synced

    def get_state_tree(self, value_format="backend_tensor"):
        # Orbax writes where arrays lie into its files, and reads them back
        # only where there are as many devices.
        tree = super().get_state_tree(value_format)
        return jax.tree.map(self._keras_parallel.execution.at_home, tree)

    def stateless_call(self, trainable_variables, *args, **kwargs):
        pin = self._keras_parallel.execution.pin_gradients
        return super().stateless_call(pin(trainable_variables), *args, **kwargs)

    def train_step(self, state, data):
        return _take(self, "train_step", super().train_step, state, data)

    def test_step(self, state, data):
        return _take(self, "test_step", super().test_step, state, data)

    def predict_step(self, state, data):
        return _take(self, "predict_step", super().predict_step, state, data)

    def train_on_batch(
        self,
        x,
        y=None,
        sample_weight=None,
        class_weight=None,
        return_dict=False,
    ):
        method = super().train_on_batch
        if class_weight is None:
            x, y, sample_weight = _placed(self, method, (x, y, sample_weight))
        return method(
            x,
            y,
            sample_weight=sample_weight,
            class_weight=class_weight,
            return_dict=return_dict,
        )

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        method = super().test_on_batch
        x, y, sample_weight = _placed(self, method, (x, y, sample_weight))
        return method(
            x, y, sample_weight=sample_weight, return_dict=return_dict
        )

    def make_train_function(self, force=False):
        before = self.train_function
        super().make_train_function(force)
        if self.train_function is not before:
            self.train_function = _on_devices(self, "train")

    def make_test_function(self, force=False):
        before = self.test_function
        super().make_test_function(force)
        if self.test_function is not before:
            self.test_function = _on_devices(self, "test")

    def make_predict_function(self, force=False):
        before = self.predict_function
        super().make_predict_function(force)
        if self.predict_function is not before:
            self.predict_function = _on_devices(self, "predict")


# Functions, not methods: a name in the class could be one of the user's.


def _take(model, name, of_the_class, state, data):
    parallel = model._keras_parallel
    step = parallel.users(name, of_the_class)
    return parallel.execution.take(name, step, state, data)


def _placed(model, method, batch):
    # Keras sends what it gets whole to the first device, and leaves alone what
    # lies on devices. A method of the user's own gets what was passed.
    if method.__func__.__module__.startswith("keras."):
        return model._keras_parallel.execution.place_batch(batch)
    return batch


def _on_devices(model, kind):
    states = model._keras_parallel.states
    execution = model._keras_parallel.execution
    function = execution.function_of(model, kind)
    # Keras makes another function for several steps, which reads how many.
    several = model.steps_per_execution > 1
    prepare = model._keras_parallel.batch_preparation(model, kind)
    source = Input(prepare, several)

    def step(_, iterator):
        # All batches come first: what makes them may use this very model, and
        # may raise, and the steps consume the state.
        count = model.steps_per_execution if several else 1
        batches = list(itertools.islice(source.batches(iterator), count))
        # The state that Keras hands over is the one it got back last; a
        # callback may have assigned variables since.
        with execution.lock, execution.interrupts:
            state = states[kind]
            outputs, new = function(state.read(), iter(batches))
            state.write(new)
        return outputs, new

    return step


# What `_get_jax_state` is asked for, in the order in which a step takes it.
_STATE_GROUPS = {
    "trainable_variables": lambda model: model.trainable_variables,
    "non_trainable_variables": lambda model: model.non_trainable_variables,
    "optimizer_variables": lambda model: model.optimizer.variables,
    "metrics_variables": lambda model: model.metrics_variables,
}


def _step_that_takes(kinds):
    if kinds.get("optimizer_variables"):
        return "train"
    return "test" if kinds.get("metrics_variables") else "predict"
