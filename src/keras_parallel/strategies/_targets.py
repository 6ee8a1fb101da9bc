"""Targets, losses and sample weights keyed by the names of outputs.

Keras accepts such dictionaries in most cases: not for a model with a single
output, not as `sample_weight` for a list of outputs, and not with a head left
out of them. Here they work in all cases in which the names say what is meant.
"""

import keras


def output_order(model: keras.Model) -> list[str] | None:
    """The names of the outputs, if `model` returns a flat list of them.

    Returns:
        `None` where names do not tell the outputs apart, where the outputs
        have names of their own (a dictionary), or where the model has its own
        `compute_loss`, which may want the targets as they are.
    """
    names = getattr(model, "output_names", None)
    if not names or len(set(names)) < len(names):
        return None
    if not is_of_keras(model.compute_loss):
        return None
    outputs = model.output
    if keras.tree.is_nested(outputs) and (
        not isinstance(outputs, list | tuple) or len(outputs) != len(names)
    ):
        return None
    return list(names)


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
    arguments = arguments | {"loss": {n: losses.get(n) for n in names}}
    if isinstance(weights, dict):
        arguments["loss_weights"] = {n: weights.get(n, 1.0) for n in names}
    return arguments


def in_output_order(model: keras.Model, names: list[str], batch):
    """Turns dictionaries of targets and weights into the order of outputs."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    y = _ordered(model, names, y)
    sample_weight = _ordered(model, names, sample_weight)
    return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)


def _ordered(model, names, values):
    if not _is_keyed_by(names, values):
        return values
    if keras.tree.is_nested(model.output):
        return [values.get(name) for name in names]
    return values[names[0]]


def _is_keyed_by(names, values):
    return (
        isinstance(values, dict) and bool(values) and set(values) <= set(names)
    )
