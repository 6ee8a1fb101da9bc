"""Callbacks of Keras that write files, made to write them elsewhere.

A check calls the hooks of a training that does not take place. What it writes
must not replace a log, or be what the next training goes on from.
"""

import contextlib
import copy
import os
import tempfile

import keras

# What each takes as the path of what it writes.
_PATHS = {
    "CSVLogger": "filename",
    "ModelCheckpoint": "filepath",
    "BackupAndRestore": "backup_dir",
    "TensorBoard": "log_dir",
}
# It opens its folder when it is made.
_CANNOT_MOVE = ("OrbaxCheckpoint",)


@contextlib.contextmanager
def stand_ins(callbacks):
    """Gives the callbacks to call, and notes on what is left out.

    Those of Keras that write files, and their subclasses, are replaced by
    copies that write to a temporary folder, so that their time counts. It is
    removed at the end.
    """
    with tempfile.TemporaryDirectory(
        prefix="keras_parallel_check_", ignore_cleanup_errors=True
    ) as folder:
        called, notes, moved = [], [], []
        for i, callback in enumerate(callbacks):
            kind = _kind_of(callback, (*_PATHS, *_CANNOT_MOVE))
            if kind is None:
                called.append(callback)
                continue
            other = None
            if kind in _PATHS:
                other = _moved(callback, _PATHS[kind], f"{folder}/{i}")
            if other is None:
                notes.append(
                    f"`{type(callback).__name__}` was left out, since it "
                    "would write to its files."
                )
                continue
            called.append(other)
            moved.append((getattr(keras.callbacks, kind), other))
        try:
            yield called, notes
        finally:
            for kind, other in moved:
                # Closes its files; nothing of it is kept. Not what a subclass
                # does at the end of a training.
                with contextlib.suppress(Exception):
                    kind.on_train_end(other)


def _kind_of(callback, names):
    for name in names:
        kind = getattr(keras.callbacks, name, None)
        if isinstance(kind, type) and isinstance(callback, kind):
            return name
    return None


def _moved(callback, attribute, folder):
    """A copy that writes to `folder`, `None` if it cannot be copied."""
    try:
        other = copy.copy(callback)
        path = os.fspath(getattr(other, attribute))
        base = path.rstrip("/" + os.sep)
        new = os.path.join(folder, os.path.basename(base) or "files")
        os.makedirs(folder)
        for name, value in vars(other).items():
            if isinstance(value, str) and value.startswith(
                (base + "/", base + os.sep)
            ):
                setattr(other, name, new + value[len(base) :])
        setattr(other, attribute, new)
    except Exception:  # Code of a subclass may raise anything.
        return None
    return other
