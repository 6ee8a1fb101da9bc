"""Names the mistake in targets, in other arguments, and in what was compiled.

Each function returns an error to raise, or `None` where it finds nothing.
`call` is what a call that works looks like, such as `"model.fit({})"`.
"""

import contextlib
import difflib
import inspect
import numbers
import operator
from typing import Any
from typing import TypeGuard

import keras

from keras_parallel._errors import OutputNameError
from keras_parallel.strategies import _keras
from keras_parallel.strategies import _targets
from keras_parallel.strategies._wording import error
from keras_parallel.strategies._wording import has_shape
from keras_parallel.strategies._wording import shown

# Targets and what they are compared with.


def no_targets(model, y, call):
    """For a loss that has nothing to be compared with."""
    if y is not None or not _needs_targets(model):
        return None
    return error(
        "A compiled loss compares the outputs with targets.",
        f"y=None, and the loss {shown(model.loss)}",
        call.format("x, y"),
    )


def _needs_targets(model):
    losses = [loss for loss in keras.tree.flatten(model.loss) if loss]
    plain = keras.losses.Loss.__call__
    return bool(losses) and not any(
        isinstance(loss, keras.losses.Loss) and type(loss).__call__ is not plain
        for loss in losses
    )


def wrong_targets(model, y, call):
    """For targets that are not one for each output that has a loss."""
    heads = heads_of(model)
    if y is None or not heads or not _needs_targets(model):
        return None
    trained = _trained_heads(model, heads)
    if isinstance(y, list | tuple) and len(y) == len(heads):
        # Keyed by their names, they have been put in order already.
        y = {h: one for h, one in zip(heads, y) if one is not None}
    if isinstance(y, dict):
        unknown = [key for key in y if key not in heads]
        missing = [head for head in trained if head not in y]
        fault = bool(unknown or missing)
    else:
        several = isinstance(y, list | tuple) or has_shape(y)
        fault = several and len(heads) > 1
    if not fault:
        return None
    if len(heads) == 1:
        works = call.format("x, y")
    else:
        works = f"{{{', '.join(f'{head!r}: ...' for head in heads)}}}"
        works = call.format(f"x, {works}")
    return error(
        f"There is one target for each output that has a loss: {heads}.",
        f"y={shown(y)}",
        works,
    )


def heads_of(model) -> list[str]:
    """What targets may be keyed by; empty where it is not known."""
    names = _targets.output_order(model)
    if names:
        return names
    output = getattr(model, "output", None) if _has_output(model) else None
    return list(output) if isinstance(output, dict) else []


def _has_output(model):
    return bool(getattr(model, "output_names", None))


def _trained_heads(model, heads):
    loss = model.loss
    if isinstance(loss, dict):
        return [head for head in heads if loss.get(head) is not None]
    if isinstance(loss, list | tuple) and len(loss) == len(heads):
        return [head for head, one in zip(heads, loss) if one is not None]
    return heads


def wrong_class_weight(y, class_weight, call):
    if class_weight is None:
        return None
    works = call.format("x, y, class_weight={0: 1.0, 1: 5.0}")
    if not hasattr(class_weight, "get"):
        return error(
            "`class_weight` is a dict from the index of a class to its weight.",
            f"class_weight={shown(class_weight)}",
            works,
        )
    if keras.tree.is_nested(y):
        return error(
            "`class_weight` is for models with a single output.",
            f"class_weight={class_weight} with y={shown(y)}",
            call.format("x, y, sample_weight=[weights_of_a, weights_of_b]"),
        )
    return None


# The compile state.


def wrong_loss_weights(names, arguments):
    """For weights that leave an output without one.

    Keras takes weights that are keyed by more than the outputs.
    """
    weights, losses = arguments.get("loss_weights"), arguments.get("loss")
    if len(names) < 2 or not isinstance(losses, dict | list | tuple):
        return None
    if isinstance(weights, dict) and isinstance(losses, dict):
        received = f"loss_weights with the keys {list(weights)}"
        fault = set(weights) - set(names) and set(names) - set(weights)
    else:
        received = f"loss_weights={weights!r}"
        fault = isinstance(weights, numbers.Number) and len(losses) > 1
    if not fault:
        return None
    each = ", ".join(f"{name!r}: 1.0" for name in names)
    return error(
        f"There is one weight for each output: {names}.",
        received,
        f"model.compile(optimizer, loss, loss_weights={{{each}}})",
        OutputNameError,
    )


