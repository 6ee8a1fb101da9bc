"""Sums over the rows of a batch, and what each device adds to them."""

import collections
import dataclasses
import functools

import jax
import numpy as np
from jax.extend.core import Jaxpr
from jax.extend.core import JaxprEqn
from jax.extend.core import Literal
from jax.extend.core import Var
from jax.sharding import Mesh
from jax.sharding import PartitionSpec

from keras_parallel.engines.jax._values import Values
from keras_parallel.engines.jax._values import all_values
from keras_parallel.engines.jax._values import called_by
from keras_parallel.engines.jax._values import run_equation

ADD = frozenset({"add", "add_any"})
_LINEAR_IN_ALL = ADD | {"concatenate"}
# Linear in one operand, for any value of the other.
_LINEAR_IN_ONE = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
        "div",
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
        together: Sums over rows of at most so many bytes cross as one array.
    """

    number: int
    mesh: Mesh
    together: int = 0

    @property
    def axis(self):
        return self.mesh.axis_names[0]

    def is_small(self, variable):
        """Whether the sum `variable` crosses with others."""
        # Scaled by itself, what one device adds may not overflow.
        if variable.aval.dtype == np.float16:
            return False
        size = variable.aval.size * variable.aval.dtype.itemsize
        return size <= self.together


class RowSums:
    """Which variables of a traced function are sums over rows.

    Args:
        jaxpr: The function.
        rows: The rows.
        known: Variables that are known to be such sums.
        rowless: What it takes that is known to have no rows, though a dim
            may be as long.
    """

    def __init__(self, jaxpr: Jaxpr, rows: Rows, known=(), rowless=()):
        self._jaxpr = jaxpr
        self._rows = rows
        self._rowless = {*rowless, *jaxpr.constvars}
        self._made_by = {v: e for e in jaxpr.eqns for v in e.outvars}
        used = [*(v for e in jaxpr.eqns for v in e.invars), *jaxpr.outvars]
        self._uses = collections.Counter(v for v in used if isinstance(v, Var))
        self._used_by = {
            v: e for e in jaxpr.eqns for v in e.invars if isinstance(v, Var)
        }
        # What is called, for each of its results that is a sum.
        self._inside = {}
        self._sums = set(known)
        # Those for which no sum of all rows is needed on the way.
        self._only_added = set(known)
        self._certain = set(known)
        for variable, equation in self._made_by.items():
            called = called_by(equation)
            if called is not None:
                self._look_inside(variable, equation, called)
            elif self._gives_sum(equation):
                self._note_sum(variable, equation)
            if self._has_no_rows(variable, equation):
                self._rowless.add(variable)

    def _note_sum(self, variable, equation):
        self._sums.add(variable)
        operands = filter(self.is_sum, equation.invars)
        if all(map(self.is_only_added, operands)):
            self._only_added.add(variable)
        if self._surely_sums(equation):
            self._certain.add(variable)

    def _has_no_rows(self, variable, equation):
        return (
            self._rows.number not in variable.aval.shape
            or variable in self._certain
            or all(map(self.is_rowless, equation.invars))
        )

    def _look_inside(self, variable, equation, closed):
        """Notes whether the result of a call is a sum over rows."""
        result = closed.jaxpr.outvars[equation.outvars.index(variable)]
        rowless = self.rowless_inside(equation, closed.jaxpr)
        inside = RowSums(closed.jaxpr, self._rows, rowless=rowless)
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

    def is_rowless(self, atom):
        """Whether `atom` is known to have no rows."""
        return isinstance(atom, Literal) or atom in self._rowless

    def rowless_inside(self, equation, jaxpr):
        """What `jaxpr`, which `equation` calls, takes and has no rows."""
        pairs = zip(jaxpr.invars, equation.invars)
        return [inner for inner, outer in pairs if self.is_rowless(outer)]

    def is_sum(self, atom):
        """Whether `atom` is a sum over rows, or linear in such sums."""
        return isinstance(atom, Var) and atom in self._sums

    def is_only_added(self, atom):
        """Whether nothing but the sum that `atom` is a term of looks at it."""
        return atom in self._only_added and self._uses[atom] == 1

    def is_small(self, variable):
        return self._rows.is_small(variable)

    def is_term(self, variable):
        """Whether a sum is only looked at to be added to another sum."""
        while self._uses[variable] == 1 and variable in self._used_by:
            equation = self._used_by[variable]
            if len(equation.outvars) != 1:
                return False
            (result,) = equation.outvars
            if not self.is_sum(result) or self._summed_dims(equation):
                return False
            if sum(map(self.is_sum, equation.invars)) > 1:
                return True
            variable = result
        return False

    def can_wait(self, variable, waiting):
        """Whether the sum `variable` can cross later, with those `waiting`."""
        return (
            self._rows.is_small(variable)
            and variable in self._certain
            and all(
                term in waiting and self._uses[term] == 1
                for term in self._terms_of(variable)
            )
        )

    def _surely_sums(self, equation):
        """Whether no dim is summed up only because it is as long as the rows.

        That would be right, and move data. Rows are the first dim where a
        layer gets them, and what has as many rows is not a sum over them.
        """
        dims, (result,) = self._summed_dims(equation), equation.outvars
        if dims is None:
            terms = list(filter(self.is_sum, equation.invars))
            # As a mean does, before it is subtracted from rows; what is padded
            # is to be added to its neighbors.
            grows = result.aval.size > sum(v.aval.size for v in terms)
            grows = grows and equation.primitive.name != "pad"
            return not grows and self._certain.issuperset(terms)
        return self._rows.number not in result.aval.shape or not any(dims)

    def _gives_sum(self, equation):
        if self._summed_dims(equation) is not None:
            return True
        sums = list(map(self.is_sum, equation.invars))
        if equation.primitive.name in _LINEAR_IN_ALL:
            return all(sums)
        return (
            equation.primitive.name in _LINEAR_IN_ONE
            and sums.count(True) == 1
            and _is_linear(equation, sums)
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
        for dims in candidates:
            pairs = zip(equation.invars, dims)
            summed = [(v, dim) for v, dim in pairs if dim is not None]
            if all(
                v.aval.shape[dim] == self._rows.number for v, dim in summed
            ) and not all(self.is_rowless(v) for v, _ in summed):
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

    def _terms_of(self, atom) -> list[Var]:
        """The sums that the sum `atom` is made of."""
        if atom not in self._made_by or atom in self._inside:
            return []
        equation = self._made_by[atom]
        if self._summed_dims(equation) is not None:
            return []
        return [
            v for v in equation.invars if isinstance(v, Var) and v in self._sums
        ]

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


def _is_linear(equation, sums):
    operand, *others = equation.invars
    if equation.primitive.name == "div":
        return sums[0]
    if equation.primitive.name == "pad":
        # Anything else at the borders would count once for each device.
        return isinstance(others[0], Literal) and others[0].val == 0
    if equation.primitive.name == "convert_element_type":
        # Others overflow or wrap around in the sum of all rows, and would not
        # in the sums of each device.
        before, after = operand.aval.dtype, equation.outvars[0].aval.dtype
        return (before.name, after.name) in _CONVERSIONS
    return True
