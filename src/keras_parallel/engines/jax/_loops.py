"""Sums over rows in a loop, added up over the devices once, after the loop.

In the backward pass of a recurrent layer each turn adds what the rows of the
batch contribute at one time step to the gradients of the weights. XLA's
partitioner adds that up over the devices in each turn: in 64 time steps the
gradients cross 64 times. Here each device keeps sums of its own until the loop
ends: of a `scan`, a carry that only adds up sums over rows gets a leading dim
of devices, and the sums are taken within the rows of each device.

The traced step is run anew for that, equation by equation (docs.jax.dev,
"Writing custom interpreters in JAX").
"""

import jax
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr
from jax.extend.core import JaxprEqn
from jax.extend.core import Literal

from keras_parallel.engines.jax._row_sums import Rows
from keras_parallel.engines.jax._row_sums import RowSum
from keras_parallel.engines.jax._row_sums import run_equation


def summed_once(function, args, rows: Rows):
    """`function(*args)`, which is being traced."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    outputs = _evaluate(closed, jax.tree.leaves(args), rows)
    return jax.tree.unflatten(jax.tree.structure(shapes), outputs)


class _Values(dict):
    """The variables of a traced function, with their values."""

    def __init__(self, closed: ClosedJaxpr, args):
        super().__init__()
        self.write(closed.jaxpr.constvars, closed.consts)
        self.write(closed.jaxpr.invars, args)

    def read(self, atom):
        return atom.val if isinstance(atom, Literal) else self[atom]

    def write(self, variables, values):
        self.update(zip(variables, values))


def _evaluate(closed: ClosedJaxpr, args, rows):
    if not _has_sums(closed, rows):
        return eval_jaxpr(closed.jaxpr, closed.consts, *args)
    jaxpr, values = closed.jaxpr, _Values(closed, args)
    for equation in jaxpr.eqns:
        operands = list(map(values.read, equation.invars))
        results = _results(jaxpr, equation, operands, rows)
        values.write(equation.outvars, results)
    return list(map(values.read, jaxpr.outvars))


def _results(jaxpr, equation, operands, rows):
    sums = _sums_of(equation, rows)
    if sums:
        return _scan(equation, operands, sums, rows)
    for inside in _compiled_inside(equation):
        if _has_sums(inside, rows):
            return _evaluate(inside, operands, rows)
    return run_equation(jaxpr, equation, operands)


def _has_sums(closed, rows):
    return any(
        _sums_of(equation, rows)
        or any(_has_sums(c, rows) for c in _compiled_inside(equation))
        for equation in closed.jaxpr.eqns
    )


def _compiled_inside(equation):
    """What the call of a compiled function consists of."""
    is_call = equation.primitive.name == "jit"
    return [equation.params["jaxpr"]] if is_call else []


def _sums_of(equation: JaxprEqn, rows) -> dict[int, RowSum]:
    """Those carries of a `scan` that only add up sums over rows."""
    if equation.primitive.name != "scan":
        return {}
    first = equation.params["num_consts"]
    body = equation.params["jaxpr"].jaxpr
    sums = {}
    for i in range(equation.params["num_carry"]):
        found = RowSum.find(body, body.invars[first + i], body.outvars[i], rows)
        if found is not None:
            sums[i] = found
    return sums


def _scan(equation, operands, sums, rows):
    """The results of a `scan`, with `sums` kept apart until its end."""
    parameters = equation.params
    first, carries = parameters["num_consts"], parameters["num_carry"]
    consts, start = operands[:first], operands[first : first + carries]
    body = parameters["jaxpr"]

    def turn(carry, xs):
        # What a sum was before is not asked for, so that is not computed.
        held = [start[i] if i in sums else c for i, c in enumerate(carry)]
        values = _all_values(body, [*consts, *held, *xs])
        outputs = list(map(values.read, body.jaxpr.outvars))
        for i, row_sum in sums.items():
            outputs[i] = row_sum.added_to(carry[i], values)
        return outputs[:carries], outputs[carries:]

    apart = [
        _zeros_apart(c, rows) if i in sums else c for i, c in enumerate(start)
    ]
    with jax.named_scope(str(equation.source_info.name_stack)):
        last, ys = jax.lax.scan(
            turn,
            apart,
            operands[first + carries :],
            length=parameters["length"],
            reverse=parameters["reverse"],
            unroll=parameters["unroll"],
        )
        for i in sums:
            last[i] = start[i] + last[i].sum(0)
    return [*last, *ys]


def _all_values(closed, args):
    jaxpr, values = closed.jaxpr, _Values(closed, args)
    made = [variable for e in jaxpr.eqns for variable in e.outvars]
    every = jaxpr.replace(outvars=made)
    values.write(made, eval_jaxpr(every, closed.consts, *args))
    return values


def _zeros_apart(value, rows):
    zeros = jax.numpy.zeros((rows.devices, *value.shape), value.dtype)
    return jax.lax.with_sharding_constraint(zeros, rows.sharding)
