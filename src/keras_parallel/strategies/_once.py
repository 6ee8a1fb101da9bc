"""Callbacks of a job: they run in process 0, and all learn what they did.

So what they write is written once, and what they decide is decided once: that
training stops, a learning rate, weights that are put back. A method of the
model that a callback calls runs in process 0 alone.
"""

import contextlib
import contextvars
import dataclasses
import json
import pickle
from typing import Any

import keras
import numpy as np

from keras_parallel._errors import ClusterError
from keras_parallel.strategies import _random

_EPOCH_HOOKS = (
    "on_train_begin",
    "on_train_end",
    "on_epoch_begin",
    "on_epoch_end",
    "on_test_begin",
    "on_test_end",
    "on_predict_begin",
    "on_predict_end",
)
_BATCH_HOOKS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_predict_batch_begin",
    "on_predict_batch_end",
)
_STOPS = ("stop_training", "stop_evaluating", "stop_predicting")
# What belongs to the model and to the process is not sent with a callback.
_OF_THE_PROCESS = ("_model", "params", "_keras_parallel")

_running = contextvars.ContextVar("a callback of a job runs", default=False)


def in_callback() -> bool:
    """Whether a callback runs now, in process 0 alone."""
    return _running.get()


def described(callbacks) -> list[str]:
    """The kinds of callbacks, to compare them between processes."""
    return [type(callback).__name__ for callback in _flat(callbacks)]


@contextlib.contextmanager
def callbacks_once(processes, agreement, call: dict):
    """Makes the callbacks of a call run in process 0.

    Args:
        processes: The job.
        agreement: The `Agreement` of the call.
        call: The arguments, by name.

    Yields:
        The arguments to call the method with in their place.
    """
    given = call.get("callbacks")
    users = [c for c in _flat(given) if not _is_of_each_process(c)]
    others = [c for c in _flat(given) if _is_of_each_process(c)]
    first = processes.rank == 0
    if not first:
        call = call | {"verbose": 0}
        others = [c for c in others if isinstance(c, keras.callbacks.History)]
    once = _once_of(processes, agreement, users)
    if isinstance(given, keras.callbacks.CallbackList):
        # Who made the list has set its model; its own order stays.
        before, given.callbacks = given.callbacks, [once, *others]
        once.set_model(given.model)
        once.set_params(given.params)
        try:
            yield call
        finally:
            given.callbacks = before
    else:
        yield call | {"callbacks": [once, *others]}
    _share_final_state(processes, users)


def _flat(callbacks):
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    return [c for c in keras.tree.flatten(callbacks) if c is not None]


def _is_of_each_process(callback):
    kinds = (keras.callbacks.History, keras.callbacks.ProgbarLogger)
    return isinstance(callback, kinds)


def _once_of(processes, agreement, callbacks):
    """A callback that stands for `callbacks` in each process."""
    used = [
        name
        for name in (*_EPOCH_HOOKS, *_BATCH_HOOKS)
        if any(_overrides(callback, name) for callback in callbacks)
    ]
    shared = processes.shared(json.dumps(used).encode(), "callbacks")
    used = json.loads(shared)
    # Keras asks the class which hooks there are, and what costs each batch
    # time is left out where nobody needs it.
    hooks = {name: _hook(name) for name in used if name in _BATCH_HOOKS}
    hooks |= {name: _hook(name, name in used) for name in _EPOCH_HOOKS}
    cls = type("CallbacksOnce", (_Once,), hooks)
    return cls(processes, agreement, callbacks)


def _overrides(callback, name):
    default = getattr(keras.callbacks.Callback, name)
    own = getattr(callback, name)
    return getattr(own, "__func__", own) is not default and not getattr(
        own, "_is_default", False
    )


def _hook(name, is_used=True):
    def hook(self, *args, **kwargs):
        self.before(name)
        if is_used:
            self.run(name, args, kwargs)

    return hook


