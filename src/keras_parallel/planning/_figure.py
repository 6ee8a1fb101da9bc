"""Figures of Matplotlib, which is an extra, and where they are written."""

import io
import os
import pathlib
from typing import Any
from typing import cast

from keras_parallel._errors import InputError
from keras_parallel._errors import PlotError


def new_figure(**options: Any) -> Any:
    """A figure that a notebook shows, whether pyplot runs there or not.

    Args:
        **options: Those of `matplotlib.figure.Figure`.

    Raises:
        PlotError: if Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError(
            "Pictures are drawn by Matplotlib, which is an extra. Received: "
            f"{error}. To install it: "
            '`pip install "keras-parallel[plot]"`. Without it, `print` shows '
            "the same."
        ) from error

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            written = io.BytesIO()
            figure: Any = self
            figure.savefig(written, format="png")
            return written.getvalue()

    return Picture(**options)


def check_picture_path(path: object, works: str) -> None:
    """Raises `InputError` if a picture cannot be written to `path`.

    Args:
        path: What the user passed.
        works: A call that works.
    """
    suffixes = sorted(new_figure().canvas.get_supported_filetypes())
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
