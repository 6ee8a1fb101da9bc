"""Writes a timeline in the trace event format of Chrome.

The format is that of the document "Trace Event Format" of the Chromium project;
Perfetto and `chrome://tracing` open it.
"""

import json
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import IO
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from keras_parallel.planning.timeline import Event

# All lanes are threads of one process, with numbers that come after its own: a
# thread with the number of its process would be its main thread.
_PROCESS = 1

Lanes = Mapping[str, Sequence[Sequence["Event"]]]


def head(notes: Sequence[str]) -> dict[str, Any]:
    """What stands beside the events."""
    return {"displayTimeUnit": "ms", "otherData": {"notes": list(notes)}}


def events(lanes: Lanes) -> Iterator[dict[str, Any]]:
    """The names of the lanes and what ran in them, lane by lane."""
    yield _metadata("process_name", 0, name="keras-parallel")
    thread = _PROCESS
    for device, of_device in lanes.items():
        for i, lane in enumerate(of_device):
            thread += 1
            name = f"{device} ({i + 1})" if i else device
            yield _metadata("thread_name", thread, name=name)
            yield _metadata("thread_sort_index", thread, sort_index=thread)
            for event in lane:
                yield _complete(event, thread)


def write(notes: Sequence[str], lanes: Lanes, file: IO[str]) -> None:
    """Writes head and events as JSON, without holding all of it."""
    file.write(json.dumps(head(notes)).removesuffix("}"))
    file.write(', "traceEvents": [')
    for i, event in enumerate(events(lanes)):
        file.write(",\n" if i else "\n")
        file.write(json.dumps(event))
    file.write("\n]}\n")


def _metadata(what: str, thread: int, **values: Any) -> dict[str, Any]:
    return {
        "ph": "M",
        "name": what,
        "pid": _PROCESS,
        "tid": thread,
        "args": values,
    }


def _complete(event: "Event", thread: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"kind": event.kind}
    if event.program is not None:
        arguments["program"] = event.program
    if event.run is not None:
        arguments["run"] = event.run
    begin, end = event.begin_ns, event.end_ns
    return {
        "ph": "X",
        "name": event.name,
        "cat": event.kind,
        "ts": begin / 1e3,
        "dur": (end - begin) / 1e3,
        "pid": _PROCESS,
        "tid": thread,
        "args": arguments,
    }
