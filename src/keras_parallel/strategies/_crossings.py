"""What crosses between the devices in a step of data parallelism.

Found by looking at compiled steps; a test holds the two against each other.
"""

from typing import Any

import keras

from keras_parallel.planning import Collective
from keras_parallel.planning import Reduction
from keras_parallel.strategies import _keras
from keras_parallel.strategies import _sizes
from keras_parallel.strategies._sizes import size_of

# In float32: the mean, the mean within the variance and the variance on the
# way forward; backward the sums for scale, center and the variance.
_SUMS_OF_STATISTICS = 6
_OPERATIONS_OF_STATISTICS = 4
_FLOAT = 4
# Losses of Keras that need sums over all rows before they divide them.
_RATIOS = (keras.losses.Dice, keras.losses.Tversky)


def collectives(model, outline, metrics) -> tuple[Collective, ...]:
    """What crosses when each device has rows of its own.

    Args:
        model: The parallel model.
        outline: The engine's `Outline` of it, if there is one.
        metrics: The size of each metric.
    """
    reductions = _reductions(model, outline)
    return (
        *_gradients(model, reductions),
        *_statistics(model, outline, reductions),
        *_losses(model),
        *(
            Collective("all-reduce", f"metric {name!r}", size, group="metrics")
            for name, size in metrics.items()
            if size
        ),
    )


def _reductions(model, outline):
    if outline is not None:
        return outline.reductions
    return [(Reduction(size_of(v)),) for v in model.trainable_variables]


def _gradients(model, reductions):
    once = again = 0
    in_loops = {}
    for variable, sums in zip(model.trainable_variables, reductions):
        outside = [one.bytes for one in sums if one.steps == 1]
        once += sum(outside[:1])
        again += sum(outside[1:])
        owner = variable.path.rpartition("/")[0] or variable.path
        for one in sums:
            if one.steps > 1:
                key = owner, one.steps
                in_loops[key] = in_loops.get(key, 0) + one.bytes * one.steps
    yield Collective("all-reduce", "gradients", once)
    if again:
        yield Collective(
            "all-reduce", "gradients of what is used again in a step", again
        )
    for (owner, steps), size in in_loops.items():
        yield Collective(
            "all-reduce",
            f"gradients of {owner!r}, {steps} times",
            size,
            steps,
            group="gradients at each step of a loop",
        )


def _statistics(model, outline, reductions):
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
        size = uses * _SUMS_OF_STATISTICS * size_of(layer.moving_mean)
        # Two of the sums are the gradients of these.
        for variable in (layer.gamma, layer.beta):
            if id(variable) in weights:
                sums = reductions[weights[id(variable)]]
                size -= sum(one.bytes * one.steps for one in sums)
        if uses:
            yield Collective(
                "all-reduce",
                f"statistics of {layer.name!r}",
                max(size, 0),
                uses * _OPERATIONS_OF_STATISTICS,
                group="statistics of BatchNormalization layers",
            )


def _losses(model):
    if not model.compiled:
        return
    losses = _sizes.number_of_losses(model)
    # The sum of the values, and that of the weights.
    sums = 2 * losses
    for loss in keras.tree.flatten(model.loss):
        ratio = isinstance(loss, _RATIOS) or loss in ("dice", "tversky")
        sums += 2 * max(losses, 1) * ratio
    for layer in _keras.layers_of(model):
        sums += getattr(layer, "activity_regularizer", None) is not None
    yield Collective("all-reduce", "losses", _FLOAT * max(sums, 1))
