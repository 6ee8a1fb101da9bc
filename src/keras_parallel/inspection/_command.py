"""The command `keras-parallel check`: the first `fit` of a script, checked.

The report is written at that `fit`, and the script is ended by an exception,
so that what it has open is closed. A script may catch every exception, and
would go on without a trained model: its next `fit` ends the process.
"""

import contextlib
import functools
import inspect
import json
import os
import runpy
import sys
import threading
import traceback

import keras

from keras_parallel.inspection import _check
from keras_parallel.inspection._arguments import check_arguments
from keras_parallel.inspection._arguments import flat
from keras_parallel.inspection._report import Report
from keras_parallel.inspection._source import Source
from keras_parallel.inspection._source import dataset
from keras_parallel.inspection._untouched import untouched
from keras_parallel.strategies import _data_mistakes
from keras_parallel.strategies._twin import template_of

EQUAL, DIFFERENT, FAILED = 0, 1, 2

_BATCH_SIZE = 32  # That of Keras.
_STEPS = 5


def run(script: str, arguments: list[str], json_path: str | None) -> int:
    """Runs a script up to its first `fit`, checks that, and says what came.

    Args:
        script: Path of the script.
        arguments: Its arguments.
        json_path: Where to write the report as JSON, if anywhere.

    Returns:
        The exit status: 0 if the parallel model equals one device and
        exchanges what was planned, 1 if not, 2 if there was nothing to check
        or the report could not be written.
    """
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    first = _FirstFit(script, json_path)
    with first.intercepted():
        ended = _run_to_its_end(script)
    if first.status is not None:
        return first.status
    if isinstance(ended, SystemExit) and ended.code not in (None, 0):
        # As Python does.
        if not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
        return FAILED
    if ended is not None:
        # Where in the user's script it happened is what they need.
        traceback.print_exception(ended.with_traceback(_within(ended, script)))
        return _fail(f"{script} ended in the error above, before a check.")
    return _fail(
        "A script is checked at its first `fit` of a compiled model. "
        f"Received: {script}, which ended without one. In code: "
        "`keras_parallel.check(model, x, y)`."
    )


def _run_to_its_end(script) -> BaseException | None:
    """Runs a script and its threads; returns what it ended in."""
    before = threading.enumerate()
    ended = None
    try:
        runpy.run_path(script, run_name="__main__")
    except (Exception, SystemExit) as error:
        ended = error
    # Python waits for them too, and one of them may come to a `fit`.
    for thread in threading.enumerate():
        if thread not in before and not thread.daemon:
            thread.join()
    return ended


def _within(error, script):
    """The traceback from the first line of the script on."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == script:
            return trace
        trace = trace.tb_next
    return None


def _fail(message):
    print(f"keras-parallel: {message}", file=sys.stderr)
    return FAILED


class _FirstFit:
    """Checks the first `fit` in this process, and ends what called it."""

    def __init__(self, script, json_path):
        self._script = script
        self._json_path = json_path
        # The exit status, once there is one.
        self.status: int | None = None
        self._lock = threading.Lock()
        self._checking: int | None = None

    @contextlib.contextmanager
    def intercepted(self):
        """Lets the first `fit` be checked, and end the script.

        There is no public hook around `fit`: its callbacks come when training
        has begun. So Keras's methods are replaced, in this process only, which
        exists for the check. Those of a parallel model call them too.
        """
        first = self
        fit, train_on_batch = keras.Model.fit, keras.Model.train_on_batch
        signature = inspect.signature(fit)

        @functools.wraps(fit)
        def checked(self, *args, **kwargs):
            if first._is_within() or not self.compiled:
                return fit(self, *args, **kwargs)

            def report():
                call = signature.bind(self, *args, **kwargs)
                call.apply_defaults()
                return _checked(self, call.arguments)

            return first._end_with(report)

        @functools.wraps(train_on_batch)
        def watched(self, *args, **kwargs):
            if not first._is_within() and _in_a_fit_of_its_own(self):
                first._end_with(lambda: _fail(_own_fit(self)))
            return train_on_batch(self, *args, **kwargs)

        keras.Model.fit = checked
        keras.Model.train_on_batch = watched
        try:
            yield
        finally:
            keras.Model.fit = fit
            keras.Model.train_on_batch = train_on_batch

    def _is_within(self):
        """Whether it is the check itself that calls."""
        return self._checking == threading.get_ident()

    def _end_with(self, report):
        if self.status is not None:
            # The script caught the end, or went on in another thread.
            print(
                f"keras-parallel: {self._script} went on after the check, to "
                "another `fit`, and is ended here.",
                file=sys.stderr,
            )
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.status)
        with self._lock:  # Another thread may have come to its `fit` too.
            if self.status is None:
                self._checking = threading.get_ident()
                try:
                    self.status = self._status_of(report)
                finally:
                    self._checking = None
        # No `except Exception` catches it, and a thread ends by it silently.
        raise SystemExit(self.status)

    def _status_of(self, report):
        try:
            found = report()
        except Exception as error:
            traceback.print_exception(error)
            return _fail(
                f"the check of {self._script} ended in the error above."
            )
        return found if isinstance(found, int) else self._written(found)

    def _written(self, report: Report):
        # At once: a script may end in any way.
        print(report, flush=True)
        if self._json_path is not None:
            try:
                with open(self._json_path, "w", encoding="utf-8") as file:
                    json.dump(report.to_dict(), file, indent=2)
                    file.write("\n")
            except OSError as error:
                return _fail(f"the report could not be written: {error}")
        return EQUAL if report.ok else DIFFERENT


def _in_a_fit_of_its_own(model):
    """Whether a `fit` of the model's class, not that of Keras, is calling."""
    classes = type(template_of(model)).__mro__
    own = {
        getattr(inspect.unwrap(vars(cls)["fit"]), "__code__", None)
        for cls in classes[: classes.index(keras.Model)]
        if "fit" in vars(cls)
    }
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code in own:
            return True
        frame = frame.f_back
    return False


def _own_fit(model):
    return (
        "What is checked is `fit` of Keras. Received: "
        f"{type(template_of(model)).__name__}, whose own `fit` trains by "
        "`train_on_batch`; nothing was trained. A model that works: one with "
        "a `train_step` of its own, trained by `super().fit(...)`."
    )


def _checked(model, given):
    x, y, weights = (given[name] for name in ("x", "y", "sample_weight"))
    size = given["batch_size"] or _BATCH_SIZE
    steps = min(_STEPS, given["steps_per_epoch"] or _STEPS)
    check_arguments(size, steps, given["callbacks"])
    callbacks = flat(given["callbacks"])
    source = Source(x, y, weights, int(size), int(steps))
    if not model.built or not model.variables:
        # Its first `fit` builds it anyway.
        inputs, _, _ = keras.utils.unpack_x_y_sample_weight(source.one_batch())
        template_of(model)(inputs)
    # The script may save it as it ends.
    with untouched(model, [*callbacks, *dataset(x)]):
        report = _check.report_on(model, source, callbacks)
    return _check.with_notes(report, _left_out(given))


def _left_out(given):
    # Neither takes part in what is compared and measured.
    for name in ("class_weight", "validation_data"):
        if given[name] is not None:
            yield f"`{name}` was left out."
    if given["validation_split"] and _data_mistakes.is_arrays(given["x"]):
        yield "`validation_split` was left out."
