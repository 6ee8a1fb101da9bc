"""What really ran when on each device."""

import contextlib
import gzip
import html
import os
import pathlib
import tempfile
from collections.abc import Iterator

from keras_parallel._errors import TraceError
from keras_parallel._logging import logger
from keras_parallel.engines import Recording
from keras_parallel.engines import active_engine
from keras_parallel.planning import Timeline
from keras_parallel.strategies._wording import error
from keras_parallel.strategies._wording import shown

_SUFFIXES = (".json", ".json.gz")
_WORKS = 'with keras_parallel.trace("run.json") as trace: ...'


def trace(path: str | os.PathLike) -> "Trace":
    """Records what runs when on each device, for the steps inside.

    The backend's own profiler records. It costs little per operation, but
    each operation of each step is kept: trace some steps, not a training.

    Example:

    ```python
    with keras_parallel.trace("run.json") as trace:
        parallel.fit(x, y, batch_size=256, epochs=1)
    print(trace)             # per device: busy, communication, idle
    trace.plot("run.png")    # a lane for each device
    ```

    Args:
        path: The file to write, `.json` or `.json.gz`, in the trace event
            format of Chrome, which https://ui.perfetto.dev opens. It is
            written at the end, also when the code inside raises.

    Returns:
        A `Trace` for one `with`. Any model can run inside, a plain
        `keras.Model` too. When the `with` ends, what was asked of the
        devices inside has run.

    Raises:
        InputError: if there is no such place for a file.
        TraceError: when the `with` begins, if a profiler runs already.
        BackendError: if there is no engine for the Keras backend in use.
    """
    return Trace(path)


class Trace:
    """What `kp.trace` recorded.

    Printed, it is a table: for each device how long it was busy, computing,
    communicating and idle, and for each program how often it ran. On virtual
    devices, and wherever devices wait for each other, communication includes
    the wait for the last one.

    Args:
        path: See `trace`.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = _checked(path)
        self._timeline: Timeline | None = None
        self._recording: Recording | None = None
        self._stack = contextlib.ExitStack()

    @property
    def timeline(self) -> Timeline:
        """What ran, as events with seconds since the recording began.

        Raises:
            TraceError: if the `with` has not ended.
        """
        if self._timeline is None:
            raise error(
                "A trace can be read when its `with` has ended.",
                "one that has not, or in which nothing was recorded",
                _WORKS,
                TraceError,
            )
        return self._timeline

    def plot(
        self,
        path: str | os.PathLike | None = None,
        steps: int | range | None = None,
        program: str | None = None,
    ):
        """Draws a lane for the host and for each device.

        Args:
            path: The picture to write; the suffix says how, such as `.png`
                or `.svg`. Defaults to `None`, to write nothing.
            steps: Which steps to show: the last so many, or those of a range
                such as `range(10, 13)`. Defaults to the last few, and to all
                that ran where the steps were not compiled as one program.
            program: The program whose runs are the steps, by its name or a
                part of it, such as `"test_step"`. Defaults to the training
                step, else the step that took longest.

        Returns:
            The `matplotlib.figure.Figure`.

        Raises:
            InputError: if there are no such steps, or no such place for a
                picture.
            PlotError: if Matplotlib is missing; it is the extra `[plot]`.
            TraceError: if the `with` has not ended.
        """
        return self.timeline.plot(path, steps, program)

    def _repr_html_(self):
        return f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self):
        if self._timeline is None:
            return f"Trace for {self.path}, not recorded yet"
        return f"{self.path}: {self._timeline}"

    def __enter__(self):
        if self._recording is not None:
            raise error(
                "A trace records once.",
                "a second `with` over one",
                _WORKS,
                TraceError,
            )
        self._recording = self._stack.enter_context(active_engine().profile())
        return self

    def __exit__(self, kind, raised, traceback):
        assert self._recording is not None
        try:
            self._stack.__exit__(kind, raised, traceback)
        finally:
            self._timeline = self._recording.timeline
            if self._timeline is not None:
                self._write(self._timeline, raised)

    def _write(self, timeline, raised):
        try:
            with _replaced_when_whole(self.path) as file:
                timeline.write_chrome(file)
        except OSError as lost:
            if raised is None:
                raise
            # What was raised inside is what the user must see.
            logger.warning("%s was not written: %s", self.path, lost)


def _checked(path):
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or "\0" in text:
        raise error(
            "`path` is the name of a file, a str or a `pathlib.Path`.",
            f"path={shown(path)}",
            _WORKS,
        )
    if not text.endswith(_SUFFIXES):
        raise error(
            f"A trace is a file with the suffix {' or '.join(_SUFFIXES)}.",
            f"path={text!r}",
            _WORKS,
        )
    # A link is kept: what it points to is replaced.
    target = pathlib.Path(os.path.realpath(text))
    if os.path.isdir(target):
        problem = "which is a directory"
    elif not target.parent.is_dir():
        problem = f"but there is no directory {str(target.parent)!r}"
    elif not os.access(target.parent, os.W_OK):
        problem = f"but {str(target.parent)!r} cannot be written"
    elif os.path.exists(target) and not os.access(target, os.W_OK):
        problem = "which cannot be written"
    else:
        problem = _why_no_file_in(target)
    if problem:
        raise error(
            "A trace is written to a file in a directory that is there.",
            f"path={text!r}, {problem}",
            _WORKS,
        )
    return target


def _why_no_file_in(target):
    """Why no file can be made beside `target`, found by making one."""
    try:
        os.lstat(target)  # A name that is too long is refused.
    except FileNotFoundError:
        pass
    except OSError as refused:
        return f"which is refused: {refused.strerror}"
    try:
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as refused:
        return f"where no file can be made: {refused.strerror}"
    return None


@contextlib.contextmanager
def _replaced_when_whole(target: pathlib.Path) -> Iterator:
    """A text file that takes the place of `target` when it is complete."""
    handle, name = tempfile.mkstemp(prefix=".partial-", dir=target.parent)
    partial = pathlib.Path(name)
    try:
        os.close(handle)
        opened = gzip.open if target.suffix == ".gz" else open
        with opened(partial, "wt", encoding="utf-8") as file:
            yield file
        partial.chmod(_mode_of(target))
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _mode_of(target):
    if target.exists():
        return target.stat().st_mode & 0o777
    # `mkstemp` makes a file for its owner only. The mask can only be read by
    # setting it.
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
