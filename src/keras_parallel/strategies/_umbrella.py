"""Does the one model hold what its parts have trained, and does its file?"""

import io
import os
import zipfile

import keras
import numpy as np

from keras_parallel.strategies._wording import error


def check_holds(model: keras.Model, phases) -> None:
    """Raises `InputError` if `model` lacks what a phase trains."""
    held = {id(v) for v in model.variables}
    for phase in phases:
        lost = [
            v.path for v in phase.model.trainable_variables if id(v) not in held
        ]
        if lost:
            raise error(
                "The model that is saved holds all parts.",
                f"the phase {phase.name!r} trains {len(lost)} variables that "
                f"the model {model.name!r} does not hold, such as {lost[0]!r}",
                "keras_parallel.AlternatingTrainer(phases, model=keras.Model("
                "inputs, [*first.outputs, *second.outputs])), then "
                "trainer.save(...)",
            )


def check_file(model: keras.Model, path) -> None:
    """Raises `OSError` if a `.keras` archive lacks a weight of `model`."""
    if not os.path.isfile(path) or not zipfile.is_zipfile(path):
        return  # Not an archive: Keras wrote what it was asked for.
    import h5py

    found = set()
    with zipfile.ZipFile(path) as archive:
        content = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(content, "r") as file:
        file.visititems(
            lambda _, item: found.add(_key(np.asarray(item)))
            if isinstance(item, h5py.Dataset)
            else None
        )
    for variable in model.weights:
        if _key(variable.numpy()) not in found:
            raise OSError(
                f"The file holds all weights as they are. Received: {path!r} "
                f"was written, and {variable.path!r} is not found in it. Save "
                "again; the model is unchanged."
            )


def _key(array):
    # HDF5 has no bfloat16, which Keras writes in another dtype.
    return array.shape, np.asarray(array, "float64").tobytes()
