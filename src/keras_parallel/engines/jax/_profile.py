"""What ran when, from JAX's profiler.

The profiler of XLA writes an `XSpace` (`xplane.proto` of OpenXLA): planes of
lines of events. On CPUs all events are on one plane, `/host:CPU`, with a line
for each thread; an operation of a device says in its statistics of which
program, run and device it is. On GPUs each device has a plane with a line for
each stream.
"""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import jax

from keras_parallel._errors import TraceError
from keras_parallel._logging import logger
from keras_parallel.engines.base import Recording
from keras_parallel.engines.jax import _xspace
from keras_parallel.engines.jax._idle import wait_until_idle
from keras_parallel.planning import Device


@contextlib.contextmanager
def profile(known: Mapping[Device, Any]) -> Iterator[Recording]:
    """See `Engine.profile`.

    Args:
        known: The devices to look at, with those of JAX.
    """
    with tempfile.TemporaryDirectory(prefix="keras-parallel-") as folder:
        wait_until_idle(known)
        _start(folder)
        recording = Recording()
        try:
            yield recording
        except BaseException as error:
            _explain(error)
            try:
                _finish(recording, folder, known)
            except TraceError as lost:
                # What was raised inside is what the user must see.
                logger.warning("nothing was recorded: %s", lost)
            raise
        _finish(recording, folder, known)


def _start(folder):
    options = jax.profiler.ProfileOptions()
    # Each call of a Python function would be an event.
    options.python_tracer_level = 0
    options.host_tracer_level = 1
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        raise TraceError(
            "JAX profiles one thing at a time. Received: a profiler that runs "
            f"already ({error}): another trace, `jax.profiler.start_trace`, "
            "or the `profile_batch` of a TensorBoard callback. Stop it first: "
            "`jax.profiler.stop_trace()`."
        ) from error


def _explain(error):
    if isinstance(error, RuntimeError) and "Only one profile" in str(error):
        error.add_note(
            "It is a trace of keras-parallel that runs already. Trace without "
            "`jax.profiler` inside, and without the `profile_batch` of a "
            "TensorBoard callback."
        )


def _finish(recording, folder, known):
    wait_until_idle(known)
    try:
        jax.profiler.stop_trace()
    except RuntimeError as error:
        raise TraceError(
            "A trace records until it ends. Received: a profiler that was "
            f"stopped inside ({error}). Leave out `jax.profiler.stop_trace()`."
        ) from error
    files = sorted(pathlib.Path(folder).rglob("*.xplane.pb"))
    if not files:
        raise TraceError(
            "A trace is read from what JAX's profiler writes. Received: no "
            "file of it. `jax.profiler.start_trace` shows whether it works."
        )
    recording.timeline = _xspace.read(files[-1].read_bytes(), known)
