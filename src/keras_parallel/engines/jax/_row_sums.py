"""Sums over rows in the body of a loop, and what each device adds to them."""

import dataclasses
import typing

import jax
from jax.core import eval_jaxpr
from jax.extend.core import Jaxpr
from jax.extend.core import JaxprEqn
from jax.extend.core import Literal
from jax.extend.core import Var

_ADD = frozenset({"add", "add_any"})
# Linear in an operand, as long as the other is known.
_LINEAR = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
        "mul",
        "neg",
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
        devices: On how many devices they lie.
        sharding: Puts one entry of the leading dim on each device.
    """

    number: int
    devices: int
    sharding: jax.sharding.Sharding


class RowSum:
    """A carry of a loop to which each turn adds sums over rows, and no more."""

    def __init__(self, body: Jaxpr, rows: Rows):
        self._body = body
        self._rows = rows
        self._made_by = {v: e for e in body.eqns for v in e.outvars}
        self._terms = []

    @classmethod
    def find(cls, body: Jaxpr, carry, total, rows: Rows):
        """The sum that goes into `body` as `carry` and comes out as `total`.

        Returns:
            `None` if it is more, or if something else looks at it.
        """
        row_sum = cls(body, rows)
        used = [v for e in body.eqns for v in e.invars] + body.outvars
        while total is not carry:
            equation = row_sum._equation_of(total)
            if equation is None or sum(v is total for v in used) != 1:
                return None
            term, total = row_sum._parted(equation, carry)
            if term is None:
                return None
            row_sum._terms.append(term)
        alone = sum(v is carry for v in used) == 1
        return row_sum if row_sum._terms and alone else None

    def _parted(self, equation, carry):
        """What is added, if it is a sum over rows, and to what."""
        if equation.primitive.name in _ADD:
            a, b = equation.invars
            for term, other in ((a, b), (b, a)):
                if term is not carry and self._is_sum(term):
                    return term, other
        return None, None

    def added_to(self, carry, values):
        """`carry`, one sum for each device, and what a turn adds to it.

        Args:
            carry: With a leading dim of devices.
            values: The values in the body of the loop.
        """
        for term in self._terms:
            carry = carry + self._by_device(term, values)
        return carry

    def _equation_of(self, atom):
        return None if isinstance(atom, Literal) else self._made_by.get(atom)

    def _is_sum(self, atom):
        equation = self._equation_of(atom)
        if equation is None:
            return False
        if self._summed_dims(equation) is not None:
            return True
        if equation.primitive.name in _ADD:
            return all(map(self._is_sum, equation.invars))
        return (
            equation.primitive.name in _LINEAR
            and sum(map(self._is_sum, equation.invars)) == 1
        )

    def _summed_dims(self, equation):
        """The dim of each operand along which `equation` sums up rows."""
        if equation.primitive.name == "reduce_sum":
            dims = [(axis,) for axis in equation.params["axes"]]
        elif equation.primitive.name == "dot_general":
            contracted, _ = equation.params["dimension_numbers"]
            dims = list(zip(*contracted))
        else:
            return None
        shape = equation.invars[0].aval.shape
        number = self._rows.number
        return next((d for d in dims if shape[d[0]] == number), None)

    def _by_device(self, atom, values):
        """The sums over the rows of each device that `atom` is the sum of."""
        equation = self._made_by[atom]
        dims = self._summed_dims(equation)
        if dims is not None:
            operands = [
                self._split(values.read(v), dim)
                for v, dim in zip(equation.invars, dims)
            ]
            return self._mapped(equation, operands, dims)
        are_sums = list(map(self._is_sum, equation.invars))
        operands = [
            self._by_device(v, values) if is_sum else values.read(v)
            for v, is_sum in zip(equation.invars, are_sums)
        ]
        dims = [0 if is_sum else None for is_sum in are_sums]
        return self._mapped(equation, operands, dims)

    def _split(self, value, dim):
        rows = (self._rows.devices, self._rows.number // self._rows.devices)
        shape = (*value.shape[:dim], *rows, *value.shape[dim + 1 :])
        return value.reshape(shape)

    def _mapped(self, equation, operands, dims):
        def result(*operands):
            return run_equation(self._body, equation, operands)[0]

        return jax.vmap(result, tuple(dims))(*operands)


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
