"""A timeline of what devices did, from the profiler of JAX.

The profiler writes planes of lines of events. On a CPU each operation of a
program is an event of the plane of the host that says on which device it was;
accelerators have a plane each.
"""

import contextlib
import pathlib
import re
import tempfile

import jax

from keras_parallel.engines.base import Recording
from keras_parallel.planning import COLLECTIVES
from keras_parallel.planning import Event
from keras_parallel.planning import Timeline

_NANO = 1e-9
# Where an accelerator has lines of steps and modules too, this one is flat.
_OPERATIONS = "XLA Ops"


@contextlib.contextmanager
def profile(names):
    """Yields a `Recording`.

    Args:
        names: Dict from devices of JAX to our names.
    """
    recording = Recording()
    options = jax.profiler.ProfileOptions()
    # Python's calls would slow down what is measured.
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            yield recording
        finally:
            jax.profiler.stop_trace()
        events = []
        for path in pathlib.Path(folder).rglob("*.xplane.pb"):
            data = jax.profiler.ProfileData.from_file(str(path))
            events += _events(data, names)
        events.sort(key=lambda event: event.start)
        recording.timeline = Timeline(tuple(events))


def _events(data, names):
    of_cpu = {d.id: name for d, name in names.items() if d.platform == "cpu"}
    others = {d.id: name for d, name in names.items() if d.platform != "cpu"}
    for plane in data.planes:
        number = re.fullmatch(r"/device:\w+:(\d+)", plane.name)
        for line in plane.lines:
            if number and not _is_of_operations(plane, line):
                continue
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" not in stats and not number:
                    continue
                device = (
                    others.get(int(number[1]))
                    if number
                    else of_cpu.get(stats.get("device_ordinal"))
                )
                if device is not None:
                    yield Event(
                        device,
                        _kind(event.name),
                        event.name,
                        event.start_ns * _NANO,
                        event.duration_ns * _NANO,
                        stats.get("hlo_module"),
                        stats.get("run_id"),
                    )


def _is_of_operations(plane, line):
    names = [line.name for line in plane.lines]
    if _OPERATIONS in names:
        return line.name == _OPERATIONS
    return line.name.startswith("Stream")


def _kind(name):
    lowered = name.lower()
    if lowered.startswith(COLLECTIVES) or "nccl" in lowered:
        return "communication"
    if lowered.startswith(("memcpy", "copy-start", "copy-done")):
        return "transfer"
    return "compute"
