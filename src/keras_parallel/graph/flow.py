"""Which tensors go from one call of a model to another."""

import dataclasses

import keras

from keras_parallel.graph import _keras
from keras_parallel.graph.calls import Call
from keras_parallel.planning import Tensor


@dataclasses.dataclass(frozen=True)
class Flow:
    """A call that runs no graph itself, and the tensors at it.

    Args:
        call: The call.
        takes: What it takes.
        makes: What it makes.
    """

    call: Call
    takes: tuple[Tensor, ...]
    makes: tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Flows:
    """All that flows in a model.

    Args:
        inputs: What the model takes.
        flows: The calls that run no graph themselves, in their order.
        outputs: What the model gives back.
    """

    inputs: tuple[Tensor, ...]
    flows: tuple[Flow, ...]
    outputs: tuple[Tensor, ...]


def flows_of(model: keras.Model, calls: tuple[Call, ...]) -> Flows:
    """Follows the tensors through a model and those that lie in it.

    Args:
        model: The model; it has a graph.
        calls: Its calls.
    """
    graph = _keras.graph_of(model)
    assert graph is not None
    known = {
        id(tensor): _tensor(tensor, _keras.name_of_input(tensor))
        for tensor in graph.inputs
    }
    inputs = tuple(known.values())
    flows = []
    _follow(calls, known, flows)
    outputs = tuple(known[id(tensor)] for tensor in graph.outputs)
    return Flows(inputs, tuple(flows), outputs)


def _follow(calls, known, flows):
    """Adds the flows of `calls` and what they make to what is known."""
    for call in calls:
        made = _keras.made_by(call.node)
        taken = [known[id(tensor)] for tensor in _keras.taken_by(call.node)]
        inner = _keras.graph_of(call.operation) if call.inside else None
        if inner is not None and len(inner.inputs) == len(taken):
            # Names that say the way, though Keras's tensors are the same ones
            # in each call of the inner model.
            inside = {id(t): value for t, value in zip(inner.inputs, taken)}
            _follow(call.inside, inside, flows)
            known |= {
                id(outer): inside[id(tensor)]
                for outer, tensor in zip(made, inner.outputs)
            }
            continue
        names = [call.full_name]
        if len(made) > 1:
            names = [f"{call.full_name}:{i}" for i in range(len(made))]
        makes = tuple(map(_tensor, made, names))
        known |= {id(tensor): value for tensor, value in zip(made, makes)}
        flows.append(Flow(call, tuple(dict.fromkeys(taken)), makes))


def _tensor(tensor, name):
    return Tensor(
        name,
        tuple(tensor.shape),
        keras.backend.standardize_dtype(tensor.dtype),
    )
