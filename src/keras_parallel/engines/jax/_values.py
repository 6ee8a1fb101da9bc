"""The values in a traced function, equation by equation."""

import collections
import typing

import jax
import numpy as np
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr
from jax.extend.core import Jaxpr
from jax.extend.core import JaxprEqn
from jax.extend.core import Literal
from jax.extend.core import Var


class Values(dict):
    """The variables of a traced function, with their values.

    `by_device` has some that are sums over rows, with a leading dim of what
    the rows of each device add to them. Of those the ones in `waiting` are
    added up over the devices together, when one of them is read.
    """

    def __init__(self, closed: ClosedJaxpr, args):
        super().__init__()
        self.by_device = {}
        self.waiting = {}
        self.write(closed.jaxpr.constvars, closed.consts)
        self.write(closed.jaxpr.invars, args)

    def read(self, atom):
        if isinstance(atom, Literal):
            return atom.val
        if atom in self.waiting:
            # Terms of sums that are not there yet would cross once more.
            self.waiting[atom] = False
            ready = [v for v, is_term in self.waiting.items() if not is_term]
            self.update(_summed_together(self.by_device, ready))
            for variable in ready:
                del self.waiting[variable]
        return self[atom]

    def write(self, variables, values):
        self.update(zip(variables, values))

    def add_up(self, variable, sums):
        """Adds up a sum over the devices: now, or later if it is small."""
        if sums.is_small(variable):
            self.waiting[variable] = sums.is_term(variable)
        else:
            self[variable] = self.by_device[variable].sum(0)


def _summed_together(by_device, variables):
    """The sum over the devices of each variable; one array for each dtype."""
    sums, of_dtype = {}, collections.defaultdict(list)
    for variable in variables:
        of_dtype[variable.aval.dtype].append(variable)
    for alike in of_dtype.values():
        flat = [by_device[v].reshape(len(by_device[v]), -1) for v in alike]
        total = jax.numpy.concatenate(flat, 1).sum(0)
        ends = np.cumsum([v.aval.size for v in alike])
        for v, part in zip(alike, jax.numpy.split(total, ends[:-1])):
            sums[v] = part.reshape(v.aval.shape)
    return sums


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
