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


def batch_hooks(callbacks, watch):
    """A callback that passes the hooks of batches on and takes their time.

    What comes at the end of an epoch or of the training stays out: it would
    write the files of a training that did not take place.
    """
    # Keras waits for the logs of each batch if there is someone to see them.
    has_batch_end = any(
        getattr(type(c), hook) is not getattr(keras.callbacks.Callback, hook)
        for c in callbacks
        for hook in ("on_batch_end", "on_train_batch_end")
    )
    return (_WithBatchEnd if has_batch_end else _Hooks)(callbacks, watch)


class _Hooks(keras.callbacks.Callback):
    def __init__(self, callbacks, watch):
        super().__init__()
        self._callbacks = callbacks
        self._watch = watch
        self.async_safe = all(
            getattr(c, "async_safe", False) for c in callbacks
        )
        self.seconds = dict.fromkeys(map(id, callbacks), 0.0)

    @property
    def slowest(self):
        """The name of the class that took longest."""
        slowest = max(self._callbacks, key=lambda c: self.seconds[id(c)])
        return type(slowest).__name__

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
            start = time.perf_counter()
            getattr(callback, hook)(batch, logs)
            self.seconds[id(callback)] += time.perf_counter() - start
        self._watch.seen(begin, time.perf_counter())

    def on_train_batch_begin(self, batch, logs=None):
        self._pass_on("on_train_batch_begin", batch, logs)


class _WithBatchEnd(_Hooks):
    def on_train_batch_end(self, batch, logs=None):
        self._pass_on("on_train_batch_end", batch, logs)
