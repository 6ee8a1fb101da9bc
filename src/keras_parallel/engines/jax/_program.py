"""Reads what XLA compiled: the text of a module in HLO, and its sizes.

HLO is described at https://openxla.org/xla/operation_semantics. Its text is no
promise of XLA's; what is read here is the type, the operation, the operands
and the metadata of an instruction, which are the same on CPU and GPU.
"""

import dataclasses
import re
import time

import jax

from keras_parallel.planning import COLLECTIVES
from keras_parallel.planning import Collective
from keras_parallel.planning import Program

_BITS = {"pred": 8, "token": 0, "opaque": 0}
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,<=]*)\]")
_COMPUTATION = re.compile(r"^(?:ENTRY\s+)?%?([\w.\-]+)\s.*->.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT\s+)?%?([\w.\-]+) = (.*)$")
_OPERATION = re.compile(r"(?:^|\s)([a-z][a-z\-]*)\(")
_CALLED = re.compile(
    r"\b(?:body|condition|calls|to_apply|true_computation|false_computation)="
    r"%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_BODY = re.compile(r"\bbody=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_PURPOSE = re.compile(r'\bop_name="([^"]*)"')
IN_A_LOOP = "in a loop, each pass: "


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    type: str
    operation: str
    operands: tuple[str, ...]
    text: str


def compiled_step(model, kind, batch):
    """Compiles a step of a parallel model and describes it as a `Program`.

    JAX knows a function again, so that a step which has run for such a batch
    is not compiled once more.
    """
    # The very arguments of Keras's `make_train_function`, and what it asks for.
    state = model._get_jax_state(
        trainable_variables=True,
        non_trainable_variables=True,
        metrics_variables=True,
        optimizer_variables=kind == "train",
    )
    placed = model._keras_parallel.batch_preparation(model, kind)(batch)
    step = jax.jit(getattr(model, f"{kind}_step"), donate_argnums=0)
    start = time.perf_counter()
    compiled = step.lower(state, placed).compile()
    seconds = time.perf_counter() - start
    cost = compiled.cost_analysis() or {}
    memory = compiled.memory_analysis()
    return Program(
        name=f"{kind}_step",
        collectives=collectives_of(compiled.as_text()),
        flops=cost.get("flops"),
        argument_bytes=getattr(memory, "argument_size_in_bytes", 0),
        output_bytes=getattr(memory, "output_size_in_bytes", 0),
        temporary_bytes=getattr(memory, "temp_size_in_bytes", 0),
        compile_seconds=seconds,
    )


def collectives_of(text):
    """The collectives of a module.

    Args:
        text: The module, as text.

    Returns:
        A tuple of `Collective`. An asynchronous one, of two instructions, is
        one. In a loop it counts once for each pass; where XLA does not know
        how many there are, its purpose says so.
    """
    computations = _computations(text)
    types = {
        instruction.name: instruction.type
        for instructions in computations.values()
        for instruction in instructions
    }
    calls = _calls(computations)
    found = []
    for computation, instructions in computations.items():
        for instruction in instructions:
            kind = instruction.operation.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            count, known = _passes(computation, calls, ())
            purpose = _PURPOSE.search(instruction.text)
            purpose = purpose[1] if purpose else instruction.name
            found.append(
                Collective(
                    kind,
                    purpose if known else IN_A_LOOP + purpose,
                    count * _bytes_in(instruction, types),
                    count,
                )
            )
    return tuple(found)


def _computations(text):
    computations, current = {}, None
    for line in text.splitlines():
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            header = _COMPUTATION.match(line)
            if header:
                current = computations.setdefault(header[1], [])
        elif current is not None:
            current.append(_parsed(*instruction.groups()))
    return computations


def _parsed(name, rest):
    # The type comes first: a tuple of types is the only one with parentheses.
    end = _closing(rest) if rest.startswith("(") else rest.find(" ")
    type_, rest = rest[:end], rest[end:]
    operation = _OPERATION.search(rest)
    if operation is None:
        return _Instruction(name, type_, "", (), rest)
    start = operation.end() - 1
    inside = rest[start + 1 : start + _closing(rest[start:]) - 1]
    operands = tuple(re.findall(r"%([\w.\-]+)", inside))
    if not operands:
        # Newer text leaves the sign out.
        operands = tuple(part.split()[-1] for part in inside.split(",") if part)
    return _Instruction(name, type_, operation[1], operands, rest)


def _closing(text):
    """The position after the parenthesis that closes the first one."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return i + 1
    return len(text)


def _bytes_in(instruction, types):
    """Size of what a device puts in."""
    sizes = [_size(types[o]) for o in instruction.operands if o in types]
    return sum(sizes) if sizes else _size(instruction.type)


def _size(type_):
    bits = 0
    for dtype, dims in _SHAPE.findall(type_):
        count = 1
        for dim in dims.split(","):
            count *= int(dim.lstrip("<=")) if dim else 1
        bits += count * _bits(dtype)
    return bits // 8


def _bits(dtype):
    known = _BITS.get(dtype)
    if known is not None:
        return known
    width = re.match(r"[a-z]+(\d+)", dtype)
    return int(width[1]) if width else 0


def _calls(computations):
    """Computation -> its callers, how often each calls it, if that is known."""
    calls = {}
    for caller, instructions in computations.items():
        for instruction in instructions:
            if instruction.operation in ("async-update", "async-done"):
                continue  # They name again what `async-start` calls.
            body = _BODY.search(instruction.text)
            trips = _TRIPS.search(instruction.text)
            called = _CALLED.findall(instruction.text)
            for branches in _BRANCHES.findall(instruction.text):
                called += re.findall(r"[\w.\-]+", branches)
            for name in called:
                times, known = 1, True
                if body and name == body[1]:
                    times = int(trips[1]) if trips else 1
                    known = bool(trips)
                calls.setdefault(name, []).append((caller, times, known))
    return calls


def _passes(name, calls, above):
    """How often a run goes through a computation, and if that is known."""
    if name not in calls:
        return 1, True
    count, known = 0, True
    for caller, times, sure in calls[name]:
        if caller not in above:
            outer, outer_known = _passes(caller, calls, (*above, name))
            count += times * outer
            known = known and sure and outer_known
    return count, known
