"""What each call of a model computes and keeps, found by tracing."""

import collections
import contextlib
import math
import re

import jax
from jax.extend.core import ClosedJaxpr
from jax.extend.core import Jaxpr
from jax.extend.core import Literal
from jax.extend.core import jaxpr_as_fun

from keras_parallel.engines.jax._outline import abstract
from keras_parallel.engines.jax._outline import forward_of
from keras_parallel.engines.jax._outline import inputs_of
from keras_parallel.planning import CallOutline
from keras_parallel.planning import StagesOutline

_LABEL = re.compile(r"keras_parallel\.call\.(\d+)\b")


def outline_of_calls(model, rows, numbered, count):
    """The `StagesOutline` of a built model for a batch of `rows` rows.

    Args:
        model: The user's model. It has a graph.
        rows: Rows of the batch.
        numbered: See `Stages.outline`.
        count: How many calls have numbers.

    Returns:
        `None` if the shapes of the inputs are not known.
    """
    inputs = inputs_of(model, rows)
    if inputs is None:
        return None
    trainable = list(map(abstract, model.trainable_variables))
    others = list(map(abstract, model.non_trainable_variables))
    updated = []
    with numbered(_numbered):
        traced = jax.make_jaxpr(forward_of(model, updated))(
            trainable, others, inputs
        )
    flops = collections.Counter()
    _count(traced.jaxpr, None, flops)
    kept = _kept(traced, len(trainable), len(trainable) + len(others))
    return StagesOutline(
        tuple(CallOutline(flops[i], kept[i]) for i in range(count)),
        tuple(
            sum(v is each for each in updated)
            for v in model.non_trainable_variables
        ),
    )


def _numbered(number) -> contextlib.AbstractContextManager:
    return jax.named_scope(f"keras_parallel.call.{number}")


def _number_of(equation, around):
    """The number of the innermost call in which an equation was traced."""
    found = _LABEL.findall(str(equation.source_info.name_stack))
    return int(found[-1]) if found else around


def _count(jaxpr, around, flops, times=1):
    """Adds the operations of all products within, of each call."""
    for equation in jaxpr.eqns:
        number = _number_of(equation, around)
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            flops[number] += times * _of_product(equation)
        elif name == "conv_general_dilated":
            flops[number] += times * _of_convolution(equation)
        elif name == "scan":
            inner = params["jaxpr"].jaxpr
            _count(inner, number, flops, times * params["length"])
        elif name == "cond":
            # The branch with most of them, in place of all.
            branches = [collections.Counter() for _ in params["branches"]]
            for branch, found in zip(params["branches"], branches):
                _count(branch.jaxpr, number, found, times)
            flops.update(max(branches, key=lambda found: found.total()))
        else:
            for inner in _inside(params):
                _count(inner, number, flops, times)


def _inside(params):
    """What an equation runs: what a function was traced to, or several."""
    for value in jax.tree.leaves(
        list(params.values()), is_leaf=lambda v: isinstance(v, ClosedJaxpr)
    ):
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value


def _of_product(equation):
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    terms = math.prod(shape[dim] for dim in contracted)
    return 2 * terms * equation.outvars[0].aval.size


def _of_convolution(equation):
    numbers = equation.params["dimension_numbers"]
    kernel = equation.invars[1].aval.shape
    terms = math.prod(kernel[dim] for dim in numbers.rhs_spec[1:])
    return 2 * terms * equation.outvars[0].aval.size


def _kept(traced, trainable, variables):
    """The bytes that each call keeps for the backward pass."""
    forward = jaxpr_as_fun(traced)

    def residuals(*arguments):
        weights, rest = arguments[:trainable], arguments[trainable:]
        return jax.vjp(lambda *weights: forward(*weights, *rest), *weights)[1]

    jaxpr = jax.make_jaxpr(residuals)(*traced.in_avals).jaxpr
    made_by = {}
    for equation in jaxpr.eqns:
        number = _number_of(equation, None)
        made_by |= dict.fromkeys(equation.outvars, number)
        for atom in equation.invars:
            # An input of the model is kept by who takes it first.
            if not isinstance(atom, Literal):
                made_by.setdefault(atom, number)
    kept = collections.Counter()
    # A weight is there in any case.
    state = set(jaxpr.invars[:variables])
    for variable in set(jaxpr.outvars) - state:
        if not isinstance(variable, Literal):
            size = variable.aval.size * variable.aval.dtype.itemsize
            kept[made_by.get(variable)] += size
    return kept
