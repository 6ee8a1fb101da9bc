"""Reads an `XSpace`, the format of XLA's profiler, as a timeline."""

import contextlib
import functools
import gc
import re
import sys
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax

from keras_parallel.engines.jax import _protobuf
from keras_parallel.planning import HOST
from keras_parallel.planning import Device
from keras_parallel.planning import Event
from keras_parallel.planning import Timeline

# Operations that exchange data between devices, with names that JAX gives
# them, and the kernels that do so on NVIDIA's GPUs. An operation lasts from
# when a device is ready for it to when it has the result: on CPUs that is
# mostly waiting for the other devices.
_COMMUNICATION = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|(ragged-)?all-to-all"
    r"|collective-(permute|broadcast)|psum|all_gather|all_to_all|ppermute"
    r"|reduce_scatter|send|recv)([-._]|\d|$)|nccl|rccl|MemcpyP2P",
)
_TRANSFER = re.compile(r"Memcpy(H2D|D2H|HtoD|DtoH)|Infeed|Outfeed")

# What the host does for the devices.
_CALL = "PjitFunction("
_HOST_EVENTS = {
    "backend_compile_and_load": "host",
    "DevicePut": "transfer",
    "DevicePutWithSharding": "transfer",
    "np.asarray(jax.Array)": "wait",
    "CommonPjRtBuffer::Await": "wait",
}
# Lines that tell the same once more, in larger units.
_DERIVED = re.compile(
    r"Steps|XLA Modules|Framework|TensorFlow|Source|XLA TraceMe|Launch Stats"
)
_DEVICE_PLANE = re.compile(r"/device:([A-Z]+):(\d+)")


class _Found(NamedTuple):
    begin: int  # Nanoseconds.
    end: int
    device: str
    kind: str
    name: str
    program: str | None
    run: Any = None  # The profiler's name for it.


def read(data: bytes, known: Mapping[Device, Any]) -> Timeline:
    """Reads what the profiler has written.

    Args:
        data: A serialized `XSpace`.
        known: The devices to look at, with those of JAX.
    """
    profile = jax.profiler.ProfileData.from_serialized_xspace(data)
    with _no_garbage_collection():
        return from_planes(profile.planes, known, _protobuf.messages(data))


@contextlib.contextmanager
def _no_garbage_collection():
    # Of a million objects that stay, each collection looks at all.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def from_planes(
    planes: Any, known: Mapping[Device, Any], notes: tuple[str, ...] = ()
) -> Timeline:
    """The timeline of the planes of a `jax.profiler.ProfileData`."""
    names = {_place(j): device.name for device, j in known.items()}
    found = []
    for plane in planes:
        place = _DEVICE_PLANE.match(plane.name)
        if place:
            device = names.get((place[1].lower(), int(place[2])))
            for line in plane.lines if device else ():
                if not _DERIVED.match(line.name):
                    found += _nested(_of_stream(line, device))
        elif plane.name == "/host:CPU":
            for line in plane.lines:
                found += _nested(_of_thread(line, names))
    found.sort(key=lambda pair: (pair[0].begin, -pair[0].end))
    numbers, missing = _numbers([event for event, _ in found])
    events = tuple(
        Event(
            device=event.device,
            kind=event.kind,
            name=event.name,
            start=event.begin / 1e9,
            duration=(event.end - event.begin) / 1e9,
            program=event.program,
            run=number,
            depth=depth,
        )
        for (event, depth), number in zip(found, numbers)
    )
    return Timeline(events, notes + missing)


def _place(jax_device):
    platform = jax_device.platform
    kind = "gpu" if platform in ("cuda", "rocm") else platform
    ordinal = jax_device.local_hardware_id
    return kind, jax_device.id if ordinal is None else ordinal


def _of_stream(line, device):
    """What a stream of an accelerator did."""
    for event in line.events:
        stats = dict(event.stats)
        operation = stats.get("hlo_op", "")
        yield _Found(
            *_span(event),
            device,
            _kind(f"{operation} {event.name}"),
            sys.intern(event.name),
            stats.get("hlo_module"),
            stats.get("run_id"),
        )


def _of_thread(line, names):
    """What a thread of the host did: for itself, or as a CPU device."""
    for event in line.events:
        name = sys.intern(event.name)
        if name in _HOST_EVENTS:
            yield _Found(*_span(event), HOST, _HOST_EVENTS[name], name, None)
        elif name.startswith(_CALL):
            yield _Found(*_span(event), HOST, "host", name, _program(name))
        # Most events are none of ours, and their statistics take time to read.
        elif " " not in name and "::" not in name:
            stats = dict(event.stats)
            device = names.get(("cpu", stats.get("device_ordinal")))
            if device and "hlo_op" in stats:
                program = sys.intern(stats["hlo_module"])
                kind, run = _kind(name), stats.get("run_id")
                yield _Found(*_span(event), device, kind, name, program, run)


@functools.cache
def _program(call):
    """XLA's name for the program of the function that is called."""
    function = call.removeprefix(_CALL).removesuffix(")")
    return "jit_" + re.sub(r"[^\w.-]", "_", function)


def _span(event):
    begin = event.start_ns
    return round(begin), round(begin + event.duration_ns)


@functools.cache
def _kind(name):
    if _COMMUNICATION.search(name):
        return "communication"
    return "transfer" if _TRANSFER.search(name) else "compute"


def _nested(line):
    """Each event of a line, and how many of its device it lies in.

    Of calls in a call, as while a function is traced, the outer one stays.
    """
    opened = {}
    for event in sorted(line, key=lambda e: (e.begin, -e.end)):
        stack = opened.setdefault(event.device, [])
        while stack and stack[-1].end <= event.begin:
            stack.pop()
        is_call = event.device == HOST and event.program
        if is_call and any(outer.program for outer in stack):
            continue
        yield event, len(stack)
        stack.append(event)


def _numbers(found):
    """The number of the run that each event belongs to, and what is missing.

    On GPUs the profiler does not say which run it is: there a run begins with
    the operation that came first.
    """
    runs, firsts, counts, keys = {}, {}, {}, []
    for event in found:
        key = None
        if event.program and event.device != HOST:
            key = event.run
            if key is None:
                place = event.program, event.device
                first = firsts.setdefault(place, event.name)
                counts[place] = counts.get(place, 0) + (event.name == first)
                key = counts[place]
            of_program = runs.setdefault(event.program, {})
            of_program.setdefault(key, len(of_program))
        keys.append(key)
    numbers = [
        None if key is None else runs[event.program][key]
        for event, key in zip(found, keys)
    ]
    missing = []
    for program, calls in _calls(found).items():
        count = len(runs.get(program, ()))
        # The host calls them in the order in which they run.
        if len(calls) == count:
            for number, call in enumerate(calls):
                numbers[call] = number
        elif len(calls) > count > 0:
            missing.append(
                f"the host called {program} {len(calls)} times; of its runs "
                f"{count} were recorded."
            )
    return numbers, tuple(missing)


def _calls(found):
    calls = {}
    for i, event in enumerate(found):
        if event.device == HOST and event.program:
            calls.setdefault(event.program, []).append(i)
    return calls
