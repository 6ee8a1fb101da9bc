"""On which device each equation of a traced step runs.

Right is any choice: what an equation takes from elsewhere is sent there. An
equation with a label runs where that says. Others, those of losses, metrics
and the optimizer, run where most of what they take lies, in bytes.
"""

import collections

from jax.extend.core import ClosedJaxpr
from jax.extend.core import Jaxpr
from jax.extend.core import JaxprEqn
from jax.extend.core import Var
from jax.interpreters import partial_eval

from keras_parallel.engines.jax._labels import label_of
from keras_parallel.planning import Device

# What only gives an array another form: cheaper to do twice than to send.
_FORM = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
        "expand_dims",
        "iota",
        "reshape",
        "squeeze",
    }
)


class Places:
    """The equations of a step, and the device of each.

    Args:
        jaxpr: The step, without equations that nothing needs.
        inputs: The device of what it takes; `None` for what the host sends
            wherever it is needed.
        default: The device of what could run anywhere.
        homes: The device on which a result has to be at the end, if any.

    Attributes:
        equations: Those of `jaxpr`, with those that belong to several devices
            taken apart.
        of_equation: The device of each; `None` if it runs wherever its
            results are needed.
        of_value: The device of each value, likewise.
    """

    def __init__(self, jaxpr: Jaxpr, inputs, default: Device, homes=()):
        self._default = default
        self._homes = dict(homes)
        self.equations: list[JaxprEqn] = []
        self.of_equation: list[Device | None] = []
        self.of_value = dict(zip(jaxpr.invars, inputs))
        self.of_value |= dict.fromkeys(jaxpr.constvars)
        # Where what an array is formed of lies, for those without a device.
        self._formed_on = {}
        self._read_by = _first_readers(jaxpr)
        # Equations that take nothing which has a device.
        self._undecided = set()
        for equation in jaxpr.eqns:
            for part in self._parts(equation):
                self._add(part)
        self._decide(jaxpr)

    def _parts(self, equation) -> list[JaxprEqn]:
        """Equations in place of one that belongs to several devices."""
        if len({self.of_value[v] for v in _variables(equation)} - {None}) < 2:
            return [equation]
        if equation.primitive.name == "jit":
            return self._inlined(equation)
        if equation.primitive.name == "cond" and label_of(equation) is None:
            return self._split(equation)
        return [equation]

    def _add(self, equation):
        index = len(self.equations)
        self.equations.append(equation)
        device = self._device_of(equation, index)
        self.of_equation.append(device)
        self.of_value |= dict.fromkeys(equation.outvars, device)

    def _device_of(self, equation, index):
        taken, label = _variables(equation), self._label_of(equation)
        held = self._most_of(taken)
        if equation.primitive.name in _FORM and not equation.effects:
            grows = sum(map(_bytes, equation.outvars)) >= sum(
                map(_bytes, taken)
            )
            if grows and (label is None or not taken):
                self._formed_on |= dict.fromkeys(equation.outvars, held)
                return None
        if label is not None:
            return label
        if equation.outvars[0] in self._homes:
            return self._homes[equation.outvars[0]]
        if held is not None:
            return held
        self._undecided.add(index)
        return None

    def _label_of(self, equation):
        """The label of an equation; of a sum of gradients, the reader's.

        JAX adds up the gradients of a value that several calls took, and
        labels the sum as one of them. It belongs to who made the value, if
        they do not come from one device.
        """
        if equation.primitive.name == "add_any":
            places = {self._lies_on(v) for v in _variables(equation)}
            if len(places) == 1:
                return places.pop()
        while equation.primitive.name == "add_any":
            reader = self._read_by.get(equation.outvars[0])
            if reader is None or label_of(reader) is None:
                break
            equation = reader
        return label_of(equation)

    def _lies_on(self, variable):
        """Where a value lies, or what it is formed of; `None` if anywhere."""
        return self.of_value.get(variable) or self._formed_on.get(variable)

    def _most_of(self, variables):
        """Where most of some values lies, in bytes."""
        held = collections.Counter()
        for variable in variables:
            held[self._lies_on(variable)] += _bytes(variable)
        del held[None]
        return held.most_common(1)[0][0] if held else None

    def _decide(self, jaxpr):
        """Gives what could run anywhere the device of who needs it first."""
        results = {v for v in jaxpr.outvars if isinstance(v, Var)}
        needed_on = {}
        for index in reversed(range(len(self.equations))):
            equation = self.equations[index]
            if index in self._undecided:
                devices = map(needed_on.get, equation.outvars)
                device = next(filter(None, devices), self._default)
                self._move(index, device)
            elif results.intersection(equation.outvars):
                if self.of_equation[index] is None:
                    self._move(index, self._default)
            device = self.of_equation[index]
            if device is None:
                devices = map(needed_on.get, equation.outvars)
                device = next(filter(None, devices), None)
            for variable in _variables(equation):
                needed_on[variable] = device

    def _move(self, index, device):
        self.of_equation[index] = device
        outvars = self.equations[index].outvars
        self.of_value |= dict.fromkeys(outvars, device)

    def _inlined(self, equation):
        closed: ClosedJaxpr = equation.params["jaxpr"]
        renamed = dict(zip(closed.jaxpr.invars, equation.invars))
        if closed.consts or any(
            not isinstance(v, Var) or v in renamed for v in closed.jaxpr.outvars
        ):
            return [equation]
        renamed |= dict(zip(closed.jaxpr.outvars, equation.outvars))

        def new(atom):
            if not isinstance(atom, Var):
                return atom
            return renamed.setdefault(atom, Var(atom.aval))

        stack = equation.source_info.name_stack
        return [
            inner.replace(
                invars=list(map(new, inner.invars)),
                outvars=list(map(new, inner.outvars)),
                source_info=inner.source_info.replace(
                    name_stack=stack + inner.source_info.name_stack
                ),
            )
            for inner in closed.jaxpr.eqns
        ]

    def _split(self, equation):
        """A condition for each device: the updates of what lies there."""
        _, *operands = equation.invars
        branch = max(
            (b.jaxpr for b in equation.params["branches"]),
            key=lambda jaxpr: len(jaxpr.eqns),
        )
        inputs = [
            self.of_value[v] if isinstance(v, Var) else None for v in operands
        ]
        inside = Places(branch, inputs, self._default)
        devices = [
            inside.of_value.get(v) if isinstance(v, Var) else None
            for v in branch.outvars
        ]
        parts = []
        for device in dict.fromkeys(devices):
            used = [d == device for d in devices]
            _, part = partial_eval.dce_rules[equation.primitive](used, equation)
            parts.append(part)
        return parts


def _first_readers(jaxpr):
    readers = {}
    for equation in jaxpr.eqns:
        for variable in _variables(equation):
            readers.setdefault(variable, equation)
    return readers


def _variables(equation):
    return [v for v in equation.invars if isinstance(v, Var)]


def _bytes(variable):
    aval = variable.aval
    return getattr(aval, "size", 0) * getattr(
        getattr(aval, "dtype", None), "itemsize", 4
    )
