"""Targets, losses and sample weights keyed by the names of outputs.

Keras accepts such dictionaries in most cases: not for a model with a single
output, not as `sample_weight` for a list of outputs, and not with a head left
out of them. Here they work in all cases in which the names say what is meant.
"""

import keras

# What sees the targets in a step of Keras. A model that overrides one of them
# may want the targets as they come.
_SEE_TARGETS = (
    "compute_loss",
    "compute_loss_and_updates",
    "compute_metrics",
    "stateless_compute_loss",
    "_compute_loss",
    "_update_metrics_variables",
)


def output_order(model: keras.Model) -> list[str] | None:
    """The names of the outputs, if `model` returns a flat list of them.

    Returns:
        `None` where names do not tell the outputs apart, where the outputs
        have names of their own (a dictionary), or where the model has a
        method of its own that sees the targets.
    """
    if not are_seen_by_keras_only(model):
        return None
    if isinstance(model, keras.Sequential):
        return [layer.name for layer in model.layers[-1:]] or None
    names = getattr(model, "output_names", None)
    if not names or len(set(names)) < len(names):
        return None
    outputs = model.output
    if keras.tree.is_nested(outputs) and (
        not isinstance(outputs, list | tuple) or len(outputs) != len(names)
    ):
        return None
    return list(names)


def are_seen_by_keras_only(model: keras.Model) -> bool:
    """Whether no method of the user's own sees targets within a step."""
    return all(
        is_of_keras(getattr(model, name))
        for name in _SEE_TARGETS
        if hasattr(model, name)
    )


def is_of_keras(method) -> bool:
    """Whether a method is that of Keras, not of a user's class."""
    function = getattr(method, "__func__", method)
    return (getattr(function, "__module__", "") or "").startswith("keras.")


def complete_losses(names: list[str], arguments: dict) -> dict:
    """Adds `None` for heads that a dictionary of losses leaves out.

    Args:
        names: The names of the outputs, in order.
        arguments: Keyword arguments of `compile`.

    Returns:
        The arguments, with complete dictionaries.
    """
    losses, weights = arguments.get("loss"), arguments.get("loss_weights")
    if not isinstance(losses, dict) or not _is_keyed_by(names, losses):
        return arguments
    if len(names) == 1:
        return arguments | {"loss": losses[names[0]]}
    arguments = arguments | {"loss": {n: losses.get(n) for n in names}}
    if isinstance(weights, dict):
        arguments["loss_weights"] = {n: weights.get(n, 1.0) for n in names}
    return arguments


def in_output_order(model: keras.Model, names: list[str], batch):
    """Turns dictionaries of targets and weights into the order of outputs.

    Targets for all of several outputs stay as they are: Keras takes them.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    weighted = _is_keyed_by(names, sample_weight)
    if weighted:
        sample_weight = _ordered(model, names, sample_weight)
    if (
        isinstance(y, dict)
        and _is_keyed_by(names, y)
        and (weighted or len(names) == 1 or len(y) < len(names))
    ):
        y = _ordered(model, names, y)
    return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)


def _ordered(model, names, values):
    if isinstance(model, keras.Sequential):
        return values[names[0]]
    if keras.tree.is_nested(model.output):
        return [values.get(name) for name in names]
    return values[names[0]]


def _is_keyed_by(names, values):
    return (
        isinstance(values, dict) and bool(values) and set(values) <= set(names)
    )
