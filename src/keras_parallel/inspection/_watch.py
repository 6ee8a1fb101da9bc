"""Measures a `fit` from inside: where the host is in each step."""

import time

import keras


class Watch:
    """Notes times around the train step of a twin.

    Args:
        calls: After how many calls of the step its result is waited for.
    """

    def __init__(self, calls=None):
        self.batches = []
        self.reset(calls)

    def reset(self, calls):
        self.calls = 0
        self.input = 0.0
        self.begin = None
        self.end = 0.0
        self._last = calls
        self._free_since = None
        self.batches = []

    def seen(self, begin, end):
        """Extends the measured time to something before or after a step."""
        if self.begin is None:
            self.begin = begin
        self.end = max(self.end, end)

    @property
    def total(self):
        """Seconds from the first step to the end of the last."""
        return 0.0 if self.begin is None else self.end - self.begin

    def around_step(self, function):
        def step(state, iterator):
            begin = self._free_since = time.perf_counter()
            logs, state = function(state, iterator)
            self._free_since = None
            self.calls += 1
            if self.calls == self._last:
                for leaf in keras.tree.flatten(logs):
                    keras.ops.convert_to_numpy(leaf)
            self.seen(begin, time.perf_counter())
            return logs, state

        return step

    def around_preparation(self, prepare):
        def watched(batch):
            now = time.perf_counter()
            if self._free_since is not None:
                # Since the step began, or since the batch before: the time in
                # which the next one was had.
                self.input += now - self._free_since
            self.batches.append(batch)
            placed = prepare(batch)
            if self._free_since is not None:
                self._free_since = time.perf_counter()
            return placed

        return watched


_AT_BEGIN = ("on_batch_begin", "on_train_batch_begin")
_AT_END = ("on_batch_end", "on_train_batch_end")


def wait_for_logs(callbacks):
    """Those for which Keras waits for the logs of each batch."""
    return [
        c
        for c in callbacks
        if _has_any(c, _AT_END) and not getattr(c, "async_safe", False)
    ]


def _has_any(callback, hooks):
    # A hook may be put on the instance.
    return any(
        getattr(found, "__func__", found)
        is not getattr(keras.callbacks.Callback, hook)
        for hook in hooks
        for found in [getattr(callback, hook)]
    )


class Waiter(keras.callbacks.Callback):
    """Does nothing but make Keras wait for the logs of each batch."""

    def on_train_batch_end(self, batch, logs=None):
        del batch, logs


def batch_hooks(callbacks, watch):
    """A callback that passes the hooks of batches on and takes their time.

    What comes at the end of an epoch or of the training stays out: it would
    write the files of a training that did not take place.
    """
    # Keras waits for the logs of each batch if there is someone to see them.
    has_batch_end = any(_has_any(c, _AT_END) for c in callbacks)
    return (_WithBatchEnd if has_batch_end else _Hooks)(callbacks, watch)


class _Hooks(keras.callbacks.Callback):
    def __init__(self, callbacks, watch):
        super().__init__()
        self._callbacks = callbacks
        self._watch = watch
        self.async_safe = not wait_for_logs(callbacks)
        # Of those that have one.
        self.seconds = {
            id(c): 0.0 for c in callbacks if _has_any(c, _AT_BEGIN + _AT_END)
        }

    @property
    def slowest(self):
        """The name of the class that took longest, if any took time."""
        with_hooks = [c for c in self._callbacks if id(c) in self.seconds]
        if not with_hooks:
            return None
        slowest = max(with_hooks, key=lambda c: self.seconds[id(c)])
        return type(slowest).__name__ if self.seconds[id(slowest)] else None

    def set_model(self, model):
        super().set_model(model)
        for callback in self._callbacks:
            callback.set_model(model)

    def set_params(self, params):
        super().set_params(params)
        for callback in self._callbacks:
            callback.set_params(params)

    def on_train_begin(self, logs=None):
        for callback in self._callbacks:
            callback.on_train_begin(logs)

    def on_epoch_begin(self, epoch, logs=None):
        for callback in self._callbacks:
            callback.on_epoch_begin(epoch, logs)

    def _pass_on(self, hook, batch, logs):
        begin = time.perf_counter()
        for callback in self._callbacks:
            if id(callback) in self.seconds:
                start = time.perf_counter()
                getattr(callback, hook)(batch, logs)
                self.seconds[id(callback)] += time.perf_counter() - start
        self._watch.seen(begin, time.perf_counter())

    def on_train_batch_begin(self, batch, logs=None):
        self._pass_on("on_train_batch_begin", batch, logs)


class _WithBatchEnd(_Hooks):
    def on_train_batch_end(self, batch, logs=None):
        self._pass_on("on_train_batch_end", batch, logs)
