"""Scopes: on which device a call was asked to run.

A scope belongs to the call, which is a node of a graph, and not to the layer:
a layer that is called in two scopes runs on both devices.
"""

import contextlib
import threading
import warnings
import weakref
from collections.abc import Iterator

import keras

from keras_parallel.graph import _keras
from keras_parallel.planning import Device

# Node -> the device of the innermost scope around its call.
_of_node = weakref.WeakKeyDictionary()
# Sequential -> id of a layer -> that of the scope in which it was added.
_of_added = weakref.WeakKeyDictionary()


class _OfThread(threading.local):
    def __init__(self):
        self.devices = []


_open = _OfThread()
_install = threading.Lock()
_installed = []


class _Recorder(_keras.Watched):
    def made(self, node):
        if _open.devices:
            _of_node[node] = _open.devices[-1]

    def cloned(self, original, clone):
        _of_node.pop(clone, None)
        if original in _of_node:
            _of_node[clone] = _of_node[original]

    def added(self, model, layer):
        device = _open.devices[-1] if _open.devices else None
        _of_added.setdefault(model, {})[id(layer)] = device

    def compiled(self, model):
        parallel = getattr(model, "_keras_parallel", None)
        if not getattr(parallel, "obeys_scopes", False) and has_scopes(model):
            warnings.warn(
                f"The model {model.name!r} has calls in device scopes, and "
                "as it is they have no effect: all of it runs on one device. "
                "To make it obey: `model = keras_parallel.device_parallel("
                "model)`, before `compile`.",
                # The line that called `compile`, past what wraps it.
                stacklevel=3,
            )


@contextlib.contextmanager
def scope(device: Device) -> Iterator[None]:
    """The calls that are made inside, by this thread, run on `device`."""
    with _install:
        if not _installed:
            _installed.append(_Recorder())
            _keras.watch(_installed[0])
    _open.devices.append(device)
    try:
        yield
    finally:
        _open.devices.pop()


def scope_of(node, model: keras.Model) -> Device | None:
    """The device that a call in the graph of `model` was asked to run on."""
    if isinstance(model, keras.Sequential):
        # Its nodes are made anew with each layer that is added.
        added = _of_added.get(model, {})
        if id(node.operation) in added:
            return added[id(node.operation)]
    return _of_node.get(node)


def has_scopes(model: keras.Model) -> bool:
    """Whether a call in the graph of `model`, at any depth, has a scope."""
    graph = _keras.graph_of(model)
    if graph is None:
        return False
    return any(
        scope_of(node, model) is not None or has_scopes(node.operation)
        for node in _keras.nodes_of(graph)
    )
