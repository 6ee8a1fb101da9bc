"""A traced step as one compiled program for each stage.

Programs are dispatched one after another and return at once, so that stages
that do not wait for each other run at the same time. What one makes for
another device is sent there as soon as it is asked for, and nothing here waits
for a device.
"""

import concurrent.futures
import dataclasses
import os
import typing

import jax
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr
from jax.extend.core import Jaxpr
from jax.extend.core import Literal
from jax.extend.core import Var
from jax.interpreters import partial_eval

from keras_parallel.engines.jax._labels import label_of
from keras_parallel.engines.jax._places import Places
from keras_parallel.engines.jax._puts import check_puts
from keras_parallel.planning import stage_name
from keras_parallel.planning.stages import Operation
from keras_parallel.planning.stages import Stage
from keras_parallel.planning.stages import cut_into_stages


@dataclasses.dataclass(frozen=True)
class _Transfer:
    """Values that go to one device in one call. Numbers are slots."""

    device: typing.Any
    sent: tuple[int, ...]
    received: tuple[int, ...]

    def send(self, values):
        arrays = [values[slot] for slot in self.sent]
        for slot, array in zip(
            self.received, jax.device_put(arrays, self.device)
        ):
            values[slot] = array


@dataclasses.dataclass(frozen=True)
class _Program:
    """What runs for one stage. Numbers are slots."""

    function: typing.Any
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    transfers: tuple[_Transfer, ...]
    # What nothing needs afterwards.
    frees: tuple[int, ...]