def wrong_losses(model):
    """For losses that are not one for each output."""
    heads, loss = heads_of(model), model.loss
    if not heads or loss is None:
        return None
    received = f"loss={loss}"
    if isinstance(loss, dict):
        received = f"loss with the keys {list(loss)}"
        fault = [key for key in loss if key not in heads]
    else:
        fault = isinstance(loss, list | tuple) and len(loss) > len(heads)
    if not fault:
        return None
    each = ", ".join(f"{head!r}: 'mse'" for head in heads)
    works = f"{{{each}}}" if len(heads) > 1 else "'mse'"
    return error(
        f"There is one loss for each output: {heads}.",
        received,
        f"model.compile(optimizer, loss={works})",
        OutputNameError,
    )


def no_optimizer(model):
    if model.optimizer is not None:
        return None
    return error(
        "Training needs an optimizer.",
        "a model compiled with optimizer=None",
        "model.compile(optimizer='rmsprop', loss='mse')",
    )


def optimizer_of_others(model):
    """For an optimizer that has slots for other variables."""
    optimizer = model.optimizer
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return None
    if not optimizer.built:
        return None
    trained = _keras.trained_by(optimizer)
    variables = model.trainable_variables
    if [tuple(v.shape) for v in trained] == [tuple(v.shape) for v in variables]:
        return None
    known, own = {id(v) for v in trained}, {id(v) for v in variables}
    why = "of another model"
    if known & own:
        why = "before layers were frozen or unfrozen"
    name = type(optimizer).__name__
    return error(
        "An optimizer has slots for the variables that it was built for; "
        "compile again with a new one.",
        f"{name} built for {len(trained)} variables {why}, and a model with "
        f"{len(variables)} trainable variables",
        f"model.compile(keras.optimizers.{name}(), loss)",
    )


def wrong_steps_per_execution(model: Any):
    value = model.steps_per_execution
    if _is_count(value) and value >= 1:
        return None
    return error(
        "`steps_per_execution` is an integer of at least 1.",
        f"steps_per_execution={value!r}",
        "model.compile(optimizer, loss, steps_per_execution=8)",
    )


# Other arguments.


def wrong_count(name: str, value: Any, call: str):
    """For what is no number of epochs, steps or rows.

    Keras takes 0 as `None`, no epochs, and less than no validation.
    """
    if value is None and name not in ("epochs", "initial_epoch"):
        return None
    least = 0 if name == "initial_epoch" else 1
    if _is_count(value) and (
        value >= 0 or name == "epochs" or name.startswith("validation")
    ):
        return None
    rule = f"`{name}` is an integer of at least {least}."
    if name == "batch_size" and has_shape(value):
        rule += " `predict` takes no targets."
    works = 32 if "batch_size" in name else least
    if isinstance(value, float | str):
        with contextlib.suppress(ValueError):
            works = max(int(value), least)
    return error(
        rule, f"{name}={shown(value)}", call.format(f"x, ..., {name}={works}")
    )


def _is_count(value: Any) -> TypeGuard[int]:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def wrong_callbacks(callbacks, call):
    if callbacks is None or isinstance(callbacks, keras.callbacks.CallbackList):
        return None
    if isinstance(callbacks, dict):
        callbacks = list(callbacks.values())
    elif not isinstance(callbacks, list | tuple):
        callbacks = [callbacks]
    for callback in callbacks:
        known = hasattr(callback, "set_model") and hasattr(
            callback, "on_epoch_end"
        )
        if known and not isinstance(callback, type):
            continue  # Keras takes all that behave like a callback.
        works = "keras.callbacks.TerminateOnNaN()"
        if isinstance(callback, type):
            works = f"{callback.__name__}(...)"
        elif inspect.isroutine(callback):
            works = "keras.callbacks.LambdaCallback(on_epoch_end=function)"
        return error(
            "`callbacks` is a list of instances of `keras.callbacks.Callback`.",
            f"callbacks with {shown(callback)}",
            call.format(f"x, y, callbacks=[{works}]"),
        )
    return None


def unknown_argument(method, names, arguments, call):
    for name in arguments:
        if name in names:
            continue
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        return error(
            f"`{method}` takes {', '.join(names)}.",
            f"{name}={shown(arguments[name])}",
            call.format(f"x, {near[0]}=..." if near else "x, ..."),
        )
    return None
