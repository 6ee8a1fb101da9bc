"""Files that are whole at any time, and that hold the random state.

Keras writes over the file that is there, so a process that dies meanwhile
leaves neither the old one nor the new one. And of what a training needs to go
on as if it had not stopped, its files lack one thing: where the seed
generators are, the dropout of the next step.
"""

import contextlib
import json
import os
import pathlib
import shutil
import threading
import zipfile
import zlib
from collections.abc import Iterator

import keras
import numpy as np

from keras_parallel.strategies._targets import is_of_keras

# The attribute of a weights file, and the entry of an archive, that Keras does
# not look at.
_RANDOM_STATE = "random_state"

_SUFFIXES = {
    "save": (".keras", ".h5", ".hdf5"),
    "save_weights": (".weights.h5",),
}
_ALL_SUFFIXES = (".weights.h5", ".keras", ".h5", ".hdf5")


def write_whole(model, method, path, overwrite, options):
    """Calls Keras's `save` or `save_weights`, on a file beside the target.

    The file at `path` is replaced when the new one is whole. What cannot be
    replaced in one move is left to Keras: a folder, several shards, a path
    that is not local, and the question whether to overwrite.

    Args:
        model: The model that is saved.
        method: Its bound method.
        path: Where to, as the user has it.
        overwrite: As in Keras.
        options: Further arguments of the method.
    """
    one_file = not options.get("max_shard_size") and options.get(
        "zipped", True
    ) in (None, True)
    target = None
    if one_file and is_of_keras(method):
        target = local_file(path, _SUFFIXES[method.__name__])
    if target is None or (target.exists() and not overwrite):
        return method(path, overwrite=overwrite, **options)
    with replaced_when_whole(target) as partial:
        method(partial, overwrite=overwrite, **options)
        _add_random_state(model, partial)
    return None


@contextlib.contextmanager
def replaced_when_whole(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a path beside `target`, which it replaces if nothing fails."""
    # Short, since names have a limit; of one thread and one target; and nothing
    # that `ls *.keras` shows. What a process that was killed has left is
    # written over by the next one with its number.
    suffix = next(s for s in _ALL_SUFFIXES if target.name.endswith(s))
    writer = f"{threading.get_native_id()}-{zlib.crc32(target.name.encode())}"
    partial = target.with_name(f".partial-{writer}{suffix}")
    try:
        yield partial
        if target.exists():
            shutil.copymode(target, partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def local_file(path, suffixes):
    """The file that `path` means, or `None` if it is none we can replace."""
    try:
        text = os.fspath(path)
    except TypeError:
        return None
    if not isinstance(text, str) or "://" in text:
        return None
    # A link is kept: what it points to is replaced.
    target = pathlib.Path(os.path.realpath(text))
    if not text.endswith(suffixes) or not os.access(target.parent, os.W_OK):
        return None
    return target if target.is_file() or not target.exists() else None


def _add_random_state(model: keras.Model, path) -> None:
    """Writes the seed generators' state into a file that Keras has saved."""
    states = [v.numpy().tolist() for v in _random_state(model)]
    if not states:
        return
    text = json.dumps(states)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"{_RANDOM_STATE}.json", text)
    else:
        import h5py

        with h5py.File(path, "a") as file:
            file.attrs[_RANDOM_STATE] = text


def restore_random_state(model: keras.Model, path) -> None:
    """Sets the seed generators as they were when `path` was saved.

    Does nothing for a file without them, such as one that plain Keras wrote,
    or of a model with other seed generators.
    """
    states = _read_random_state(path)
    variables = _random_state(model)
    if states is None or len(states) != len(variables):
        return
    values = [np.asarray(s, v.dtype) for s, v in zip(states, variables)]
    if all(a.shape == tuple(v.shape) for a, v in zip(values, variables)):
        for variable, value in zip(variables, values):
            variable.assign(value)


def _read_random_state(path):
    text = None
    if not os.path.isfile(path):
        return None
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if f"{_RANDOM_STATE}.json" in archive.namelist():
                text = archive.read(f"{_RANDOM_STATE}.json")
    elif str(path).endswith(".h5"):
        import h5py

        with h5py.File(path) as file:
            text = file.attrs.get(_RANDOM_STATE)
    return None if text is None else json.loads(text)


def _random_state(model):
    """The seed generators' variables: the ones that are no weights."""
    weights = {id(v) for v in model.weights}
    return [v for v in model.non_trainable_variables if id(v) not in weights]
