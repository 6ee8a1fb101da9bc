"""Scopes: on which device a call was asked to run.

A scope belongs to the call, which is a node of a graph, and not to the layer:
a layer that is called in two scopes runs on both devices.
"""

import contextlib
import threading
import warnings
import weakref

import keras

from keras_parallel.graph import _keras
from keras_parallel.planning import Device

# Node -> the device of the innermost scope around its call.
_of_node = weakref.WeakKeyDictionary()
# Sequential -> id of a layer -> that of the scope in which it was added.
_of_added = weakref.WeakKeyDictionary()


class _Entered:
    """That a scope was entered, and whether it placed something."""

    def __init__(self, scope: "Scope"):
        self.scope = scope
        self.is_used = False


class _OfThread(threading.local):
    def __init__(self):
        self.entered: list[_Entered] = []

    def device(self) -> Device | None:
        """That of the innermost scope, for what is called now."""
        for entered in self.entered:
            entered.is_used = True
        return self.entered[-1].scope.device if self.entered else None


_open = _OfThread()
_install = threading.Lock()
_installed = []


class Scope(contextlib.ContextDecorator):
    """The calls that are made inside, by this thread, run on one device.

    It may be entered again, also while it is entered, and decorate a function.

    Args:
        device: The device.
    """

    def __init__(self, device: Device):
        self.device = device

    def __repr__(self):
        return f"device_scope({self.device.name!r})"

    def __enter__(self) -> None:
        with _install:
            if not _installed:
                _installed.append(_Recorder())
                _keras.watch(_installed[0])
        _open.entered.append(_Entered(self))

    def __exit__(self, exception_type, *_) -> None:
        # Not always the last one: a generator may wait within a scope.
        own = [e for e in _open.entered if e.scope is self][-1]
        _open.entered.remove(own)
        if exception_type is None and not own.is_used:
            warnings.warn(
                f"`{self}` placed nothing. A scope is for calls on tensors of "
                "`keras.Input`, and for layers that are added to a "
                "`Sequential`. It changes nothing about calls on arrays (for "
                "those there is `keras.device`), about the line that makes a "
                "layer, about what the `call` of a layer does, or about `fit`. "
                f"What works: `with {self}: x = layer(keras.Input((8,)))`.",
                # The end of the `with`.
                stacklevel=2,
            )


class _Recorder(_keras.Watched):
    def made(self, node):
        device = _open.device()
        if device is not None:
            _of_node[node] = device

    def cloned(self, original, clone):
        _of_node.pop(clone, None)
        if original in _of_node:
            _of_node[clone] = _of_node[original]

    def copied(self, model, copy):
        _copy_scopes(model, copy)
        if copy.compiled:
            self.compiled(copy, stacklevel=5)

    def added(self, model, layer):
        _layers_of(model)[id(layer)] = _open.device()

    def compiled(self, model, stacklevel=3):
        parallel = getattr(model, "_keras_parallel", None)
        if not getattr(parallel, "obeys_scopes", False) and has_scopes(model):
            warnings.warn(
                f"The model {model.name!r} has calls in device scopes, and "
                "as it is they have no effect: all of it runs on one device. "
                "To make it obey: `model = keras_parallel.device_parallel("
                "model)`, before `compile`.",
                # The line that called `compile`, past what wraps it.
                stacklevel=stacklevel,
            )


def scope_of(node, model: keras.Model) -> Device | None:
    """The device that a call in the graph of `model` was asked to run on."""
    if isinstance(model, keras.Sequential):
        # Its nodes are made anew with each layer that is added, and when it
        # is called for the first time, in whatever scope that is.
        return _layers_of(model).get(id(node.operation))
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


def _layers_of(model):
    """The id of each layer of a `Sequential` -> the scope of its `add`."""
    # A parallel model reads as the user's, and its layers are those.
    parallel = getattr(model, "_keras_parallel", None)
    template = model if parallel is None else parallel.template
    return _of_added.setdefault(template, {})


def _copy_scopes(model, copy):
    """Gives what a copy calls the scopes of what it stands for."""
    if model is copy:
        return
    if isinstance(model, keras.Sequential):
        scopes, new = _layers_of(model), _layers_of(copy)
        for layer, other in zip(model.layers, copy.layers):
            new[id(other)] = scopes.get(id(layer)) or new.get(id(other))
            _copy_scopes(layer, other)
        return
    for node, other in _keras.pairs_of_nodes(model, copy):
        if node in _of_node:
            _of_node[other] = _of_node[node]
        _copy_scopes(node.operation, other.operation)
