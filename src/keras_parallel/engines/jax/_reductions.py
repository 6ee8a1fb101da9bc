"""Which sums over rows make the gradients, read from a trace.

XLA's partitioner (GSPMD, arXiv:2105.04663) has no layout for a sum that is
not finished. Where the forward pass brings a weight together with rows, the
gradient there is a sum over rows, which crosses between devices at once: for
each use of a layer that is called twice, and at each step of a loop.
"""

from jax.extend.core import Literal

from keras_parallel.planning import Reduction

# The origin of a value: `ROWS` if rows reach it; `None` if it is a constant;
# else a dict from the index of each weight that reaches it to how many of its
# entries are in the value at most.
ROWS = "rows"


class Reader:
    """Follows weights through a trace to where they meet rows.

    Args:
        trainable: The number of weights.
        widths: See `outline_of`.

    Attributes:
        reductions: For each weight, the sums that make its gradient.
    """

    def __init__(self, trainable, widths):
        self.reductions = [[] for _ in range(trainable)]
        self._widths = widths

    def read(self, jaxpr, origins, steps=1):
        """Returns the origins of the outputs, given those of the inputs."""
        known = dict(zip(jaxpr.invars, origins))

        def origin(atom):
            return None if isinstance(atom, Literal) else known.get(atom)

        for equation in jaxpr.eqns:
            reached = [origin(atom) for atom in equation.invars]
            known.update(
                zip(equation.outvars, self._outputs(equation, reached, steps))
            )
        return [origin(atom) for atom in jaxpr.outvars]

    def _outputs(self, equation, origins, steps):
        name, inner = equation.primitive.name, _inner(equation)
        if name == "scan":
            return self._scan(equation, origins, steps)
        if name == "cond":
            return [
                _merged(reached)
                for reached in zip(
                    *(
                        self.read(branch.jaxpr, origins[1:], steps)
                        for branch in equation.params["branches"]
                    )
                )
            ]
        if inner is not None and len(inner.invars) == len(origins):
            return self.read(inner, origins, steps)
        if ROWS in origins:
            for atom, reached in zip(equation.invars, origins):
                self._meets_rows(atom.aval.dtype, reached, steps)
        merged = _merged(origins)
        return [
            {i: min(n, out.aval.size) for i, n in merged.items()}
            if isinstance(merged, dict)
            else merged
            for out in equation.outvars
        ]

    def _scan(self, equation, origins, steps):
        params = equation.params
        consts = params["num_consts"]
        carried = consts + params["num_carry"]
        inner, length = params["jaxpr"].jaxpr, params["length"]
        if ROWS in origins:
            # What is carried meets rows on the way.
            for i in range(consts, carried):
                dtype = equation.invars[i].aval.dtype
                self._meets_rows(dtype, origins[i], steps)
                origins[i] = ROWS
        for i in range(carried, len(origins)):
            if isinstance(origins[i], dict):
                origins[i] = {
                    index: max(n // max(length, 1), 1)
                    for index, n in origins[i].items()
                }
        return self.read(inner, origins, steps * length)

    def _meets_rows(self, dtype, origin, steps):
        # Only what has a derivative: no mask, no index.
        if isinstance(origin, dict) and "float" in dtype.name:
            width = self._widths.get(dtype.name, dtype.itemsize)
            for i, entries in origin.items():
                self.reductions[i].append(Reduction(entries * width, steps))


def _inner(equation):
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(name)
        if inner is not None:
            return getattr(inner, "jaxpr", inner)
    return None


def _merged(origins):
    if ROWS in origins:
        return ROWS
    if all(origin is None for origin in origins):
        return None
    merged = {}
    for origin in origins:
        for i, entries in (origin or {}).items():
            merged[i] = max(entries, merged.get(i, 0))
    return merged