class _Once(keras.callbacks.Callback):
    """Runs callbacks in process 0, and does in the others what they did."""

    def __init__(self, processes, agreement, callbacks):
        super().__init__()
        self._processes = processes
        self._agreement = agreement
        self._callbacks = callbacks if processes.rank == 0 else []
        self._depth = 0

    def set_params(self, params):
        super().set_params(params)
        for callback in self._callbacks:
            callback.set_params(params)

    def set_model(self, model):
        super().set_model(model)
        for callback in self._callbacks:
            callback.set_model(model)

    def before(self, hook):
        """What all processes do before the callbacks have their turn."""
        if hook in ("on_train_begin", "on_test_begin", "on_predict_begin"):
            if self._depth == 0:  # Not the validation within `fit`.
                self._agreement.on_begin()
            self._depth += 1
        elif hook in ("on_train_end", "on_test_end", "on_predict_end"):
            self._depth -= 1
        elif hook == "on_epoch_end":
            self._agreement.on_epoch_end()

    def run(self, hook, args, kwargs):
        reason = f"`{hook}` of a callback"
        if self._processes.rank:
            sent = self._processes.shared(b"", reason)
            pickle.loads(sent).apply(self, args, kwargs)
            return
        watch = _Watch(self, args, kwargs)
        token = _running.set(True)
        try:
            for callback in self._callbacks:
                getattr(callback, hook)(*args, **kwargs)
        except BaseException as failure:
            effects = _Effects(failure=f"{type(failure).__name__}: {failure}")
            self._processes.shared(pickle.dumps(effects), reason)
            raise
        finally:
            _running.reset(token)
        self._processes.shared(pickle.dumps(watch.effects()), reason)

    def variables(self):
        return self._agreement.variables()


@dataclasses.dataclass
class _Effects:
    """What callbacks did that all processes have to know.

    Args:
        failure: What they raised.
        stops: The flags of the model that they set.
        logs: The logs as they left them.
        values: Values that they assigned, by the number of the variable.
        random: The random state, if they have drawn.
    """

    failure: str | None = None
    stops: dict = dataclasses.field(default_factory=dict)
    logs: dict | None = None
    values: dict = dataclasses.field(default_factory=dict)
    random: dict | None = None

    def apply(self, once, args, kwargs):
        if self.failure is not None:
            raise ClusterError(
                "Callbacks run in process 0, and all processes end when one "
                f"of them fails. Received, from process 0: {self.failure}. "
                "What it printed has the whole traceback."
            )
        for name, value in self.stops.items():
            setattr(once.model, name, value)
        logs = _logs(args, kwargs)
        if self.logs is not None and logs is not None:
            logs.clear()
            logs.update(self.logs)
        variables = once.variables()
        for i, value in self.values.items():
            variables[i].assign(value)
        if self.random is not None:
            _random.set_state(self.random)


class _Watch:
    """Sees what callbacks do, from what was there before."""

    def __init__(self, once, args, kwargs):
        self._once = once
        self._stops = self._flags()
        self._logs = _logs(args, kwargs)
        self._logs_before = self._logs and dict(self._logs)
        self._held = [v.value for v in once.variables()]
        self._random = _random.state()

    def _flags(self):
        model = self._once.model
        return {n: getattr(model, n) for n in _STOPS if hasattr(model, n)}

    def effects(self):
        stops = {
            name: flag
            for name, flag in self._flags().items()
            if self._stops.get(name) != flag
        }
        # Another array has another value, or is as good as one.
        values = {
            i: np.asarray(variable)
            for i, (variable, held) in enumerate(
                zip(self._once.variables(), self._held)
            )
            if variable.value is not held
        }
        random = _random.state()
        logs = self._logs
        return _Effects(
            stops=stops,
            logs=dict(logs) if logs and logs != self._logs_before else None,
            values=values,
            random=random if random != self._random else None,
        )


def _logs(args, kwargs) -> dict | None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, dict):
            return value
    return None


def _share_final_state(processes, callbacks):
    """Gives the callbacks of all processes the state of those that ran."""
    if not callbacks:
        return
    own = pickle.dumps([final_state(callback) for callback in callbacks])
    shared = processes.shared(own, "what callbacks hold")
    if processes.rank:
        for callback, state in zip(callbacks, pickle.loads(shared)):
            vars(callback).update(state)


def final_state(callback) -> dict[str, Any]:
    """What of a callback another process can take over."""
    found = {}
    for name, value in vars(callback).items():
        if name not in _OF_THE_PROCESS:
            try:
                pickle.loads(pickle.dumps(value))
            except Exception:
                continue  # An open file, a thread, a function: not to be had.
            found[name] = value
    return found
