"""Gradients added up over the devices once, where XLA would do so often.

In the backward pass of a recurrent layer each turn adds what the rows of the
batch contribute at one time step to the gradients of the weights. XLA's
partitioner adds that up over the devices in each turn: in 64 time steps the
gradients cross 64 times. Those of a layer that is called twice cross twice.
Here each device keeps sums of its own until everything is added.

Found are those sums that a `scan` carries, and those that are added up outside
of loops, in functions that are compiled by themselves too. Within `cond`,
`jax.checkpoint` and a loop in a loop, and for convolutions in groups, XLA does
what it does.

The traced step is run anew for that, equation by equation (docs.jax.dev,
"Writing custom interpreters in JAX").
"""

import jax
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr
from jax.extend.core import JaxprEqn
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from keras_parallel.engines.jax._row_sums import ADD
from keras_parallel.engines.jax._row_sums import Rows
from keras_parallel.engines.jax._row_sums import RowSums
from keras_parallel.engines.jax._values import Values
from keras_parallel.engines.jax._values import all_values
from keras_parallel.engines.jax._values import called_by
from keras_parallel.engines.jax._values import run_equation


def summed_once(function, args, rows: Rows):
    """`function(*args)`, which is being traced; the last one has the rows."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    rowless = closed.jaxpr.invars[: len(jax.tree.leaves(args[:-1]))]
    outputs = _evaluate(closed, jax.tree.leaves(args), rows, rowless)
    return jax.tree.unflatten(jax.tree.structure(shapes), outputs)


def _evaluate(closed: ClosedJaxpr, args, rows, rowless):
    jaxpr = closed.jaxpr
    sums = _sums_in(jaxpr, rows, rowless)
    if not _is_changed(jaxpr, sums, rows):
        return eval_jaxpr(jaxpr, closed.consts, *args)
    values = Values(closed, args)
    for equation in jaxpr.eqns:
        if _kept_apart(equation, sums, values, rows):
            continue
        operands = list(map(values.read, equation.invars))
        carried = _carried_sums(equation, rows)
        inside = called_by(equation)
        if carried:
            results = _scan(equation, operands, carried, values, sums, rows)
        elif inside is not None:
            without = sums.rowless_inside(equation, inside.jaxpr)
            results = _evaluate(inside, operands, rows, without)
        else:
            results = run_equation(jaxpr, equation, operands)
        values.write(equation.outvars, results)
    return list(map(values.read, jaxpr.outvars))


def _sums_in(jaxpr, rows, rowless):
    carried = [
        equation.outvars[i]
        for equation in jaxpr.eqns
        for i in _carried_sums(equation, rows)
    ]
    return RowSums(jaxpr, rows, carried, rowless)


def _is_changed(jaxpr, sums, rows):
    return any(
        (rows.together and any(map(sums.is_sum, equation.outvars)))
        or _carried_sums(equation, rows)
        or _adds_up(equation, sums, rows)
        or _calls_changed(equation, sums, rows)
        for equation in jaxpr.eqns
    )


def _calls_changed(equation, sums, rows):
    called = called_by(equation)
    if called is None:
        return False
    jaxpr = called.jaxpr
    rowless = sums.rowless_inside(equation, jaxpr)
    return _is_changed(jaxpr, _sums_in(jaxpr, rows, rowless), rows)


def _kept_apart(equation, sums, values, rows):
    """Computes what each device adds to a sum, if that is to cross later."""
    if len(equation.outvars) != 1:
        return False
    (variable,) = equation.outvars
    if not (
        sums.can_wait(variable, values.waiting)
        or _adds_up(equation, sums, rows)
    ):
        return False
    sums.by_device(variable, values)
    for term in equation.invars:
        if sums.is_sum(term):
            values.waiting.pop(term, None)
    values.add_up(variable, sums)
    return True


def _adds_up(equation, sums, rows):
    """Whether both operands are sums over rows, and the result has none."""
    return (
        equation.primitive.name in ADD
        and rows.number not in equation.outvars[0].aval.shape
        and all(map(sums.is_sum, equation.invars))
        and all(map(sums.is_only_added, equation.invars))
    )


def _carried_sums(equation: JaxprEqn, rows):
    """The terms of those carries of a `scan` that only add up sums over rows.

    Returns:
        A dictionary from the index of a carry to variables in the body.
    """
    if equation.primitive.name != "scan":
        return {}
    first = equation.params["num_consts"]
    body = equation.params["jaxpr"].jaxpr
    sums = RowSums(body, rows)
    terms = {
        i: _terms(sums, body.invars[first + i], body.outvars[i])
        for i in range(equation.params["num_carry"])
    }
    return {i: found for i, found in terms.items() if found}


def _terms(sums, carry, total):
    """What is added to `carry` to make `total`: none, if it is not alone so."""
    terms = []
    while total is not carry:
        equation = sums.made_by(total)
        if (
            equation is None
            or equation.primitive.name not in ADD
            or sums.uses(total) != 1
        ):
            return []
        a, b = equation.invars
        if sums.is_sum(a):
            a, b = b, a
        if not sums.is_sum(b) or not sums.is_only_added(b):
            return []
        terms.append(b)
        total = a
    return terms if sums.uses(carry) == 1 else []


def _scan(equation, operands, carried, values, sums, rows):
    """The results of a `scan`, with sums kept by device until its end."""
    parameters = equation.params
    first, count = parameters["num_consts"], parameters["num_carry"]
    consts, start = operands[:first], operands[first : first + count]
    body = parameters["jaxpr"]
    in_turn = RowSums(body.jaxpr, rows)

    def turn(carry, xs):
        # What a sum was before is not asked for, so that is not computed.
        held = [start[i] if i in carried else c for i, c in enumerate(carry)]
        inner = all_values(body, [*consts, *held, *xs])
        outputs = list(map(inner.read, body.jaxpr.outvars))
        for i, terms in carried.items():
            outputs[i] = carry[i]
            for term in terms:
                outputs[i] += in_turn.by_device(term, inner)
        return outputs[:count], outputs[count:]

    held = [
        _only_first(c, rows) if i in carried else c for i, c in enumerate(start)
    ]
    with jax.named_scope(str(equation.source_info.name_stack)):
        last, ys = jax.lax.scan(
            turn,
            held,
            operands[first + count :],
            length=parameters["length"],
            reverse=parameters["reverse"],
            unroll=parameters["unroll"],
        )
        for i in carried:
            values.by_device[equation.outvars[i]] = last[i]
            values.add_up(equation.outvars[i], sums)
            last[i] = values.get(equation.outvars[i])
    return [*last, *ys]


def _only_first(value, rows):
    """A sum to start from: `value` on the first device, zeros on the others."""
    others = jax.numpy.zeros((rows.mesh.size - 1, *value.shape), value.dtype)
    parts = jax.numpy.concatenate([value[None], others])
    sharding = NamedSharding(rows.mesh, PartitionSpec(rows.axis))
    return jax.lax.with_sharding_constraint(parts, sharding)
