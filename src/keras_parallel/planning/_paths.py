"""Where a picture can be written, told before it is drawn."""

import os
import pathlib
from collections.abc import Iterable
from typing import cast

from keras_parallel._errors import InputError


def check_picture_path(
    path: object, suffixes: Iterable[str], works: str
) -> None:
    """Raises `InputError` if a picture cannot be written to `path`.

    Args:
        path: What the user passed.
        suffixes: The suffixes that can be written, without a dot.
        works: A call that works.
    """
    suffixes = sorted(suffixes)
    problem = None
    if not isinstance(path, str | os.PathLike):
        problem = f"of type {type(path).__name__}"
    else:
        file = pathlib.Path(os.fsdecode(cast("str", path)))
        if "\0" in str(file):
            problem = "no name of a file"
        elif file.is_dir():
            problem = "a directory"
        elif file.suffix[1:].lower() not in suffixes:
            problem = f"with the suffix {file.suffix!r}"
        elif not file.parent.is_dir():
            problem = "in a directory that is not there"
    if problem:
        raise InputError(
            "A picture is written to a file in a directory that is there, "
            f"with one of the suffixes {', '.join(suffixes)}. Received: "
            f"path={path!r}, {problem}. A call that works: `{works}`."
        )
