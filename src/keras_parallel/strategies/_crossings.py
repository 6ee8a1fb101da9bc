"""What crosses between the devices in a step of data parallelism.

Found by looking at compiled steps; a test holds the two against each other.
"""

import math
from typing import Any

import keras

from keras_parallel.planning import Collective
from keras_parallel.strategies import _keras
from keras_parallel.strategies import _sizes
from keras_parallel.strategies._sizes import size_of

# In float32: the mean, the mean within the variance and the variance on the
# way forward; backward the sums for scale, center and the variance.
_SUMS_OF_STATISTICS = 6
_OPERATIONS_OF_STATISTICS = 4
_FLOAT = 4
GROUPED = "rows, for grouped convolutions"
# Losses of Keras that need sums over all rows before they divide them.
_RATIOS = (keras.losses.Dice, keras.losses.Tversky)


def collectives(model, parts, outline, metrics) -> tuple[Collective, ...]:
    """What crosses when each device has rows of its own.

    Args:
        model: The parallel model.
        parts: The number of devices.
        outline: The engine's `Outline` of it, if there is one.
        metrics: The size of each metric.
    """
    gradients = _gradients(model, outline)
    merged = 0 if outline is None else outline.merged
    return (
        Collective("all-reduce", "gradients", sum(gradients) + merged),
        *_scales(model),
        *_rows(parts, outline),
        *_statistics(model, outline, gradients),
        *_losses(model, outline),
        *(
            Collective("all-reduce", f"metric {name!r}", size, group="metrics")
            for name, size in metrics.items()
            if size
        ),
    )


def new_weights(replicas, model, slots):
    """What crosses where each device updates its own part of the weights.

    Args:
        replicas: The replicas of the model.
        model: The parallel model.
        slots: The optimizer's variables, `None` if they are not known.
    """
    sizes = []
    shapes = {tuple(slot.shape) for slot in slots or ()}
    for variable in model.trainable_variables:
        parts = replicas.lay_out_slot(tuple(variable.shape)).parts
        if parts > 1 and tuple(variable.shape) in shapes:
            sizes.append(size_of(variable) // parts)
    if sizes:
        yield Collective("all-gather", "new weights", sum(sizes), len(sizes))


def _gradients(model, outline):
    variables = model.trainable_variables
    sizes = map(size_of, variables)
    if outline is not None:
        sizes = outline.gradients
    return [
        0 if is_overwritten(variable) else size
        for variable, size in zip(variables, sizes)
    ]


def is_overwritten(variable):
    """Whether a step computes `variable` anew where others have a gradient.

    Those are the scales of float8, and the maxima that they are made of.
    """
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _scales(model):
    # A scale and a history of maxima for inputs, weights and gradients: two
    # of the three are of rows.
    count = sum(map(is_overwritten, model.trainable_variables)) // 3
    if count:
        yield Collective(
            "all-reduce", "maxima for the scales of float8", _FLOAT * count
        )


def _rows(parts, outline):
    if outline is not None and outline.gathered:
        sizes = [-(-size // parts) for size in outline.gathered]
        yield Collective("all-gather", GROUPED, sum(sizes), len(sizes))


def _statistics(model, outline, gradients):
    weights = {id(v): i for i, v in enumerate(model.trainable_variables)}
    states = {id(v): i for i, v in enumerate(model.non_trainable_variables)}
    layers: list[Any] = _keras.layers_of(model)
    for layer in layers:
        if not isinstance(layer, keras.layers.BatchNormalization):
            continue
        if not layer.built or id(layer.moving_mean) not in states:
            continue
        uses = int(layer.trainable)
        if outline is not None:
            uses = outline.updates[states[id(layer.moving_mean)]]
        mean: Any = layer.moving_mean
        channels = math.prod(mean.shape)
        size = uses * _SUMS_OF_STATISTICS * _FLOAT * channels
        # Two of the sums are the gradients of these.
        for variable in (layer.gamma, layer.beta):
            if id(variable) in weights:
                size -= gradients[weights[id(variable)]]
        if uses:
            yield Collective(
                "all-reduce",
                f"statistics of {layer.name!r}",
                max(size, 0),
                uses * _OPERATIONS_OF_STATISTICS,
                group="statistics of BatchNormalization layers",
            )


def _losses(model, outline):
    if not model.compiled:
        return
    losses = _sizes.number_of_losses(model, outline)
    # The sum of the values, and that of the weights.
    sums = 2 * losses
    for loss in keras.tree.flatten(model.loss):
        ratio = isinstance(loss, _RATIOS) or loss in ("dice", "tversky")
        sums += 2 * max(losses, 1) * ratio
    for layer in _keras.layers_of(model):
        sums += getattr(layer, "activity_regularizer", None) is not None
    yield Collective("all-reduce", "losses", _FLOAT * max(sums, 1))
