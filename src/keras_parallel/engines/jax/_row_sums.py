"""Sums over the rows of a batch, and what each device adds to them."""

import collections
import dataclasses
import functools
import typing

import jax
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr
from jax.extend.core import Jaxpr
from jax.extend.core import JaxprEqn
from jax.extend.core import Literal
from jax.extend.core import Var
from jax.sharding import Mesh
from jax.sharding import PartitionSpec

ADD = frozenset({"add", "add_any"})
_LINEAR_IN_ALL = ADD | {"concatenate"}
# Linear in one operand, for any value of the other.
_LINEAR_IN_ONE = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
        "mul",
        "neg",
        "pad",
        "reduce_sum",
        "reshape",
        "squeeze",
        "transpose",
    }
)


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a batch that is split.

    Args:
        number: Rows of the global batch.
        mesh: The devices that they lie on, along its only axis.
    """

    number: int
    mesh: Mesh

    @property
    def axis(self):
        return self.mesh.axis_names[0]


class Values(dict):
    """The variables of a traced function, with their values.

    `by_device` has some that are sums over rows, with a leading dim of what
    the rows of each device add to them.
    """

    def __init__(self, closed: ClosedJaxpr, args):
        super().__init__()
        self.by_device = {}
        self.write(closed.jaxpr.constvars, closed.consts)
        self.write(closed.jaxpr.invars, args)

    def read(self, atom):
        return atom.val if isinstance(atom, Literal) else self[atom]

    def write(self, variables, values):
        self.update(zip(variables, values))


class RowSums:
    """Which variables of a traced function are sums over rows.

    Args:
        jaxpr: The function.
        rows: The rows.
        known: Variables that are known to be such sums.
    """

    def __init__(self, jaxpr: Jaxpr, rows: Rows, known=()):
        self._jaxpr = jaxpr
        self._rows = rows
        self._made_by = {v: e for e in jaxpr.eqns for v in e.outvars}
        used = [*(v for e in jaxpr.eqns for v in e.invars), *jaxpr.outvars]
        self._uses = collections.Counter(v for v in used if isinstance(v, Var))
        self._sums = set(known)
        # Those for which no sum of all rows is needed on the way.
        self._only_added = set(known)
        for variable, equation in self._made_by.items():
            if self._gives_sum(equation):
                self._sums.add(variable)
                operands = filter(self.is_sum, equation.invars)
                if all(map(self.is_only_added, operands)):
                    self._only_added.add(variable)

    def uses(self, variable):
        """How many operands, and results of the function, it is."""
        return self._uses[variable]

    def made_by(self, atom) -> JaxprEqn | None:
        return None if isinstance(atom, Literal) else self._made_by.get(atom)

    def is_sum(self, atom):
        """Whether `atom` is a sum over rows, or linear in such sums."""
        return isinstance(atom, Var) and atom in self._sums

    def is_only_added(self, atom):
        """Whether nothing but the sum that `atom` is a term of looks at it."""
        return atom in self._only_added and self._uses[atom] == 1

    def _gives_sum(self, equation):
        if _summed_dims(equation, self._rows.number) is not None:
            return True
        sums = list(map(self.is_sum, equation.invars))
        if equation.primitive.name in _LINEAR_IN_ALL:
            return all(sums)
        return (
            equation.primitive.name in _LINEAR_IN_ONE
            and sums.count(True) == 1
            and _is_linear(equation)
        )

    def by_device(self, atom, values: Values):
        """What the rows of each device add to the sum `atom`."""
        if atom not in values.by_device:
            values.by_device[atom] = self._by_device(atom, values)
        return values.by_device[atom]

    def _by_device(self, atom, values):
        equation = self._made_by[atom]
        run = functools.partial(run_equation, self._jaxpr, equation)
        dims = _summed_dims(equation, self._rows.number)
        if dims is not None:
            operands = map(values.read, equation.invars)
            return _on_each_device(run, operands, dims, self._rows)
        sums = list(map(self.is_sum, equation.invars))
        operands = [
            self.by_device(v, values) if is_sum else values.read(v)
            for v, is_sum in zip(equation.invars, sums)
        ]
        axes = tuple(0 if is_sum else None for is_sum in sums)
        return jax.vmap(lambda *args: run(args)[0], axes)(*operands)


def run_equation(within: Jaxpr, equation: JaxprEqn, operands):
    """The results of an equation, under the names that it came with."""
    # Anew, as one may be a literal, and one may stand there twice.
    inputs: list[typing.Any] = [Var(v.aval) for v in equation.invars]
    outputs = [Var(v.aval) for v in equation.outvars]
    alone = equation.replace(invars=inputs, outvars=outputs)
    jaxpr = within.replace(
        constvars=[],
        invars=inputs,
        outvars=outputs,
        eqns=[alone],
        effects=equation.effects,
    )
    return eval_jaxpr(jaxpr, [], *operands)


def _on_each_device(run, operands, dims, rows):
    """Runs an equation on the rows of each device alone."""
    specs = tuple(PartitionSpec(*[None] * dim, rows.axis) for dim in dims)

    @functools.partial(
        jax.shard_map,
        mesh=rows.mesh,
        in_specs=specs,
        out_specs=PartitionSpec(rows.axis),
    )
    def on_each(*operands):
        return run(operands)[0][None]

    return on_each(*operands)


def _summed_dims(equation, number):
    """The dim of each operand along which `equation` sums up the rows."""
    parameters = equation.params
    if equation.primitive.name == "reduce_sum":
        dims = [(axis,) for axis in parameters["axes"]]
    elif equation.primitive.name == "dot_general":
        contracted, _ = parameters["dimension_numbers"]
        dims = list(zip(*contracted))
    elif equation.primitive.name == "conv_general_dilated":
        # The gradient of a kernel: what is summed up are the features.
        groups = ("feature_group_count", "batch_group_count")
        if any(parameters[name] > 1 for name in groups):
            return None
        numbers = parameters["dimension_numbers"]
        dims = [(numbers.lhs_spec[1], numbers.rhs_spec[1])]
    else:
        return None
    shape = equation.invars[0].aval.shape
    return next((d for d in dims if shape[d[0]] == number), None)


def _is_linear(equation):
    operand, *others = equation.invars
    if equation.primitive.name == "pad":
        # Anything else at the borders would count once for each device.
        return isinstance(others[0], Literal) and others[0].val == 0
    if equation.primitive.name == "convert_element_type":
        before, after = operand.aval.dtype, equation.outvars[0].aval.dtype
        return jax.numpy.promote_types(before, after) == after
    return True
