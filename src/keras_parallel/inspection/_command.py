"""The command `keras-parallel check`: the first `fit` of a script, checked."""

import contextlib
import functools
import inspect
import json
import os
import runpy
import sys
import traceback

import keras

from keras_parallel.inspection import _check
from keras_parallel.inspection._arguments import check_arguments
from keras_parallel.inspection._report import Report
from keras_parallel.inspection._source import Source
from keras_parallel.strategies import _data_mistakes
from keras_parallel.strategies._twin import template_of

EQUAL, DIFFERENT, FAILED = 0, 1, 2

_BATCH_SIZE = 32  # That of Keras.
_STEPS = 5


class _Found(BaseException):
    """Ends a script at its first `fit`. No `except Exception` catches it."""

    def __init__(self, report):
        super().__init__()
        self.report = report


def run(script: str, arguments: list[str], json_path: str | None) -> int:
    """Runs a script up to its first `fit`, checks that, and says what came.

    Args:
        script: Path of the script.
        arguments: Its arguments.
        json_path: Where to write the report as JSON, if anywhere.

    Returns:
        The exit status: 0 if the parallel model equals one device and
        exchanges what was planned, 1 if not, 2 if there was nothing to check.
    """
    try:
        report = _first_fit(script, arguments)
    except Exception:
        # Where in the user's script it happened is what they need.
        traceback.print_exc()
        return _fail(f"{script} ended in the error above, before a check.")
    if report is None:
        return _fail(
            "A script is checked at its first `fit` of a compiled model. "
            f"Received: {script}, which ended without one. In code: "
            "`keras_parallel.check(model, x, y)`."
        )
    print(report)
    if json_path is not None:
        with open(json_path, "w", encoding="utf-8") as file:
            json.dump(report.to_dict(), file, indent=2)
            file.write("\n")
    return EQUAL if report.ok else DIFFERENT


def _fail(message):
    print(f"keras-parallel: {message}", file=sys.stderr)
    return FAILED


def _first_fit(script, arguments) -> Report | None:
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    with _intercepted():
        try:
            runpy.run_path(script, run_name="__main__")
        except _Found as found:
            return found.report
        except SystemExit as end:
            if end.code not in (None, 0):
                raise RuntimeError(f"exit status {end.code}") from end
    return None


@contextlib.contextmanager
def _intercepted():
    """Lets the first `fit` be checked, and end the script.

    There is no public hook around `fit`: its callbacks come when training has
    begun. So Keras's method is replaced, in this process only, which exists
    for the check. That of a parallel model calls it too.
    """
    fit = keras.Model.fit
    signature = inspect.signature(fit)
    checking = False

    @functools.wraps(fit)
    def checked(self, *args, **kwargs):
        nonlocal checking
        if checking or not self.compiled:
            return fit(self, *args, **kwargs)
        checking = True
        call = signature.bind(self, *args, **kwargs)
        call.apply_defaults()
        raise _Found(_checked(self, call.arguments))

    keras.Model.fit = checked
    try:
        yield
    finally:
        keras.Model.fit = fit


def _checked(model, given):
    x, y, weights = (given[name] for name in ("x", "y", "sample_weight"))
    callbacks = given["callbacks"]
    if not isinstance(callbacks, list | tuple):
        callbacks = [] if callbacks is None else [callbacks]
    size = given["batch_size"] or _BATCH_SIZE
    steps = min(_STEPS, given["steps_per_epoch"] or _STEPS)
    check_arguments(size, steps, callbacks)
    source = Source(x, y, weights, size, steps)
    if not model.built or not model.variables:
        # The script ends after the check, so that the model may be built.
        inputs, _, _ = keras.utils.unpack_x_y_sample_weight(source.one_batch())
        template_of(model)(inputs)
    report = _check.report_on(model, source, callbacks)
    return _check.with_notes(report, _left_out(given))


def _left_out(given):
    # Neither takes part in what is compared and measured.
    for name in ("class_weight", "validation_data"):
        if given[name] is not None:
            yield f"`{name}` was left out."
    if given["validation_split"] and _data_mistakes.is_arrays(given["x"]):
        yield "`validation_split` was left out."
