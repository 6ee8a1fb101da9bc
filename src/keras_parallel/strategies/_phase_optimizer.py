"""The optimizer of a phase, on the variables that the phase trains.

Keras's optimizers apply gradients to the variables that they were built for,
all of them. One that was built for more than a phase trains is given to it in
a form that knows the others no more: same slots, same step count, same
learning rate.
"""

import keras

from keras_parallel.strategies import _keras
from keras_parallel.strategies._wording import error
from keras_parallel.strategies._wording import shown


def optimizer_of(given, model: keras.Model, name: str):
    """What `optimizer=` of a phase means.

    Args:
        given: An optimizer, its name or its configuration.
        model: The model that it shall train.
        name: The name of the phase.

    Raises:
        InputError: if it means none.
    """
    try:
        optimizer = keras.optimizers.get(given)
    except (ValueError, TypeError) as failure:
        raise error(
            "`optimizer` of a phase is an optimizer, or the name of one.",
            f'Phase("{name}", optimizer={shown(given)})',
            f'keras_parallel.Phase("{name}", model, optimizer="adam")',
        ) from failure
    scales = keras.optimizers.LossScaleOptimizer
    if model.dtype_policy.name == "mixed_float16" and not isinstance(
        optimizer, scales
    ):
        # As `compile` does.
        optimizer = scales(optimizer, name="loss_scale_optimizer")
    return optimizer


def on_variables(optimizer, variables: list):
    """`optimizer`, for these of the variables that it was built for."""
    known = _keras.trained_by(optimizer)
    wanted = [id(v) for v in variables]
    if not optimizer.built or [id(v) for v in known] == wanted:
        return optimizer
    if not set(wanted) <= {id(v) for v in known}:
        return optimizer  # Keras says which it does not know.
    return _keras.optimizer_of_some(optimizer, variables)
