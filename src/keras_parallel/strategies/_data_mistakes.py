"""Names the mistake in `x`, `y` and `sample_weight`, of a call or of a batch.

Each function returns an error to raise, or `None` where it finds nothing. They
look at shapes and types only, never at the values of data. `call` is what a
call that works looks like, such as `"model.fit({})"`.
"""

import inspect
import numbers
import types
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_parallel.strategies._wording import error
from keras_parallel.strategies._wording import has_shape
from keras_parallel.strategies._wording import shown


def _is_scalar(value: Any) -> bool:
    return has_shape(value) and len(value.shape) == 0


def leaves_of(data: Any) -> list:
    return [leaf for leaf in keras.tree.flatten(data) if leaf is not None]


def is_arrays(data: Any) -> bool:
    """Whether `data` is an array or a structure of arrays."""
    leaves = leaves_of(data)
    return bool(leaves) and all(map(has_shape, leaves))


def no_data(name: str, value: Any, call: str):
    """For what is neither arrays nor, if it is `x`, a dataset."""
    before = {"x": "", "y": "x, ", "sample_weight": "x, y, sample_weight="}[
        name
    ]

    def wrong(rule, works):
        return error(
            rule, f"{name}={shown(value)}", call.format(f"{before}{works}")
        )

    if isinstance(value, list | tuple) and any(
        isinstance(leaf, str | numbers.Number) for leaf in leaves_of(value)
    ):
        return wrong(
            f"`{name}` is an array; a list stands for several inputs or "
            "outputs.",
            f"numpy.array({name})",
        )
    if _is_scalar(value):
        return wrong("A scalar has no rows.", f"numpy.array([{name}])")
    known = [works for kind, works in _NO_DATA if isinstance(value, kind)]
    if not known or inspect.isgenerator(value):
        return None
    if name != "x":
        return wrong(
            f"`{name}` is an array with a row for each row of `x`.",
            f"numpy.array(list({name}))",
        )
    works = known[0].format(name=getattr(value, "__name__", ""))
    return wrong(
        "`x` is an array, a list or dict of arrays, a dataset, or a generator.",
        works.replace("<lambda>", "function"),
    )


# What is no data of any kind, and what makes data of it.
_NO_DATA = (
    (str | bytes, "numpy.load(path)"),
    (types.FunctionType | types.MethodType, "{name}()"),
    (type, "{name}(...)"),
    (Iterator, "(batch for batch in batches)"),
    (numbers.Number, "numpy.array([x])"),
    (set | frozenset | range, "numpy.array(list(x))"),
    (types.NoneType, "x"),
)


def _rows(array) -> Any:
    return array.shape[0] if len(array.shape) else None


def no_rows(data, call):
    rule = "Data has at least one row."
    if is_arrays(data):
        for array in leaves_of(data):
            if _rows(array) == 0:
                works = f"numpy.zeros({(1, *array.shape[1:])}), ..."
                return error(rule, f"x={shown(array)}", call.format(works))
    elif isinstance(data, keras.utils.PyDataset) and data.num_batches == 0:
        return no_batch(data, call)
    return None


def no_batch(data, call):
    return error(
        "Data has at least one batch.",
        f"{type(data).__name__} without any",
        call.format("x, ..."),
    )


def no_numbers(name, data, call):
    """For arrays that hold no numbers: strings, objects, dates."""
    for leaf in leaves_of(data):
        kind = getattr(getattr(leaf, "dtype", None), "kind", None)
        if kind not in tuple("OSUMm"):
            continue
        works = f"{name}.astype('float32')"
        if kind in "SU":
            works = "keras.layers.StringLookup(vocabulary=[...])"
            works = f"{works}({name})"
        return error(
            "Arrays hold numbers or booleans.",
            f"{name}={shown(leaf)}",
            works if kind in "SU" else call.format(f"{works}, ..."),
        )
    return None


def foreign_arrays(name, data, call):
    """For what a step cannot take: arrays of another library."""
    for leaf in leaves_of(data):
        if isinstance(
            leaf, np.ndarray | np.generic | numbers.Number
        ) or keras.ops.is_tensor(leaf):
            continue
        if not hasattr(leaf, "shape"):
            continue
        works = f"numpy.asarray({name})"
        for method in ("toarray()", "detach().numpy()"):
            if hasattr(leaf, method.partition("(")[0]):
                works = f"{name}.{method}"
        cls = type(leaf)
        return error(
            "A batch is made of NumPy arrays or of arrays of the backend.",
            f"{name} of type {cls.__module__}.{cls.__qualname__}",
            call.format(f"{works}, ..."),
        )
    return None


def wrong_length(batch):
    """For a batch of more than `x`, `y` and `sample_weight`."""
    if not isinstance(batch, list | tuple) or len(batch) <= 3:
        return None
    return error(
        "A batch is `x`, `(x,)`, `(x, y)` or `(x, y, sample_weight)`.",
        f"{type(batch).__name__} of {len(batch)}",
        "batch = (x, y, sample_weight)",
    )


def rows_differ(x, y, sample_weight, call):
    """For a batch whose arrays do not have the same number of rows."""
    rows = {
        name: sorted({_rows(a) for a in leaves_of(data) if len(a.shape)})
        for name, data in (
            ("x", x),
            ("y", y),
            ("sample_weight", sample_weight),
        )
        if data is not None and is_arrays(data)
    }
    found = sorted({r for several in rows.values() for r in several})
    if len(found) < 2:
        return None
    given = ", ".join(
        f"{name} of {' and '.join(map(str, several))} rows"
        for name, several in rows.items()
    )
    least = found[0]
    works = ", ".join(
        "sample_weight=" * (name == "sample_weight") + f"{name}[:{least}]"
        for name in rows
    )
    return error(
        "The arrays of a batch have the same number of rows.",
        given,
        call.format(works),
    )