class StagedStep:
    """A step that runs in stages, for batches of one shape.

    Each value has a slot for each device on which it is needed.

    Args:
        name: Of the step, for profiles.
        traced: The step, of flat arguments.
        homes: The device of each argument; `None` for what the host sends
            wherever it is needed.
        default: The device of what could run anywhere.
        jax_devices: `Device` -> `jax.Device`.
        replaced: How many arguments, from the first on, are replaced by as
            many of the last results.
    """

    def __init__(
        self, name, traced: ClosedJaxpr, homes, default, jax_devices, replaced
    ):
        jaxpr, _ = partial_eval.dce_jaxpr(
            traced.jaxpr, [True] * len(traced.jaxpr.outvars), instantiate=True
        )
        self._jaxpr: Jaxpr = jaxpr
        self._constants = dict(zip(jaxpr.constvars, traced.consts))
        self._devices = jax_devices
        self._default = default
        new = jaxpr.outvars[len(jaxpr.outvars) - replaced :]
        at_the_end = [(v, d) for v, d in zip(new, homes) if isinstance(v, Var)]
        self._places = Places(jaxpr, homes, default, at_the_end)
        self.stages = cut_into_stages(
            self._operations(), filter(self._is_made, jaxpr.outvars)
        )
        check_puts(self, jax_devices)
        self._slots = {}
        for variable in jaxpr.invars:
            self._slot(variable, self._places.of_value[variable])
        self._needed_on = self._devices_that_need()
        # (slot, array) of what is the same in each step.
        self._held = list(self._placed_constants())
        self._first = self._transfers_of(jaxpr.invars)
        self._outputs = list(map(self._output, jaxpr.outvars))
        self._programs = self._compiled(name, dict(zip(jaxpr.invars, new)))

    def __call__(self, *arguments):
        values = [*arguments, *[None] * (len(self._slots) - len(arguments))]
        for slot, array in self._held:
            values[slot] = array
        for transfer in self._first:
            transfer.send(values)
        for program in self._programs:
            results = program.function(*[values[i] for i in program.takes])
            for slot, result in zip(program.gives, results):
                values[slot] = result
            for transfer in program.transfers:
                transfer.send(values)
            for slot in program.frees:
                values[slot] = None
        return [
            literal if slot is None else values[slot]
            for slot, literal in self._outputs
        ]

    @property
    def equations(self):
        """The equations of the step, those of several devices taken apart."""
        return self._places.equations

    @property
    def arguments(self):
        """The values that the step takes."""
        return self._jaxpr.invars

    @property
    def compiled(self):
        """What was compiled for each stage."""
        return [program.function for program in self._programs]

    def crossings(self):
        """Each value that is sent, from where and to where.

        It comes from `None` if the host sends it.
        """
        for variable, devices in self._needed_on.items():
            source = self._places.of_value[variable]
            if source is not None or variable in self._jaxpr.invars:
                yield from ((variable, source, device) for device in devices)

    def _placed_constants(self):
        for variable, value in self._constants.items():
            for device in self._needed_on.get(variable, ()):
                array = jax.device_put(value, self._devices[device])
                yield self._slot(variable, device), array

    def _operations(self):
        return [
            Operation(
                index,
                device,
                tuple(self._variables(equation.invars)),
                tuple(equation.outvars),
                # What has no label updates the state of model and metrics.
                may_wait=label_of(equation) is None,
            )
            for index, (equation, device) in enumerate(
                zip(self._places.equations, self._places.of_equation)
            )
        ]

    def _variables(self, atoms):
        return dict.fromkeys(v for v in atoms if isinstance(v, Var))

    def _is_made(self, atom):
        return isinstance(atom, Var) and not (
            atom in self._constants or atom in self._jaxpr.invars
        )

    def _slot(self, variable, device):
        return self._slots.setdefault((variable, device), len(self._slots))

    def _devices_that_need(self):
        """Value -> the devices, beside its own, on which it is needed."""
        needed = {}
        for stage in self.stages:
            for variable in stage.reads:
                if self._places.of_value[variable] != stage.place:
                    needed.setdefault(variable, {})[stage.place] = None
        for variable in self._variables(self._jaxpr.outvars):
            if self._places.of_value[variable] is None:
                # It came from the host, or is a constant.
                needed.setdefault(variable, {})[self._default] = None
        return needed

    def _transfers_of(self, variables):
        together = {}
        for variable in variables:
            for device in self._needed_on.get(variable, ()):
                together.setdefault(device, []).append(variable)
        return tuple(
            _Transfer(
                self._devices[device],
                tuple(self._slot(v, self._places.of_value[v]) for v in group),
                tuple(self._slot(v, device) for v in group),
            )
            for device, group in together.items()
        )

    def _output(self, atom):
        if isinstance(atom, Literal):
            return None, atom.val
        device = self._places.of_value[atom] or self._default
        return self._slot(atom, device), None

    def _compiled(self, name, replaced):
        last_use = {}
        for index, stage in enumerate(self.stages):
            for variable in stage.reads:
                last_use[self._slot(variable, stage.place)] = index
        kept = {slot for slot, _ in self._outputs}
        laid_out, to_compile = [], []
        for index, stage in enumerate(self.stages):
            takes = [self._slot(v, stage.place) for v in stage.reads]
            ended = [last_use[s] == index and s not in kept for s in takes]
            donated = [
                i
                for i, v in enumerate(stage.reads)
                # The new value takes the place of the old one in memory.
                if ended[i] and replaced.get(v) in stage.writes
            ]
            program = stage_name(name, stage.place, index)
            to_compile.append((program, stage, donated))
            laid_out.append(
                (
                    tuple(takes),
                    tuple(self._slot(v, stage.place) for v in stage.writes),
                    self._transfers_of(stage.writes),
                    tuple(slot for slot, end in zip(takes, ended) if end),
                )
            )
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            functions = pool.map(lambda job: self._compile(*job), to_compile)
            return [_Program(f, *rest) for f, rest in zip(functions, laid_out)]

    def _compile(self, name, stage: Stage, donated):
        equations = [self._places.equations[i] for i in stage.operations]
        jaxpr = self._jaxpr.replace(
            constvars=[],
            invars=list(stage.reads),
            outvars=list(stage.writes),
            eqns=equations,
            effects={effect for e in equations for effect in e.effects},
            debug_info=self._jaxpr.debug_info.with_unknown_names(),
        )

        def function(*args):
            return eval_jaxpr(jaxpr, [], *args)

        function.__name__ = name
        arguments = [
            jax.ShapeDtypeStruct(
                v.aval.shape,
                v.aval.dtype,
                weak_type=getattr(v.aval, "weak_type", False),
            )
            for v in stage.reads
        ]
        step = jax.jit(function, donate_argnums=donated)
        # By a sharding all results would be committed to their device, and a
        # callback could not compute with two of them.
        with jax.default_device(self._devices[stage.place]):
            return step.lower(*arguments).compile()
