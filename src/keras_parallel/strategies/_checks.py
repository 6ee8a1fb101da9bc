"""Tells a user what was wrong with a call of Keras's trainer.

What one device takes is never refused, and a step costs nothing more. So the
mistakes are looked for when something has failed, and beforehand only where
Keras would find out after it has trained, or not at all.
"""

import inspect
import os
import re
import sysconfig
import traceback

import keras

import keras_parallel
from keras_parallel._errors import KerasParallelError
from keras_parallel.strategies import _data_mistakes
from keras_parallel.strategies import _mistakes
from keras_parallel.strategies import _targets
from keras_parallel.strategies._wording import error

# In place of a batch where none came.
NO_BATCH = object()
# Where code that is not the user's lies.
_LIBRARIES = (
    *{sysconfig.get_path(k) for k in ("stdlib", "purelib", "platlib")},
    os.path.dirname(keras.__file__),
    os.path.dirname(keras_parallel.__file__),
)
# What Keras lacks where it did not expect that.
_LACKED = ("'logs'", "'batch_outputs'")


def check_before(model, method, args, kwargs):
    """Raises for what would fail for certain, but after some training."""
    call = _Call.bind(model, method, args, kwargs)
    if call is None:
        return
    # Validation data of no rows is taken for no validation.
    if not call.in_fit:
        _raise_first(_wrong_rows(call))
    _raise_first(_wrong_validation(model, call))


def explain(failure, model, method, args, kwargs, batch):
    """Raises what was wrong with a call, if a failure came of a mistake.

    Args:
        failure: The exception.
        model: The parallel model.
        method: Name of the method of Keras's trainer that failed.
        args: What it received.
        kwargs: What it received.
        batch: The batch that a step failed with, `None` if it was no step,
            `NO_BATCH` if there was none.
    """
    mistake = _mistake(failure, model, method, args, kwargs, batch)
    if mistake is not None:
        raise mistake from failure


def mistake_in_batch(failure, model, batch):
    """What was wrong with the batch that a model failed to train on."""
    mistake = _data_mistakes.wrong_length(batch)
    if mistake is not None:
        return mistake
    arguments = keras.utils.unpack_x_y_sample_weight(batch)
    return _mistake(failure, model, "train_on_batch", arguments, {}, None)


def _mistake(failure, model, method, args, kwargs, batch):
    if isinstance(failure, KerasParallelError) or not _is_of_engine(failure):
        return None
    in_step = batch is not None and batch is not NO_BATCH
    if _is_of_users_code(failure, in_step):
        return None
    call = _Call.bind(model, method, args, kwargs)
    if call is None:
        return None
    try:
        return next(filter(None, _looked_for(failure, call, batch)), None)
    except Exception:
        # The failure says more than another one in looking for its cause.
        return None


def _template(model):
    """The user's model: what `model` was made from, or `model` itself."""
    parallel = getattr(model, "_keras_parallel", None)
    return model if parallel is None else parallel.template


def _is_of_engine(failure):
    # An exception of a class of the user's own is theirs to catch.
    module = type(failure).__module__.partition(".")[0]
    return module in ("builtins", "keras", keras.config.backend())


def _is_of_users_code(failure, in_step):
    """Whether code of the user's failed: a callback, a generator, a layer.

    Keras removes its own frames from a traceback, so that the last one left
    may be code of the user's that called Keras. In a step it mostly is, unless
    it raises.
    """
    frames = traceback.extract_tb(failure.__traceback__)
    users = [frame for frame in frames if _is_users_file(frame.filename)]
    return bool(users) and (not in_step or _raises(users[-1]))


def _is_users_file(name):
    return not name.startswith(("<frozen", *_LIBRARIES))


def _raises(frame):
    return bool(re.search(r"(?:^|[:;]\s*)raise\b", frame.line or ""))


def _raise_first(errors):
    for found in filter(None, errors):
        raise found


class _Call:
    """A call of a method of Keras's trainer: its arguments, by name."""

    def __init__(self, model, method, arguments, unknown, in_fit):
        self.model = model
        self.method = method
        self.given = arguments
        self.unknown = unknown
        self.in_fit = in_fit
        # What a call that works looks like, to be filled in.
        self.text = f"model.{method}({{}})"

    @classmethod
    def bind(cls, model, method, args, kwargs):
        """`None` for a method of the user's own."""
        template = _template(model)
        if not _targets.is_of_keras(getattr(template, method)):
            return None
        signature = inspect.signature(getattr(keras.Model, method))
        names = list(signature.parameters)[1:]
        known = {k: v for k, v in kwargs.items() if k in names}
        unknown = {k: v for k, v in kwargs.items() if k not in names}
        try:
            bound = signature.bind_partial(model, *args, **known)
        except TypeError:
            return None
        bound.apply_defaults()
        # `fit` passes this when it calls `evaluate`.
        in_fit = unknown.pop("_use_cached_eval_dataset", False)
        return cls(model, method, bound.arguments, (names, unknown), in_fit)

    @property
    def data(self):
        """`x`, `y` and `sample_weight`."""
        return tuple(map(self.given.get, ("x", "y", "sample_weight")))

    def wrong_counts(self, *names):
        for name in names:
            if name in self.given:
                found = _mistakes.wrong_count(name, self.given[name], self.text)
                if found is not None:
                    return found
        return None

    @property
    def kind(self):
        """The kind of step that the method takes."""
        kinds = {"fit": "train", "evaluate": "test"}
        return kinds.get(self.method, self.method.partition("_")[0])

    def is_step_of_keras(self):
        """Whether Keras alone sees what a step takes."""
        return _is_step_of_keras(self.model, self.kind)


