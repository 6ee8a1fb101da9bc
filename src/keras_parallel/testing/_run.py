"""One training of one model, with its state before and after each step."""

import keras
import numpy as np

from keras_parallel.strategies import _checks
from keras_parallel.testing import _state


def anew(make_model):
    """`make_model`, with a check that its models share nothing trained."""
    first = None

    def make():
        nonlocal first
        model = make_model()
        shared = first is not None and _shared(model, first)
        if shared:
            raise ValueError(
                "`make_model` makes a new model at each call, with its own "
                f"layers and optimizer. Received: one that shares {shared} "
                "with an earlier one. A function that works: "
                "`lambda: compiled(keras.Sequential([layer(), ...]))`."
            )
        first = first or model
        return model

    return make


def _shared(model, earlier):
    if model is earlier:
        return "everything"
    own = {id(v): v for v in earlier.trainable_variables}
    for variable in getattr(model, "trainable_variables", ()):
        if id(variable) in own:
            return f"the variable {variable.path!r}"
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer is earlier.optimizer:
        return "the optimizer"
    return None


def run_of_new(make_model, batches, seed, parallelize=None):
    """A `Run` of a new model, made from a seed.

    Args:
        make_model: Returns a new, compiled model.
        batches: See `Run`.
        seed: The random seed.
        parallelize: Makes the model to train from what `make_model` returns.
    """
    keras.utils.set_random_seed(seed)
    model = make_model()
    if not isinstance(model, keras.Model) or not model.compiled:
        raise ValueError(
            "`make_model` returns a compiled `keras.Model`. Received: "
            f"{model!r} (of type {type(model).__name__}). Call "
            "`model.compile(...)` and return the model."
        )
    if parallelize is not None:
        model = parallelize(model)
    return Run(model, batches, seed)


class Run:
    """Trains a model, one batch at a time.

    Args:
        model: A compiled model.
        batches: Each as `train_on_batch` takes it.
        seed: The random seed to set before training, if any.
    """

    def __init__(self, model, batches, seed=None):
        self.model = model
        self.batches = batches
        self._seed = seed
        if self.model.built and self.model.optimizer is not None:
            # So that all of the state exists before the first step.
            self.model.optimizer.build(self.model.trainable_variables)
        self.states = [_state.snapshot(self.model)]
        self.logs = []

    def train(self):
        if self._seed is not None:
            keras.utils.set_random_seed(self._seed)
        for batch in self.batches:
            self.logs.append(self.step(batch))
            self.states.append(_state.snapshot(self.model))

    def step(self, batch):
        try:
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            logs = self.model.train_on_batch(
                x, y, sample_weight=sample_weight, return_dict=True
            )
        except Exception as failure:
            mistake = _checks.mistake_in_batch(failure, self.model, batch)
            if mistake is None:
                raise
            raise type(mistake)(
                "`make_batches` returns a list of batches, each as "
                f"`train_on_batch` takes it: `[(x, y)]`. {mistake}"
            ) from failure
        return _state.entries_of_logs(logs)

    def steps_from(self, state, batches):
        """Trains from `state`: the last logs, and the state after them."""
        _state.restore(self.model, state)
        logs = {}
        for batch in batches:
            logs = self.step(batch)
        return logs | _state.snapshot(self.model)

    def after(self, step):
        """The logs of a step and the state after it. Counts from 0."""
        return self.logs[step] | self.states[step + 1]

    def state_before(self, step):
        """The state before a step, `None` if not all of it existed yet."""
        state = self.states[step]
        return state if len(state) == len(self.states[-1]) else None

    def is_finite(self):
        """Whether all that was logged is finite, and so are the weights."""
        weights = [e for e in self.states[-1].values() if e.kind == "weight"]
        logged = [entry for logs in self.logs for entry in logs.values()]
        return all(np.isfinite(e.value).all() for e in weights + logged)

    def draws_numbers(self):
        """Whether the last step drew random numbers."""
        return any("seed_generator_state" in name for name in self._moved())

    def keeps_rows(self):
        """Whether a variable keeps a state for each row of a batch."""
        rows = {rows_of(batch) for batch in self.batches}
        return any(
            entry.kind == "state"
            and entry.value.ndim > 1
            and entry.value.shape[0] in rows
            for entry in self._moved().values()
        )

    def _moved(self):
        """The part of the state that the last step changed."""
        before, after = self.states[-2:]
        return {
            name: entry
            for name, entry in after.items()
            if name not in before or (before[name].value != entry.value).any()
        }


def rows_of(batch):
    """Number of rows of a batch."""
    leaves = keras.tree.flatten(batch)
    return len(next(leaf for leaf in leaves if leaf is not None))
