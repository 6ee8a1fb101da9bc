"""What `make_batch` returned: is it a batch, and one that the model takes?"""

import contextlib
from collections.abc import Iterator

import keras
import numpy as np

from keras_parallel._errors import InputError
from keras_parallel._errors import KerasParallelError
from keras_parallel.strategies._wording import has_shape
from keras_parallel.strategies._wording import shown


def check(made, phase) -> None:
    """Raises `InputError` unless `made` is `(x, y[, sample_weight])`."""
    if not isinstance(made, tuple) or not 1 <= len(made) <= 3:
        raise _error(phase, f"it returned {shown(made)}")
    rows = {}
    for name, part in zip(("x", "y", "sample_weight"), made):
        for leaf in keras.tree.flatten(part):
            if leaf is None:
                continue
            if not has_shape(leaf) or len(leaf.shape) == 0:
                raise _error(
                    phase, f"within `{name}` there is {shown(leaf)}, no array"
                )
            if getattr(leaf.dtype, "kind", "f") == "O":
                raise _error(phase, f"within `{name}` there is {shown(leaf)}")
            rows.setdefault(leaf.shape[0], name)
    if not rows:
        raise _error(phase, f"it returned {shown(made)}, without an array")
    if len(rows) > 1:
        counts = ", ".join(f"{n} in `{name}`" for n, name in rows.items())
        raise _error(phase, f"arrays of different numbers of rows: {counts}")
    if not next(iter(rows)):
        raise _error(phase, "a batch without rows; to skip one, return `None`")


@contextlib.contextmanager
def explained(phase, data) -> Iterator[None]:
    """Says of which phase a batch was that its model did not take."""
    try:
        yield
    except (ValueError, TypeError) as failure:
        if isinstance(failure, KerasParallelError) and not phase.make_batch:
            raise
        expected = _expected(phase.model)
        source = (
            "what `make_batch` returned"
            if phase.make_batch
            else "the batch of the data"
        )
        raise InputError(
            f"The model of the phase {phase.name!r} does not take {source}. "
            f"Received: {_described(data)}. {expected}It says: "
            f"{type(failure).__name__}: {failure}"
        ) from failure


def _error(phase, received):
    return InputError(
        f"`make_batch` of the phase {phase.name!r} returns `(x, y)` or `(x, y, "
        "sample_weight)`, a tuple of arrays or structures of them with equal "
        "numbers of rows, or `None` to skip the batch. Received: "
        f"{received}. {_expected(phase.model)}One that works: `def "
        "make_batch(batch, predictions): x, y = batch; return x, y`."
    )


def _described(data):
    names = ("x", "y", "sample_weight")
    return ", ".join(
        f"{name} of {_shapes(part)}"
        for name, part in zip(names, data)
        if part is not None
    )


def _shapes(structure):
    return keras.tree.map_structure(
        lambda leaf: tuple(leaf.shape) if has_shape(leaf) else np.shape(leaf),
        structure,
    )


def _expected(model):
    if not hasattr(model, "inputs") or not model.built:
        return ""
    inputs, outputs = _shapes(model.input), _shapes(model.output)
    return f"The model takes inputs of {inputs} and gives {outputs}. "
