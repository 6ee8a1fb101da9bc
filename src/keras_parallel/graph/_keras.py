"""The private names of Keras's graphs that are touched here.

- `Node.__init__`: a call of an operation becomes a node of a graph there, and
  only there is both known, the node and the scope that surrounds the call.
- `clone_graph_nodes`: a model of a part of a graph gets nodes of its own.
- `Sequential.add`: what it does makes the nodes of all layers anew.
- `Trainer.compile`: from there on a model is meant to be trained. Keras looks
  there whether a class has one of its own.
- `Function._run_through_graph`: runs a graph, and asks for the function of
  each node in the order in which they run.
- `KerasTensor._keras_history`: which call makes a tensor.
- `Function._nodes_by_depth`, `Sequential._functional`: the graph of a model.

`tests/surface/test_keras_private.py` names each when a new Keras moves it.
"""

import abc
import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
from keras.src.models import functional
from keras.src.ops import function
from keras.src.ops import node as node_module
from keras.src.trainers import trainer

Node = node_module.Node


def graph_of(operation) -> function.Function | None:
    """The graph that `operation` runs, if it is a model that has one."""
    if isinstance(operation, keras.Sequential):
        return operation._functional
    return operation if isinstance(operation, function.Function) else None


def nodes_of(graph: function.Function) -> list[Node]:
    """The calls in a graph, in the order in which they run."""
    by_depth = graph._nodes_by_depth
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if node.operation and not node.is_input
    ]


def taken_by(node: Node) -> list[keras.KerasTensor]:
    """The tensors that a call takes, at any depth of its arguments."""
    return list(node.input_tensors)


def made_by(node: Node) -> list[keras.KerasTensor]:
    """The tensors that a call makes, at any depth of its result."""
    return list(node.outputs)


def name_of_input(tensor: Any) -> str:
    """The name of the input that a tensor is."""
    return tensor._keras_history.operation.name


class Watched:
    """What is told of the graphs that are made in this process.

    Subclassed by who wants to know.
    """

    def made(self, node: Node) -> None:
        """A call became a node."""

    def cloned(self, original: Node, clone: Node) -> None:
        """A node was made that stands for another one."""

    def added(self, model: keras.Sequential, layer: keras.Layer) -> None:
        """A layer was added to a model."""

    def compiled(self, model: keras.Model) -> None:
        """A model was compiled."""


def watch(watcher: Watched) -> None:
    """Tells `watcher` of all graphs that are made from now on."""
    make, clone = Node.__init__, functional.clone_graph_nodes
    add, compile_ = keras.Sequential.add, trainer.Trainer.compile
    # The nodes that are made while a graph is cloned.
    clones = []

    @functools.wraps(make)
    def made(self, *args, **kwargs):
        make(self, *args, **kwargs)
        watcher.made(self)
        if clones:
            clones[-1].append(weakref.ref(self))

    @functools.wraps(clone)
    def cloned(inputs, outputs):
        originals = functional.find_nodes_by_inputs_and_outputs(inputs, outputs)
        clones.append([])
        try:
            result = clone(inputs, outputs)
        finally:
            made_here = clones.pop()
        # An input that is made on the way is a node too, and comes first.
        new = [node() for node in made_here[-len(originals) :]]
        for original, copy in zip(originals, new):
            if copy is not None:
                watcher.cloned(original, copy)
        return result

    @functools.wraps(add)
    def added(self, layer, *args, **kwargs):
        watcher.added(self, layer)
        return add(self, layer, *args, **kwargs)

    @functools.wraps(compile_)
    def compiled(self, *args, **kwargs):
        compile_(self, *args, **kwargs)
        watcher.compiled(self)

    Node.__init__ = made
    functional.clone_graph_nodes = cloned
    keras.Sequential.add = added
    trainer.Trainer.compile = compiled


class Runs(abc.ABC):
    """What wraps the calls of graphs while they run. See `wrap_runs`."""

    @abc.abstractmethod
    def wrapped(self, node: Node, call: Callable) -> Callable:
        """The function to call in place of `call`, for `node`."""


def wrap_runs(current) -> None:
    """Lets `current()`, a `Runs` or `None`, wrap what graphs call.

    Args:
        current: Asked each time that a graph starts to run.
    """
    run = function.Function._run_through_graph

    @functools.wraps(run)
    def wrapped(self, inputs, operation_fn=lambda op: op, call_fn=None):
        runs = current()
        if runs is None or call_fn is not None:
            return run(self, inputs, operation_fn, call_fn)
        waiting = {}
        for node in reversed(nodes_of(self)):
            waiting.setdefault(id(node.operation), []).append(node)

        def function_of(operation):
            node = waiting[id(operation)].pop()
            return runs.wrapped(node, operation_fn(operation))

        return run(self, inputs, function_of)

    function.Function._run_through_graph = wrapped
