"""Checks the names of outputs in what `compile` receives."""

import re
from collections.abc import Iterable

import keras

from keras_parallel._errors import OutputNameError

_OLD_NAME = re.compile(r"^concatenate(?:_\d+)?$")


def check_old_output_names(model: keras.Model, arguments: dict) -> None:
    """Refuses dictionaries keyed as the old `multi_gpu_model` renamed outputs.

    It called the outputs of its wrapper `concatenate_1`, `concatenate_2` and
    so on, and people compiled again with those names. Other unknown names
    are left to Keras.

    Args:
        model: The model that is compiled.
        arguments: The arguments of `compile` by name.

    Raises:
        OutputNameError: with the names that were meant.
    """
    names = _output_names(model)
    for argument, value in arguments.items():
        if not isinstance(value, dict):
            continue
        old = [
            key
            for key in value
            if isinstance(key, str)
            and key not in names
            and _OLD_NAME.match(key)
        ]
        if old and names:
            raise _old_names_error(argument, value, old, names)


def _output_names(model) -> list[str]:
    if isinstance(model, keras.Sequential):
        return [layer.name for layer in model.layers[-1:]]
    names = list(getattr(model, "output_names", []))
    if names and isinstance(model.output, dict):
        names += [key for key in model.output if key not in names]
    return names


def _old_names_error(argument, value, old, names):
    meant = _meant(old, [n for n in names if n not in value] or names)
    works = "..."  # One output needs no name.
    if len(names) > 1:
        works = f"{{{_renamed(value, meant)}}}"
    return OutputNameError(
        f"The keys of `{argument}` are names of outputs, and a parallel model "
        "has the outputs of the model it was made from. The old "
        "`multi_gpu_model` renamed them to 'concatenate_1', 'concatenate_2' "
        "and so on; here they keep their names. "
        f"Received: {argument} with the keys {list(value)}. "
        f"The outputs are {names}: "
        + ", ".join(f"{o!r} meant {m!r}" for o, m in meant.items())
        + ". A call that works: `model.compile("
        + f"{argument}={works})`."
    )


def _meant(old: Iterable[str], candidates: list[str]) -> dict[str, str]:
    """Pairs old names with outputs: the wrapper numbered them in order."""
    ordered = sorted(old, key=_number)
    if len(ordered) == len(candidates):
        return dict(zip(ordered, candidates))
    last = len(candidates) - 1
    return {o: candidates[min(max(_number(o) - 1, 0), last)] for o in ordered}


def _number(old_name):
    return int(old_name.removeprefix("concatenate").strip("_") or 0)


def _renamed(value, meant):
    return ", ".join(f"{meant.get(k, k)!r}: ..." for k in value)