def _is_step_of_keras(model, kind):
    step = getattr(_template(model), f"{kind}_step")
    return _targets.is_of_keras(step) and (
        kind == "predict" or _targets.are_seen_by_keras_only(model)
    )


# What is looked for after a failure, the most certain first.


def _looked_for(failure, call, batch):
    names, unknown = call.unknown
    yield _mistakes.unknown_argument(call.method, names, unknown, call.text)
    yield _mistakes.wrong_callbacks(call.given.get("callbacks"), call.text)
    yield call.wrong_counts(
        "epochs", "initial_epoch", "steps_per_epoch", "steps"
    )
    x, y, _ = call.data
    yield from _wrong_data(call)
    yield _mistakes.wrong_class_weight(
        y, call.given.get("class_weight"), call.text
    )
    if _is_no_batch(failure, batch):
        yield _data_mistakes.no_batch(x, call.text)
    text = call.text
    if call.method.endswith("on_batch"):
        batch = call.data
    elif not _data_mistakes.is_arrays(x):
        text = f"model.{call.kind}_on_batch({{}})"
    if batch is not None and batch is not NO_BATCH:
        yield from _wrong_batch(failure, call, batch, text)
    yield from _wrong_compilation(call)


def _wrong_rows(call):
    yield _data_mistakes.no_rows(call.given["x"], call.text)
    if _data_mistakes.is_arrays(call.given["x"]):
        yield call.wrong_counts("batch_size")


def _wrong_data(call):
    on_batch = call.method.endswith("on_batch")
    for name, data in zip(("x", "y", "sample_weight"), call.data):
        if data is None and (name != "x" or call.data[1] is not None):
            continue
        # One batch may have a list of weights, or what the user's step takes.
        if not on_batch or (
            name != "sample_weight" and call.is_step_of_keras()
        ):
            yield _data_mistakes.no_data(name, data, call.text)
        yield _data_mistakes.no_numbers(name, data, call.text)
        if on_batch:
            yield _data_mistakes.foreign_arrays(name, data, call.text)


def _wrong_batch(failure, call, batch, text):
    yield _data_mistakes.wrong_length(batch)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    for name, data in (("x", x), ("y", y)):
        yield _data_mistakes.no_numbers(name, data, text)
    yield _data_mistakes.no_rows(x, text)
    if call.kind != "predict" and call.is_step_of_keras():
        yield _mistakes.no_targets(call.model, y, text)
        yield _mistakes.wrong_targets(call.model, y, text)
    if _is_of_shapes(failure):
        yield _data_mistakes.rows_differ(x, y, sample_weight, text)


def _wrong_compilation(call):
    if call.kind == "train":
        yield _mistakes.no_optimizer(call.model)
    yield _mistakes.wrong_steps_per_execution(call.model)
    if call.kind != "predict":
        yield _mistakes.wrong_losses(call.model)
    if call.kind == "train" and call.is_step_of_keras():
        yield _mistakes.optimizer_of_others(call.model)


def _is_no_batch(failure, batch):
    if isinstance(failure, StopIteration):
        return batch is NO_BATCH
    return (
        isinstance(failure, UnboundLocalError)
        and batch is None
        and any(name in str(failure) for name in _LACKED)
    )


def _is_of_shapes(failure):
    text = str(failure)
    # Keras says of the shape of one row what it expects.
    of_one_row = "input shape" in text or "incompatible with the layer" in text
    return not of_one_row and ("shape" in text or "dimension" in text)


# Validation


def _wrong_validation(model, call):
    """What is wrong with `validation_data`, if it will be looked at."""
    data = call.given.get("validation_data")
    epochs = _epochs(call)
    if data is None or not epochs:
        return
    yield _wrong_frequency(call)
    if not _validates(call, epochs):
        return
    yield call.wrong_counts("validation_steps")
    data = tuple(data) if isinstance(data, list) else data
    data = data if isinstance(data, tuple) else (data,)
    yield _data_mistakes.wrong_length(data)
    for found in _wrong_validation_data(model, *(*data, None, None)[:3]):
        yield found and type(found)(
            f"`validation_data` is data that `evaluate` takes. {found}"
        )
    if _data_mistakes.is_arrays(data[0]):
        yield call.wrong_counts("validation_batch_size")


def _wrong_validation_data(model, x, y, sample_weight):
    text = "model.fit(x, y, validation_data=({}))"
    for name, data in (("x", x), ("y", y)):
        if data is not None:
            yield _data_mistakes.no_data(name, data, text)
    if not _data_mistakes.is_arrays(x):
        return
    if _is_step_of_keras(model, "test"):
        yield _mistakes.no_targets(model, y, text)
        yield _mistakes.wrong_targets(model, y, text)
    yield _data_mistakes.rows_differ(x, y, sample_weight, text)


def _wrong_frequency(call):
    frequency = call.given["validation_freq"]
    if isinstance(frequency, int | list) and frequency != 0:
        return None
    return error(
        "`validation_freq` is a number of epochs, at least 1, or a list of "
        "epochs.",
        f"validation_freq={frequency!r}",
        call.text.format("x, y, validation_data=(x, y), validation_freq=1"),
    )


def _validates(call, epochs):
    frequency = call.given["validation_freq"]
    if isinstance(frequency, int):
        return any((epoch + 1) % frequency == 0 for epoch in epochs)
    return any(epoch + 1 in frequency for epoch in epochs)


def _epochs(call):
    try:
        return range(
            call.given.get("initial_epoch", 0), call.given.get("epochs", 0)
        )
    except TypeError:
        return range(0)  # Found out when `fit` has failed.
