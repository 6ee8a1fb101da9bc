"""The calls of a model: what runs, in which order, and where."""

import contextlib
import dataclasses
import threading
import typing
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping

import keras

from keras_parallel.graph import _keras
from keras_parallel.graph.scopes import scope_of
from keras_parallel.planning import Device


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of an operation in the graph of a model.

    Args:
        node: Keras's node.
        name: Name of the operation, after those of the models it lies in,
            with slashes between.
        index: How many calls of the operation come before, in its graph.
        scope: The device of the innermost scope around it, if there is one.
        inside: The calls in the graph that it runs, if it is a model.
    """

    node: typing.Any = dataclasses.field(compare=False, repr=False)
    name: str
    index: int
    scope: Device | None
    inside: tuple["Call", ...] = ()

    @property
    def operation(self):
        return self.node.operation

    def all(self) -> Iterator["Call"]:
        """This call, and those inside it."""
        yield self
        for call in self.inside:
            yield from call.all()


def calls_of(model: keras.Model, prefix: str = "") -> tuple[Call, ...] | None:
    """The calls in the graph of a model, in the order in which they run.

    Returns:
        `None` for a model that has no graph: one that is subclassed, or not
        built.
    """
    graph = _keras.graph_of(model)
    if graph is None:
        return None
    found, counts = [], {}
    for node in _keras.nodes_of(graph):
        operation = node.operation
        index = counts[id(operation)] = counts.get(id(operation), -1) + 1
        name = prefix + operation.name
        inside = calls_of(operation, f"{name}/") or ()
        scope = scope_of(node, model)
        found.append(Call(node, name, index, scope, inside))
    return tuple(found)


class _Placed(_keras.Runs):
    def __init__(self, devices, on):
        self._devices = devices
        self._on = on

    def wrapped(self, node, call):
        device = self._devices.get(node)
        if device is None:
            return call

        def on_device(*args, **kwargs):
            with self._on(device):
                return call(*args, **kwargs)

        return on_device


class _OfThread(threading.local):
    def __init__(self):
        self.runs: _keras.Runs | None = None


_current = _OfThread()
_install = threading.Lock()
_installed = []


@contextlib.contextmanager
def placed(
    devices: Mapping[typing.Any, Device],
    on: Callable[[Device], contextlib.AbstractContextManager],
) -> Iterator[None]:
    """Runs calls of graphs inside, by this thread, where they belong.

    Args:
        devices: Node -> the device on which it runs. Others run where what
            they lie in does.
        on: The context in which something runs on a device.
    """
    with _install:
        if not _installed:
            _installed.append(True)
            _keras.wrap_runs(lambda: _current.runs)
    before, _current.runs = _current.runs, _Placed(devices, on)
    try:
        yield
    finally:
        _current.runs = before
