"""In which size the gradient of each weight crosses, read from a trace.

The gradient is a sum over rows where the forward pass brings a weight together
with rows, in the dtype that the weight has there.
"""

from jax.extend.core import Literal

# The origin of a value: `ROWS` if rows reach it; `None` if it is a constant;
# else the indices of the weights that reach it.
ROWS = "rows"


class Reader:
    """Follows weights through a trace to where they meet rows.

    Args:
        trainable: The number of weights.
        widths: See `outline_of`.

    Attributes:
        widths_met: For each weight, the bytes of an entry where it meets
            rows, the widest; 0 if it meets none.
    """

    def __init__(self, trainable, widths):
        self.widths_met = [0] * trainable
        self._widths = widths

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
            return list(map(_merged, zip(*branches)))
        if inner is not None and len(inner.invars) == len(origins):
            return self.read(inner, origins)
        if ROWS in origins:
            for atom, reached in zip(equation.invars, origins):
                self._meets_rows(atom.aval.dtype, reached)
        return [_merged(origins)] * len(equation.outvars)

    def _scan(self, equation, origins):
        params = equation.params
        consts = params["num_consts"]
        if ROWS in origins:
            # What is carried meets rows on the way.
            for i in range(consts, consts + params["num_carry"]):
                self._meets_rows(equation.invars[i].aval.dtype, origins[i])
                origins[i] = ROWS
        return self.read(params["jaxpr"].jaxpr, origins)

    def _meets_rows(self, dtype, origin):
        # Only what has a derivative: no mask, no index.
        if isinstance(origin, frozenset) and "float" in dtype.name:
            width = self._widths.get(dtype.name, dtype.itemsize)
            for i in origin:
                self.widths_met[i] = max(width, self.widths_met[i])


def _inner(equation):
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(name)
        if inner is not None:
            return getattr(inner, "jaxpr", inner)
    return None


def _merged(origins):
    if ROWS in origins:
        return ROWS
    weights = [origin for origin in origins if origin is not None]
    return frozenset().union(*weights) if weights else None
