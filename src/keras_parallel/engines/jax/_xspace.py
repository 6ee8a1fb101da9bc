"""Reads an `XSpace`, the format of XLA's profiler, as a timeline."""

import contextlib
import functools
import gc
import re
import sys
from collections.abc import Mapping
from typing import Any

import jax

from keras_parallel.engines.jax import _idle
from keras_parallel.engines.jax import _protobuf
from keras_parallel.engines.jax._runs import Found
from keras_parallel.engines.jax._runs import numbered
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
# Inside a call, where a program is started.
_START = "::Execute"
_HOST_EVENTS = {
    "backend_compile_and_load": "host",
    "DevicePut": "transfer",
    "DevicePutWithSharding": "transfer",
    "np.asarray(jax.Array)": "wait",
    "CommonPjRtBuffer::Await": "wait",
}
# Kinds of events that say something of others, and are not kept.
_STARTS, _HIDES = "starts", "hides"
# Lines that tell the same once more, in larger units.
_DERIVED = re.compile(
    r"Steps|XLA Modules|Framework|TensorFlow|Source|XLA TraceMe|Launch Stats"
)
_DEVICE_PLANE = re.compile(r"/device:([A-Z]+):(\d+)")


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
    found = [pair for pair in found if pair[0].program != _idle.PROGRAM]
    found.sort(key=lambda pair: (pair[0].begin, -pair[0].end))
    told, missing = numbered([event for event, _ in found])
    events = tuple(
        Event(
            device=event.device,
            kind=event.kind,
            name=event.name,
            start=event.begin / 1e9,
            duration=(event.end - event.begin) / 1e9,
            program=program,
            run=number,
            depth=depth,
        )
        for (event, depth), (program, number) in zip(found, told)
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
        yield Found(
            *_span(event),
            device,
            _kind(f"{operation} {event.name}"),
            sys.intern(event.name),
            stats.get("hlo_module"),
            stats.get("program_id"),
            _run_of(stats),
        )


def _of_thread(line, names):
    """What a thread of the host did: for itself, or as a CPU device."""
    for event in line.events:
        name = sys.intern(event.name)
        if name in _HOST_EVENTS:
            yield Found(*_span(event), HOST, _HOST_EVENTS[name], name)
        elif name.startswith(_CALL):
            yield Found(*_span(event), HOST, "host", name, _program(name))
        elif name == _idle.WAITING:
            yield Found(*_span(event), HOST, _HIDES, name)
        elif _START in name:
            runs = _run_of(dict(event.stats))
            yield Found(*_span(event), HOST, _STARTS, name, runs=runs)
        # Most events are none of ours, and their statistics take time to read.
        elif " " not in name and "::" not in name:
            stats = dict(event.stats)
            device = names.get(("cpu", stats.get("device_ordinal")))
            if device and "hlo_op" in stats:
                yield Found(
                    *_span(event),
                    device,
                    _kind(name),
                    name,
                    sys.intern(stats["hlo_module"]),
                    stats.get("program_id"),
                    _run_of(stats),
                )


def _run_of(stats):
    return (stats["run_id"],) if "run_id" in stats else ()


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
    kept, opened = [], {}
    for event in sorted(line, key=lambda e: (e.begin, -e.end)):
        stack = opened.setdefault(event.device, [])
        while stack and stack[-1][0] <= event.begin:
            stack.pop()
        calls = [i for _, i, is_call in stack if is_call]
        if event.kind == _STARTS:
            if calls:
                call, depth = kept[calls[0]]
                runs = call.runs + event.runs
                kept[calls[0]] = call._replace(ran=True, runs=runs), depth
        elif event.kind == _HIDES:
            stack.append((event.end, None, False))
        elif not any(i is None for _, i, _ in stack):
            is_call = event.device == HOST and event.program is not None
            if not (is_call and calls):
                stack.append((event.end, len(kept), is_call))
                kept.append((event, len(stack) - 1))
    return kept
