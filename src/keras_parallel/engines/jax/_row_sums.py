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
# From one dtype to a wider one that ends where it does.
_CONVERSIONS = frozenset({("bfloat16", "float32")})


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
        # What is called, for each of its results that is a sum.
        self._inside = {}
        self._sums = set(known)
        # Those for which no sum of all rows is needed on the way.
        self._only_added = set(known)
        for variable, equation in self._made_by.items():
            called = called_by(equation)
            if called is not None:
                i = equation.outvars.index(variable)
                self._look_inside(variable, called, called.jaxpr.outvars[i])
            elif self._gives_sum(equation):
                self._sums.add(variable)
                operands = filter(self.is_sum, equation.invars)
                if all(map(self.is_only_added, operands)):
                    self._only_added.add(variable)

    def _look_inside(self, variable, closed, result):
        """Notes whether the result of a call is a sum over rows."""
        inside = RowSums(closed.jaxpr, self._rows)
        if inside.is_sum(result):
            self._inside[variable] = closed, inside, result
            self._sums.add(variable)
            if inside.is_only_added(result):
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
        if self._summed_dims(equation) is not None:
            return True
        sums = list(map(self.is_sum, equation.invars))
        if equation.primitive.name in _LINEAR_IN_ALL:
            return all(sums)
        return (
            equation.primitive.name in _LINEAR_IN_ONE
            and sums.count(True) == 1
            and _is_linear(equation)
        )

    def _summed_dims(self, equation):
        """The dim of each operand along which `equation` sums up the rows.

        Returns:
            A tuple, with `None` for an operand without rows; `None` if it
            does not sum up rows.
        """
        candidates = _SUMS.get(equation.primitive.name, _none)(equation)
        if equation.primitive.name == "scatter-add":
            # What it adds to would count once for each device.
            if not _is_zeros(self.made_by(equation.invars[0])):
                return None
        shapes = [atom.aval.shape for atom in equation.invars]
        for dims in candidates:
            if all(
                dim is None or shape[dim] == self._rows.number
                for shape, dim in zip(shapes, dims)
            ):
                return dims
        return None

    def by_device(self, atom, values: Values):
        """What the rows of each device add to the sum `atom`."""
        # In a loop, as a chain of sums may be longer than Python's stack.
        waiting = [atom]
        while waiting:
            missing = [
                v
                for v in self._terms_of(waiting[-1])
                if v not in values.by_device
            ]
            if missing and waiting[-1] not in values.by_device:
                waiting += missing
            else:
                term = waiting.pop()
                if term not in values.by_device:
                    values.by_device[term] = self._by_device(term, values)
        return values.by_device[atom]

    def _terms_of(self, atom):
        """The sums that the sum `atom` is made of."""
        if atom not in self._made_by or atom in self._inside:
            return []
        equation = self._made_by[atom]
        if self._summed_dims(equation) is not None:
            return []
        return list(filter(self.is_sum, equation.invars))

    def _by_device(self, atom, values):
        equation = self._made_by[atom]
        if atom in self._inside:
            closed, inside, result = self._inside[atom]
            operands = map(values.read, equation.invars)
            return inside.by_device(result, all_values(closed, operands))
        run = functools.partial(run_equation, self._jaxpr, equation)
        dims = self._summed_dims(equation)
        if dims is not None:
            operands = map(values.read, equation.invars)
            return _on_each_device(run, operands, dims, self._rows)
        sums = list(map(self.is_sum, equation.invars))
        operands = [
            values.by_device[v] if is_sum else values.read(v)
            for v, is_sum in zip(equation.invars, sums)
        ]
        axes = tuple(0 if is_sum else None for is_sum in sums)
        return jax.vmap(lambda *args: run(args)[0], axes)(*operands)


def called_by(equation):
    """The function that was compiled by itself, if `equation` calls one."""
    is_call = equation.primitive.name == "jit"
    return equation.params["jaxpr"] if is_call else None


def all_values(closed: ClosedJaxpr, args) -> Values:
    """The values of all variables of a traced function."""
    args = list(args)
    jaxpr, values = closed.jaxpr, Values(closed, args)
    made = [variable for e in jaxpr.eqns for variable in e.outvars]
    every = jaxpr.replace(outvars=made)
    values.write(made, eval_jaxpr(every, closed.consts, *args))
    return values


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
    specs = tuple(
        PartitionSpec(*([] if dim is None else [*[None] * dim, rows.axis]))
        for dim in dims
    )

    @functools.partial(
        jax.shard_map,
        mesh=rows.mesh,
        in_specs=specs,
        out_specs=PartitionSpec(rows.axis),
        # Nothing that comes out is said to be the same on each.
        check_vma=False,
    )
    def on_each(*operands):
        return run(operands)[0][None]

    return on_each(*operands)


# For each primitive, the dims of its operands that it sums up together.


def _none(equation):
    del equation
    return []


def _of_reduce_sum(equation):
    return [(axis,) for axis in equation.params["axes"]]


def _of_dot_general(equation):
    contracted, _ = equation.params["dimension_numbers"]
    return list(zip(*contracted))


def _of_convolution(equation):
    """The gradient of a kernel: there the features are the rows."""
    groups = ("feature_group_count", "batch_group_count")
    if any(equation.params[name] > 1 for name in groups):
        return []
    numbers = equation.params["dimension_numbers"]
    return [(numbers.lhs_spec[1], numbers.rhs_spec[1])]


def _of_scatter(equation):
    """The gradient of a table that rows were looked up in."""
    numbers = equation.params["dimension_numbers"]
    if 0 in numbers.update_window_dims or numbers.operand_batching_dims:
        return []
    _, indices, _ = equation.invars
    return [(None, 0, 0)] if len(indices.aval.shape) > 1 else []


_SUMS = {
    "conv_general_dilated": _of_convolution,
    "dot_general": _of_dot_general,
    "reduce_sum": _of_reduce_sum,
    "scatter-add": _of_scatter,
}


def _is_zeros(equation):
    if equation is None or equation.primitive.name != "broadcast_in_dim":
        return False
    (value,) = equation.invars
    return isinstance(value, Literal) and value.val == 0


def _is_linear(equation):
    operand, *others = equation.invars
    if equation.primitive.name == "pad":
        # Anything else at the borders would count once for each device.
        return isinstance(others[0], Literal) and others[0].val == 0
    if equation.primitive.name == "convert_element_type":
        # Others overflow or wrap around in the sum of all rows, and would not
        # in the sums of each device.
        before, after = operand.aval.dtype, equation.outvars[0].aval.dtype
        return (before.name, after.name) in _CONVERSIONS
    return True
