"""Does the one model hold what its parts have trained, and does its file?"""

from typing import Any

import keras
import numpy as np

from keras_parallel._errors import InputError
from keras_parallel.strategies import _files
from keras_parallel.strategies import _position
from keras_parallel.strategies._phase_checks import trained_elsewhere
from keras_parallel.strategies._wording import error


def check_holds(model: keras.Model, phases) -> None:
    """Raises `InputError` if `model` lacks what a phase trains."""
    for phase, lost in trained_elsewhere(phases, model):
        if lost:
            raise error(
                "The model that is saved holds all parts.",
                f"the phase {phase.name!r} trains {len(lost)} variables that "
                f"the model {model.name!r} does not hold, such as {lost[0]!r}",
                "keras_parallel.AlternatingTrainer(phases, model=keras.Model("
                "inputs, [*first.outputs, *second.outputs])), then "
                "trainer.save(...)",
            )


def save(model: keras.Model, write, path, overwrite: bool) -> None:
    """Saves `model`, and puts the file at `path` if it loads as `model` is.

    Args:
        model: The model, as the user has it.
        write: Its method `save`.
        path: Where to.
        overwrite: As in Keras.

    Raises:
        InputError: if plain Keras does not load what was written. What was at
            `path` before is there still.
    """
    target = _files.local_file(path, (".keras",))
    if target is None or (target.exists() and not overwrite):
        write(path, overwrite=overwrite)  # Keras asks, or refuses.
        return
    with _files.replaced_when_whole(target) as unchecked:
        write(unchecked, overwrite=True)
        _check_file(model, unchecked)


def _check_file(model, path):
    try:
        with _position.untouched_random_state():
            loaded: Any = keras.saving.load_model(path, compile=False)
    except Exception as failure:
        raise InputError(
            "The file of an alternating training loads in plain Keras. "
            f"Received: a model {model.name!r} of which Keras says, when it "
            f"loads it: {type(failure).__name__}: {failure} "
            "What helps: register custom layers and functions with "
            "`@keras.saving.register_keras_serializable()`; and where models "
            "that share a model are nested in this one, build it of their "
            "outputs: `keras.Model(inputs, [*first.outputs, *second.outputs])`."
        ) from failure
    for variable, other in zip(model.weights, loaded.weights, strict=True):
        if not np.array_equal(variable.numpy(), other.numpy(), equal_nan=True):
            raise InputError(
                "The file of an alternating training holds the weights that "
                f"were trained. Received: a model {model.name!r} of which "
                f"Keras loads {variable.path!r} with other values. Build it of "
                "the outputs of its parts: `keras.Model(inputs, "
                "[*first.outputs, *second.outputs])`."
            )
