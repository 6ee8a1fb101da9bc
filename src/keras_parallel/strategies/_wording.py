"""Words for what a user passed, and the form of what they are told."""

import reprlib
from typing import Any

from keras_parallel._errors import InputError
from keras_parallel._errors import KerasParallelError


def error(
    rule: str,
    received: str,
    works: str,
    kind: type[KerasParallelError] = InputError,
) -> KerasParallelError:
    """An error that states the rule, what came, and a call that works."""
    return kind(f"{rule} Received: {received}. A call that works: `{works}`.")


def shown(value: Any) -> str:
    """A value in a few words."""
    if has_shape(value):
        return (
            f"{type(value).__name__} of shape {tuple(value.shape)} and dtype "
            f"{value.dtype}"
        )
    if isinstance(value, list | tuple) and value:
        inside = f"{len(value)} {type(value[0]).__name__}"
        return f"{type(value).__name__} of {inside}" + "s" * (len(value) > 1)
    if isinstance(value, dict):
        return f"dict with the keys {list(value)}"
    text = " ".join(reprlib.repr(value).split())
    if value is None or isinstance(value, str):
        return text
    return f"{text} (of type {type(value).__name__})"


def has_shape(leaf: Any) -> bool:
    """Whether `leaf` is an array of whatever library."""
    is_class = isinstance(leaf, type)
    return not is_class and hasattr(leaf, "shape") and hasattr(leaf, "dtype")
