"""Sizes of variables, of those that are made at the first batch too."""

import inspect
import math
import re
from typing import Any

import keras

from keras_parallel.engines import active_engine
from keras_parallel.strategies import _keras

# `total` and `count`, in float32: what Keras's means of a function hold.
_MEAN = 8


def size_of(variable) -> int:
    """Size in bytes of a variable, or of what has a shape and a dtype."""
    dtype = keras.backend.standardize_dtype(variable.dtype)
    if "64" in dtype:
        dtype = active_engine().held_dtype(dtype)
    bits = re.search(r"\d+", dtype)
    entries = math.prod(variable.shape)
    return entries if bits is None else -(-entries * int(bits[0]) // 8)


def optimizer_variables(state, model):
    """The variables that the optimizer has or will have.

    Returns:
        An empty list without an optimizer; `None` where it is not known.
    """
    slots = optimizer_slots(state, model)
    return None if slots is None else [slot for slot, _ in slots]


def optimizer_slots(state, model):
    """The same, each with the variable of the model it belongs to, if any."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return []
    if getattr(optimizer, "built", False):
        owners = _keras.owners_of_slots(optimizer)
        return [(slot, owners.get(id(slot))) for slot in optimizer.variables]
    owners_found = []

    def make():
        alike = type(optimizer).from_config(optimizer.get_config())
        alike.build(model.trainable_variables)
        owners = _keras.owners_of_slots(alike)
        owners_found[:] = [owners.get(id(slot)) for slot in alike.variables]
        return alike.variables

    try:
        slots = state.engine.imagined(make)
    except Exception:
        return None  # An optimizer of the user's own may do anything.
    return None if slots is None else list(zip(slots, owners_found))


def of_loss_trackers(model, outline) -> int:
    """Size of the means of the losses that a step updates, in bytes."""
    if not model.compiled:
        return 0
    known = _keras.loss_trackers(model)
    held = [m for m in model.metrics if any(m is other for other in known)]
    size = sum(size_of(v) for tracker in held for v in tracker.variables)
    losses = number_of_losses(model, outline)
    if held and losses > 1 and not _keras.losses_are_built(model):
        size += _MEAN * losses
    return size


def number_of_losses(model, outline) -> int:
    """How many outputs have a loss.

    Args:
        model: A model that is compiled.
        outline: The engine's `Outline` of it, if there is one.
    """
    if _keras.losses_are_built(model):
        # The mean of all, and one for each if there are several.
        return max(len(_keras.loss_trackers(model)) - 1, 1)
    loss = getattr(model, "loss", None)
    if keras.tree.is_nested(loss):
        return sum(one is not None for one in keras.tree.flatten(loss))
    if not loss:
        return 0
    if outline is not None:
        return outline.outputs
    return len(getattr(model, "outputs", None) or [None])


def metrics(state, model) -> dict[str, int]:
    """The name of each metric, without losses, and its size in bytes.

    The size is 0 for one that learns its shape from the first batch.
    """
    sizes = {}
    for metric in model.metrics:
        if metric.name == "compile_metrics":
            for one in metric.metrics or _to_build(metric):
                sizes[_name_of(one, sizes)] = _size_of_metric(state, one)
        elif not _keras.is_loss_tracker(model, metric):
            sizes[_name_of(metric, sizes)] = _size_of_metric(state, metric)
    return dict(sorted(sizes.items()))


def _to_build(compile_metrics):
    given = keras.tree.flatten(_keras.metrics_to_build(compile_metrics))
    return [one for one in given if one is not None]


def _name_of(metric, taken):
    name = getattr(metric, "name", None) or getattr(metric, "__name__", None)
    name, number = str(name or metric), 2
    wanted = name
    while name in taken:
        name, number = f"{wanted} ({number})", number + 1
    return name


def _size_of_metric(state, metric) -> int:
    if isinstance(metric, keras.metrics.Metric):
        return _size_of_made(metric, metric.variables)
    cls = _metric_class(metric)
    if cls is not None:
        metrics = []

        def make():
            # With a name, it takes none from those that are numbered.
            metrics.append(cls(name=metric))
            return metrics[-1].variables

        try:
            made = state.engine.imagined(make)
            return _size_of_made(metrics[-1], made) if made else _MEAN
        except TypeError:
            pass  # Keras will say what it lacks.
    return _MEAN


def _size_of_made(metric, variables):
    if _keras.learns_shape(metric):
        return 0
    return sum(map(size_of, variables))


def _metric_class(name) -> Any:
    if not isinstance(name, str):
        return None
    wanted = name.replace("_", "").lower()
    for other, cls in vars(keras.metrics).items():
        if inspect.isclass(cls) and other.lower() == wanted:
            return cls
    return None
