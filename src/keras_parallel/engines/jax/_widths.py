"""In which size the gradient of each weight crosses, read from a trace.

The gradient is a sum over rows where the forward pass brings a weight together
with rows, in the dtype that the weight has there. Where several weights are
merged into one value before it meets rows, as the two factors of LoRA and the
kernel are, the gradient of that value crosses instead of theirs.
"""

import dataclasses
import math
import typing

from jax.extend.core import Literal

# The origin of a value: `ROWS` if rows reach it; `None` if it is a constant;
# else an `Origin`.
ROWS = "rows"


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a value comes from that no rows reach.

    Args:
        weights: The indices of the weights that reach it.
        merged: What tells the value in which they were merged from others.
        entries: The entries of that value, 0 for one weight alone.
    """

    weights: frozenset[int] = frozenset()
    merged: typing.Hashable = None
    entries: int = 0


# What is neither a weight nor of rows: statistics, seeds.
STATE = Origin()


def weight(index):
    """The origin of a weight itself."""
    return Origin(frozenset([index]))


class Reader:
    """Follows weights through a trace to where they meet rows.

    Args:
        trainable: The number of weights.
        widths: See `outline_of`.

    """

    def __init__(self, trainable, widths):
        self._trainable = trainable
        self._widths = widths
        # The bytes of an entry where rows are met, the widest.
        self._met = {}
        # Of values of rows, in bytes, for all devices together.
        self.gathered = []

    @property
    def widths_met(self):
        """For each weight alone, bytes of an entry where it meets rows.

        It is the widest; 0 for a weight that meets none.
        """
        alone = map(weight, range(self._trainable))
        return [self._met.get(origin, 0) for origin in alone]

    @property
    def merged(self):
        """Bytes of those values of several weights that meet rows."""
        return sum(o.entries * width for o, width in self._met.items())

    def read(self, jaxpr, origins):
        """Returns the origins of the outputs, given those of the inputs."""
        known = dict(zip(jaxpr.invars, origins))

        def origin(atom):
            return None if isinstance(atom, Literal) else known.get(atom)

        for equation in jaxpr.eqns:
            reached = [origin(atom) for atom in equation.invars]
            outputs = self._outputs(equation, reached)
            known.update(zip(equation.outvars, outputs))
        return [origin(atom) for atom in jaxpr.outvars]

    def _outputs(self, equation, origins):
        name, inner = equation.primitive.name, _inner(equation)
        if name == "scan":
            return self._scan(equation, origins)
        if name == "cond":
            branches = [
                self.read(branch.jaxpr, origins[1:])
                for branch in equation.params["branches"]
            ]
            return list(map(_merged, zip(*branches), equation.outvars))
        if inner is not None and len(inner.invars) == len(origins):
            return self.read(inner, origins)
        if name == "conv_general_dilated" and origins[0] == ROWS:
            self._gather(equation)
        if ROWS in origins:
            for atom, reached in zip(equation.invars, origins):
                self._meets_rows(atom.aval.dtype, reached)
        return [_merged(origins, variable) for variable in equation.outvars]

    def _scan(self, equation, origins):
        params = equation.params
        consts = params["num_consts"]
        if ROWS in origins:
            # What is carried meets rows on the way.
            for i in range(consts, consts + params["num_carry"]):
                self._meets_rows(equation.invars[i].aval.dtype, origins[i])
                origins[i] = ROWS
        return self.read(params["jaxpr"].jaxpr, origins)

    def _gather(self, equation):
        """Notes what XLA's partitioner gathers for a grouped convolution.

        For the gradients, it shares out a convolution by rows only if each
        channel has a group of its own; a kernel of one entry is no
        convolution to it. The gradient of the input may not be needed.
        """
        params = equation.params
        groups, numbers = (
            params["feature_group_count"],
            params["dimension_numbers"],
        )
        x, kernel = (atom.aval for atom in equation.invars)
        window = [kernel.shape[dim] for dim in numbers.rhs_spec[2:]]
        if groups == 1 or math.prod(window) == 1:
            return
        y = equation.outvars[0].aval
        features = (numbers.lhs_spec[1], numbers.out_spec[1])
        for value, dim in zip((x, y), features):
            if value.shape[dim] != groups:
                width = self._widths.get(value.dtype.name, value.dtype.itemsize)
                self.gathered.append(value.size * width)

    def _meets_rows(self, dtype, origin):
        # Only what has a derivative: no mask, no index.
        if isinstance(origin, Origin) and "float" in dtype.name:
            width = self._widths.get(dtype.name, dtype.itemsize)
            self._met[origin] = max(width, self._met.get(origin, 0))


def _inner(equation):
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(name)
        if inner is not None:
            return getattr(inner, "jaxpr", inner)
    return None


def _merged(origins, variable):
    if ROWS in origins:
        return ROWS
    known = {origin for origin in origins if origin is not None}
    of_weights = known - {STATE}
    if len(of_weights) < 2:
        return next(iter(of_weights or known), None)
    weights = frozenset().union(*(origin.weights for origin in of_weights))
    if len(weights) < 2:
        return weight(*weights)
    # One function may be called for several sets of weights.
    merged = (frozenset(of_weights), id(variable))
    return Origin(weights, merged, math.prod(variable.aval.shape))
