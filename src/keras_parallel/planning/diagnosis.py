"""Names the bottleneck of a training step, from what was measured.

The rules are data, in the order in which they are tried: first what makes the
rest of the measurement mean little, then what the devices wait for. The limits
are shares of a step, never absolute times, so that a slow machine is told the
same as a fast one.
"""

import dataclasses
from collections.abc import Callable

from keras_parallel.planning.against import KindAgainstPlan
from keras_parallel.planning.step_time import PARTS
from keras_parallel.planning.step_time import StepTime

# The batch and the one that is left at the end of an epoch.
_USUAL_SHAPES = 2
_WAITS_FOR_INPUT = 0.4
_WAITS_FOR_CALLBACKS = 0.25
_COMMUNICATES = 0.25
_COMMUNICATES_AT_LEAST = 0.03
_WAITS_FOR_HOST = 0.4
# Gradients below this are exchanged in the time that any exchange takes.
_LARGE_GRADIENTS = 2**20
# An accelerator does thousands of operations in the time in which it exchanges
# a byte with another. A dense layer does 1.5 for each row and byte of gradient.
_OPERATIONS_PER_BYTE = 64
_MOST = 0.5
# A bound on the speed-up below which further devices give room, not speed.
_WORTH_A_DEVICE = 1.2


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What a check measured of the steps of a parallel model.

    Args:
        devices: How many devices.
        steps: How many steps were taken, with those that compile.
        rows: Rows of the usual batch.
        shapes: How many shapes of a batch there were in them.
        compilations: How often the step was compiled in them.
        compile_seconds: How long that took in all, in seconds.
        split: Whether the usual batch was split by rows.
        time: The parts of a step.
        compiled: Whether steps are compiled.
        virtual: Whether the devices share the cores of a host.
        callback: The class name of the callback whose hooks of batches took
            longest, if any took time.
        waiting_callback: The class name of one with a hook after each batch,
            for which Keras waits for the logs, if there is one.
        logs_share: The share of that wait in the time for callbacks.
        gradient_bytes: Size of all gradients.
        largest: Path and gradient bytes of the layer with the most of them.
        flops: Floating-point operations of a step on a device, if known.
        steps_per_execution: How many steps Keras starts at once.
        against_plan: What crosses, held against the plan.
        in_stages: Whether each device computes a part of the model, and all
            rows of it.
        speedup_bound: By how much parts that run at the same time can make a
            step faster, at most, if known.
        sent_bytes: Size of what parts of the model send to each other in a
            step.
    """

    devices: int
    steps: int
    rows: int
    shapes: int
    compilations: int
    compile_seconds: float
    split: bool
    time: StepTime
    compiled: bool = True
    virtual: bool = False
    callback: str | None = None
    waiting_callback: str | None = None
    logs_share: float = 0.0
    gradient_bytes: int = 0
    largest: tuple[str, int] = ("", 0)
    flops: float | None = None
    steps_per_execution: int = 1
    against_plan: tuple[KindAgainstPlan, ...] = ()
    in_stages: bool = False
    speedup_bound: float | None = None
    sent_bytes: int = 0

    @property
    def unplanned(self) -> tuple[KindAgainstPlan, ...]:
        """What is more than was planned, the most of it first."""
        rows = [row for row in self.against_plan if not row.ok]
        return tuple(sorted(rows, key=lambda r: r.planned - r.compiled))

    @property
    def next_rows(self) -> int:
        """The next number of rows that divides by the devices."""
        return -(-self.rows // self.devices) * self.devices


@dataclasses.dataclass(frozen=True)
class Rule:
    """One bottleneck.

    Args:
        name: Its name, for programs.
        applies: Whether it is the one.
        says: One sentence: what it is, and what to do.
    """

    name: str
    applies: Callable[[Evidence], bool]
    says: Callable[[Evidence], str]


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """The bottleneck that was found.

    Args:
        name: The name of the rule, such as `"input"`.
        sentence: What it is, and what to do.
    """

    name: str
    sentence: str


def diagnose(evidence: Evidence) -> Diagnosis:
    """Returns what the first rule that applies says."""
    rule = next(rule for rule in RULES if rule.applies(evidence))
    return Diagnosis(rule.name, rule.says(evidence))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _more_than_planned(e: Evidence) -> str:
    row = e.unplanned[0]
    largest = f", {row.unplanned[0].purpose!r}" if row.unplanned else ""
    planned = (
        f"where {_size(row.planned)} are planned"
        if row.planned
        else "which is not planned"
    )
    return (
        f"More than planned: in each step {_size(row.compiled)} go "
        f"{'from' if e.in_stages else 'into'} {row.kind}{largest}, {planned}; "
        "something in the model or in "
        "its step needs rows or values of other devices: change it, or count "
        "on that exchange."
    )


def _eager(e: Evidence) -> str:
    return (
        "Eager steps: every operation is started by Python on its own; let "
        "the step be compiled, `model.compile(..., run_eagerly=False, "
        'jit_compile="auto")`.'
    )


def _recompiles(e: Evidence) -> bool:
    return e.shapes > _USUAL_SHAPES and e.compilations > _USUAL_SHAPES


def _recompilation(e: Evidence) -> str:
    each = e.compile_seconds / e.compilations
    return (
        f"Recompilation: {e.shapes} shapes of batch in {e.steps} steps were "
        f"compiled one by one, {each:.2g} s each; pad batches to one shape, or "
        "to a few, or drop the rows that make another."
    )


def _compiles_each_step(e: Evidence) -> bool:
    return e.compilations > max(e.shapes, _USUAL_SHAPES)


def _compilation(e: Evidence) -> str:
    return (
        f"Recompilation: the step was compiled {e.compilations} times for "
        f"{e.shapes} shape{'s' * (e.shapes > 1)} of batch; give batches one "
        "dtype and one structure, and change no Python value that the step "
        "reads."
    )


def _is_whole(e: Evidence) -> bool:
    return e.devices > 1 and not e.split


def _whole(e: Evidence) -> str:
    rows = "1 row does" if e.rows == 1 else f"{e.rows} rows do"
    return (
        f"Uneven batches: {rows} not divide by {e.devices} devices, "
        "so that each device computes the whole batch; a batch_size of "
        f"{e.next_rows} is shared out, {e.next_rows // e.devices} "
        f"row{'s' * (e.next_rows > e.devices)} each."
    )


def _input(e: Evidence) -> str:
    return (
        f"Input: the devices wait for your data in {_percent(_of(e, 'input'))} "
        "of a step; prepare batches beside the training (`workers` of a "
        "PyDataset, `num_workers` of a DataLoader, `prefetch` of a tf.data "
        "dataset) or once, before it."
    )


def _callbacks(e: Evidence) -> str:
    share = _percent(_of(e, "callbacks"))
    waits = "a hook after each batch makes Keras wait for its logs"
    if e.waiting_callback and e.logs_share >= _MOST:
        return (
            f"Callbacks: {share} of a step goes by for a hook after each "
            f"batch (`{e.waiting_callback}` has one), and most of it in "
            "waiting: such a hook, even an empty one, makes Keras wait for "
            "the logs of each batch; move the work to `on_epoch_end`"
            f"{_or_more_steps(e, ', or start several steps at once,')}."
        )
    name = f" (most of it in `{e.callback}`)" if e.callback else ""
    because = f" ({waits})" if e.waiting_callback else ""
    return (
        f"Callbacks: {share} of a step goes by in callbacks{name}, for which "
        f"the devices wait at every batch{because}; move the work to "
        "`on_epoch_end`, or do it every n-th batch."
    )


def _of(e: Evidence, *parts: str) -> float:
    return e.time.share(*parts)


def _has_large_gradients(e: Evidence) -> bool:
    few = e.gradient_bytes < _LARGE_GRADIENTS
    if e.devices == 1 or e.in_stages or few:
        return False
    if e.flops is None:
        return _of(e, "communication") >= _COMMUNICATES
    # The fewer operations there are, the surer it is from bytes alone: times
    # of devices that share a host are noisy, bytes are not.
    computing = e.flops / e.gradient_bytes / _OPERATIONS_PER_BYTE
    return computing < 1 and _of(e, "communication") >= (
        _COMMUNICATES_AT_LEAST + _COMMUNICATES * computing
    )


def _is_one_layer(e: Evidence) -> bool:
    return _has_large_gradients(e) and e.largest[1] > _MOST * e.gradient_bytes


def _layer(e: Evidence) -> str:
    name, size = e.largest
    return (
        f"Communication: {_percent(size / e.gradient_bytes)} of the "
        f"{e.gradient_bytes / 1e6:.1f} MB of gradients that devices exchange "
        f"in each step are of the layer {name!r}, and a batch of {e.rows} rows "
        "gives them little to compute meanwhile; make that layer smaller "
        "(pooling before it, fewer units), or batch_size larger: what is "
        "exchanged does not grow with it."
    )


def _gradients(e: Evidence) -> str:
    return (
        f"Communication: {_percent(_of(e, 'communication'))} of a step "
        f"goes by in exchanging {e.gradient_bytes / 1e6:.1f} MB of gradients "
        f"and waiting for it; a batch_size larger than {e.rows} gives the "
        "devices more to compute for the same exchange."
    )


def _is_tiny(e: Evidence) -> bool:
    if e.gradient_bytes >= _LARGE_GRADIENTS * 16:
        return False
    # What is exchanged is small: it is the start of it that takes time. Of
    # virtual devices it is their turn on the cores of the host.
    waiting = _of(e, "communication")
    starting = _of(e, "host") + (0.0 if e.virtual else waiting)
    rest = 1.0 - (waiting if e.virtual else 0.0)
    return starting >= _WAITS_FOR_HOST * rest and (
        _of(e, "host") >= _of(e, "compute")
    )


def _tiny(e: Evidence) -> str:
    share = _percent(_of(e, "host", "communication"))
    return (
        f"Tiny steps: {share} of a step starts work and waits for it to begin, "
        f"and {_percent(_of(e, 'compute'))} computes; a batch_size larger than "
        f"{e.rows}{_or_more_steps(e)} does more per start."
    )


def _or_more_steps(e: Evidence, joined_by: str = " or") -> str:
    if e.steps_per_execution > 1:
        return ""
    return f"{joined_by} `model.compile(..., steps_per_execution=10)`"


def _sends(e: Evidence) -> bool:
    return e.in_stages and _of(e, "communication") >= _COMMUNICATES


def _sending(e: Evidence) -> str:
    return (
        f"Transfers: {_percent(_of(e, 'communication'))} of a step goes by in "
        f"sending {_size(e.sent_bytes)} from device to device while none "
        "computes; cut the model where tensors are small, "
        "`print(keras_parallel.plan(model))` lists them."
    )


def _is_a_chain(e: Evidence) -> bool:
    bound = e.speedup_bound
    return (
        e.in_stages
        and bound is not None
        and bound < _WORTH_A_DEVICE
        and _of(e, "compute") >= _MOST
    )


def _chain(e: Evidence) -> str:
    return (
        "One after another: the parts of this model wait for each other, so "
        f"that {e.devices} devices hold a larger model and compute no faster; "
        "give branches that do not need each other devices of their own, or "
        "use `data_parallel` if the model fits on one device."
    )


def _waits(e: Evidence) -> bool:
    return e.devices > 1 and _of(e, "communication") >= _WAITS_FOR_HOST


def _waiting(e: Evidence) -> str:
    share = _percent(_of(e, "communication"))
    if e.virtual:
        return (
            f"Waiting: {share} of a step goes by in exchanging and in waiting "
            "for one another, and virtual devices wait for their turn on the "
            "cores of this host; fewer of them run faster here, and only real "
            "devices tell more."
        )
    return (
        f"Waiting: {share} of a step goes by in exchanging and in waiting for "
        f"the slowest device; a batch_size larger than {e.rows} makes that "
        "rarer."
    )


def _compute(e: Evidence) -> str:
    return (
        f"Compute: the devices compute in {_percent(_of(e, 'compute'))} of a "
        "step, which is what they are for; more devices, or mixed precision "
        "(`keras.config.set_dtype_policy('mixed_bfloat16')`), go on from here."
    )


def _mixed(e: Evidence) -> str:
    parts = {part: _of(e, part) for part in PARTS}
    largest = sorted(parts, key=lambda part: -parts[part])[:3]
    shares = ", ".join(f"{part} {_percent(parts[part])}" for part in largest)
    return (
        f"No one thing: a step is made of {shares}; a batch_size larger than "
        f"{e.rows} makes computing the larger part of it."
    )


RULES = (
    Rule("more than planned", lambda e: bool(e.unplanned), _more_than_planned),
    Rule("eager steps", lambda e: not e.compiled, _eager),
    Rule("recompilation", _recompiles, _recompilation),
    Rule("recompilation", _compiles_each_step, _compilation),
    Rule("uneven batches", _is_whole, _whole),
    Rule("input", lambda e: _of(e, "input") >= _WAITS_FOR_INPUT, _input),
    Rule(
        "callbacks",
        lambda e: _of(e, "callbacks") >= _WAITS_FOR_CALLBACKS,
        _callbacks,
    ),
    Rule("large layer", _is_one_layer, _layer),
    Rule("gradients", _has_large_gradients, _gradients),
    Rule("tiny steps", _is_tiny, _tiny),
    Rule("transfers", _sends, _sending),
    Rule("one after another", _is_a_chain, _chain),
    Rule("waiting", _waits, _waiting),
    Rule("compute", lambda e: _of(e, "compute") >= _MOST, _compute),
    Rule("mixed", lambda e: True, _mixed),
)
