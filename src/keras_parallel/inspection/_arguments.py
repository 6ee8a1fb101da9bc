"""Tells a user what was wrong with a call of `check`."""

import numbers

import keras

from keras_parallel._errors import RefusedModelError
from keras_parallel.strategies._wording import error
from keras_parallel.strategies._wording import shown

_CALL = "keras_parallel.check(model, x, y{})"


def check_arguments(batch_size, steps, callbacks):
    """Raises `InputError` for numbers and callbacks that are none."""
    for name, number in (("batch_size", batch_size), ("steps", steps)):
        if (
            isinstance(number, bool)
            or not isinstance(number, numbers.Integral)
            or number < 1
        ):
            raise error(
                f"`{name}` is an integer of at least 1.",
                f"{name}={shown(number)}",
                _CALL.format(f", {name}={32 if name == 'batch_size' else 5}"),
            )
    kind = keras.callbacks.Callback
    if not all(isinstance(callback, kind) for callback in flat(callbacks)):
        raise error(
            "`callbacks` is a list of Keras callbacks.",
            f"callbacks={shown(callbacks)}",
            _CALL.format(", callbacks=[keras.callbacks.Callback()]"),
        )


def flat(callbacks) -> list:
    """Callbacks as `fit` takes them: none, one, or a structure of them."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    return [] if callbacks is None else keras.tree.flatten(callbacks)


def check_model(model):
    """Raises `RefusedModelError` for what cannot be checked."""
    if not isinstance(model, keras.Model):
        raise error(
            "A check is of a `keras.Model`.",
            f"model={shown(model)}",
            _CALL.format(""),
            RefusedModelError,
        )
    if not model.compiled:
        raise error(
            "A check trains, so the model is compiled.",
            f"the model {model.name!r}, which is not",
            "model.compile(optimizer='adam', loss='mse')",
            RefusedModelError,
        )
    if not model.built or not model.variables:
        raise error(
            "A check leaves a model as it is, so the model has its weights.",
            f"the model {model.name!r}, which is not built",
            "model(x[:1])",
            RefusedModelError,
        )
