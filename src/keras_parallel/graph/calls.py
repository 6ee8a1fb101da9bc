"""The calls of a model: what runs, in which order, and where."""

import collections
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
        nodes: Keras's nodes of the models it lies in, from outside, and its
            own. A graph that runs several times has the same ones each time.
        name: Name of the operation, after those of the models it lies in,
            with slashes between.
        full_name: The same, with the index of the call wherever an operation
            is called several times in its graph: `"inner[1]/dense"`.
        index: How many calls of the operation come before, in its graph.
        scope: The device of the innermost scope around it, if there is one.
        inside: The calls in the graph that it runs, if it is a model.
    """

    nodes: tuple[typing.Any, ...] = dataclasses.field(compare=False, repr=False)
    name: str
    full_name: str
    index: int
    scope: Device | None
    inside: tuple["Call", ...] = ()

    @property
    def node(self):
        return self.nodes[-1]

    @property
    def operation(self):
        return self.node.operation

    def all(self) -> Iterator["Call"]:
        """This call, and those inside it."""
        yield self
        for call in self.inside:
            yield from call.all()

    def leaves(self) -> Iterator["Call"]:
        """This call, or those inside it that run no graph themselves."""
        if not self.inside:
            yield self
        for call in self.inside:
            yield from call.leaves()


def calls_of(
    model: keras.Model, around: Call | None = None
) -> tuple[Call, ...] | None:
    """The calls in the graph of a model, in the order in which they run.

    Args:
        model: The model.
        around: The call of it, if it lies in another one.

    Returns:
        `None` for a model that has no graph: one that is subclassed, or not
        built.
    """
    graph = _keras.graph_of(model)
    if graph is None:
        return None
    nodes = _keras.nodes_of(graph)
    counts = collections.Counter(id(node.operation) for node in nodes)
    seen: collections.Counter[int] = collections.Counter()
    found = []
    for node in nodes:
        key = id(node.operation)
        found.append(_call(node, model, around, seen[key], counts[key] > 1))
        seen[key] += 1
    return tuple(found)


def _call(node, model, around, index, of_several):
    name = full_name = node.operation.name
    if of_several:
        full_name = f"{name}[{index}]"
    nodes = (node,)
    if around is not None:
        name = f"{around.name}/{name}"
        full_name = f"{around.full_name}/{full_name}"
        nodes = (*around.nodes, node)
    call = Call(nodes, name, full_name, index, scope_of(node, model))
    inside = calls_of(node.operation, call) or ()
    return dataclasses.replace(call, inside=inside)


class _Placed(_keras.Runs):
    def __init__(self, where, on):
        self._where = where
        self._on = on
        # The nodes of the calls that run.
        self._nodes = ()

    def wrapped(self, node, call):
        nodes = (*self._nodes, node)

        def in_its_place(*args, **kwargs):
            before, self._nodes = self._nodes, nodes
            try:
                with self._context(nodes):
                    return call(*args, **kwargs)
            finally:
                self._nodes = before

        return in_its_place

    def _context(self, nodes):
        if nodes in self._where:
            return self._on(self._where[nodes])
        return contextlib.nullcontext()


class _OfThread(threading.local):
    def __init__(self):
        self.runs: _keras.Runs | None = None


_current = _OfThread()
_install = threading.Lock()
_installed = []


@contextlib.contextmanager
def placed(
    where: Mapping[tuple, typing.Any],
    on: Callable[[typing.Any], contextlib.AbstractContextManager],
) -> Iterator[None]:
    """Runs calls of graphs inside, by this thread, where they belong.

    Args:
        where: The nodes of a call, as in `Call` -> where it runs. Others run
            where what they lie in does.
        on: The context in which something runs there.
    """
    with _install:
        if not _installed:
            _installed.append(True)
            _keras.wrap_runs(lambda: _current.runs)
    before, _current.runs = _current.runs, _Placed(where, on)
    try:
        yield
    finally:
        _current.runs = before
