"""What a check found, to read and for programs."""

import dataclasses
import textwrap
from typing import Any

from keras_parallel.planning.against import KindAgainstPlan
from keras_parallel.planning.diagnosis import Diagnosis
from keras_parallel.planning.program import Program
from keras_parallel.planning.step_time import PARTS
from keras_parallel.planning.step_time import StepTime

_WIDTH = 88
# So many names of devices are written out.
_NAMES = 4
_JUDGED = (
    "ok",
    "equal",
    "compared",
    "within_plan",
    "speed_up",
    "efficiency",
)
_KINDS = {
    "log": "loss and metrics",
    "weight": "weights",
    "slot": "optimizer slots",
    "state": "other variables",
}
_MEANING = {
    "input": "devices wait for your data",
    "callbacks": "devices wait for your callbacks",
    "host": "devices wait for Keras's loop, placing, starting",
    "compute": "devices compute",
    "communication": "devices exchange, or wait for one another",
}


@dataclasses.dataclass(frozen=True)
class LargestDifference:
    """The largest difference between one device and all, among some tensors.

    Args:
        among: `"log"`, `"weight"`, `"slot"` or `"state"`.
        difference: Relative to the largest entry of the tensor. 0 is what
            rounding leaves.
        allowed: What it may be.
        own: What one device differs from itself; 0 if that was not measured,
            because the difference is no larger than rounding explains.
        name: The tensor.
        step: The step, counted from 1; 0 if there is none.
        gap: Why too little was compared to call the model equal, in words;
            empty if enough was.
    """

    among: str
    difference: float
    allowed: float
    own: float = 0.0
    name: str = ""
    step: int = 0
    gap: str = ""

    @property
    def ok(self) -> bool:
        """Whether the difference is allowed."""
        return self.difference <= self.allowed


@dataclasses.dataclass(frozen=True)
class Report:
    """What `check` found. Print it to read it.

    Args:
        model: Name of the model.
        devices: Names of the devices.
        virtual: Whether they are virtual.
        batch_size: Rows of the usual batch.
        rows_each: Rows of it that each device computes.
        steps: How many steps were compared and measured.
        differences: The largest differences, one for each kind of tensor.
        noise: Names of tensors that were left out, with the steps if they
            were compared in others: they hold rounding noise only, or nothing
            that is finite.
        program: What was compiled, `None` if steps are not compiled.
        against_plan: The collectives held against the plan, `None` if there
            is no plan.
        time: The parts of a step, in seconds.
        compilations: How often the step was compiled.
        step_seconds: A step on all devices, the batches in memory, without
            callbacks.
        one_device_seconds: The same on one device, in plain Keras.
        bottleneck: What limits a step, and what to do.
        notes: What else a reader should know, in sentences.
    """

    model: str
    devices: tuple[str, ...]
    virtual: bool
    batch_size: int
    rows_each: int
    steps: int
    differences: tuple[LargestDifference, ...]
    noise: tuple[str, ...]
    program: Program | None
    against_plan: tuple[KindAgainstPlan, ...] | None
    time: StepTime
    compilations: int
    step_seconds: float
    one_device_seconds: float
    bottleneck: Diagnosis
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all devices give what one gives, as far as that is exact."""
        return self.compared and all(d.ok for d in self.differences)

    @property
    def compared(self) -> bool:
        """Whether enough was compared: the loss, and most tensors."""
        return not any(d.gap for d in self.differences)

    @property
    def within_plan(self) -> bool:
        """Whether no more is exchanged than was planned, as far as known."""
        return all(row.ok for row in self.against_plan or ())

    @property
    def ok(self) -> bool:
        """Whether it was found equal to one device, and within the plan."""
        return self.equal and self.within_plan

    @property
    def speed_up(self) -> float:
        """The time of a step on one device over that on all."""
        return self.one_device_seconds / self.step_seconds

    @property
    def efficiency(self) -> float:
        """The speed-up over the number of devices."""
        return self.speed_up / len(self.devices)

    def to_dict(self) -> dict[str, Any]:
        """The report as numbers, strings, lists and dicts, for JSON."""
        plain = dataclasses.asdict(self)
        if self.program is not None:
            plain["program"]["collectives"] = [
                dataclasses.asdict(c) for c in self.program.collectives
            ]
        for name in _JUDGED:
            plain[name] = getattr(self, name)
        return _finite(plain)

    def __str__(self) -> str:
        return "\n".join(
            line.rstrip()
            for part in (
                _head(self),
                _equality(self),
                _compiled(self),
                _times(self),
                _end(self),
            )
            for line in part
        )


def _finite(value: Any) -> Any:
    """The same without what JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inside) for inside in value]
    if isinstance(value, float) and value - value != 0.0:
        return str(value)
    return value


def _head(report):
    count = len(report.devices)
    of = f"{count} {'virtual ' * report.virtual}device{'s' * (count > 1)}"
    layout = f"{report.rows_each} on each device"
    names = list(report.devices)
    if count > _NAMES:
        names = [names[0], "...", names[-1]]
    yield f"Check of {report.model!r} on {of}: {', '.join(names)}"
    if report.program is not None and report.program.parts > 1:
        layout = "which go from device to device"
    yield f"{report.steps} steps of {report.batch_size} rows, {layout}"


def _equality(report):
    wrong = not all(found.ok for found in report.differences)
    verdict = "yes" if report.compared else "NOT COMPARED"
    verdict = "NO" if wrong else verdict
    yield ""
    yield f"Equal to one device: {verdict} (each step from the same state)"
    width = max(map(len, _KINDS.values()))
    for found in report.differences:
        label = _KINDS[found.among]
        where = f"{found.name}, step {found.step}"
        for text in textwrap.wrap(found.gap, _WIDTH):
            yield f"  {text}"
        if not found.step:
            continue
        if found.difference == 0.0:
            yield f"  {label:<{width}}  no more than rounding"
            continue
        own = f", one device itself {found.own:.1e}" if found.own else ""
        yield (
            f"  {label:<{width}}  {found.difference:.1e} of the largest entry "
            f"(allowed {found.allowed:.1e}{own})"
        )
        yield f"  {'':<{width}}  {'' if found.ok else 'WRONG: '}{where}"
    if report.noise:
        yield "  not compared, rounding noise only: " + ", ".join(report.noise)


def _compiled(report):
    yield ""
    program = report.program
    if program is None:
        yield "Compiled: nothing, steps run eagerly"
        return
    parts = f" as {program.parts} programs" if program.parts > 1 else ""
    yield (
        f"Compiled: `{program.name}`{parts}, in {program.compile_seconds:.2g} s"
    )
    work = "unknown" if program.flops is None else _si(program.flops, "")
    yield (
        f"  {'together' if parts else 'on each device'}: {work} operations; "
        f"{_size(program.argument_bytes)} "
        f"in, {_size(program.output_bytes)} out, "
        f"{_size(program.temporary_bytes)} beside"
    )
    if not program.collectives and not parts:
        yield "  collectives: none"
    yield from _sent(program)
    for c in _largest(program.collectives):
        yield (
            f"  {f'{c.count} x ' * (c.count > 1)}{c.kind}  "
            f"{_size(c.bytes):>9}  {_purpose(c.purpose)}"
        )
    rest = len(program.collectives) - len(_largest(program.collectives))
    if rest:
        size = sum(c.bytes for c in program.collectives)
        yield f"  and {rest} smaller; {_size(size)} in all"
    yield from _against_plan(report)


def _sent(program):
    between = [t for t in program.transfers if t.source is not None]
    if not between:
        return
    size = _size(sum(t.bytes for t in between))
    yield f"  between devices: {size} in {len(between)} arrays"
    for t in _largest(between):
        yield (
            f"  {t.source.name} to {t.target.name}  {_size(t.bytes):>9}  "
            f"{_purpose(t.what)}"
        )


def _against_plan(report):
    if report.against_plan is None:
        yield "  held against the plan: there is no plan of this model"
    for row in report.against_plan or ():
        ratio = "" if row.ratio is None else f", {row.ratio:.2f} of it"
        yield (
            f"  plan, {row.kind}: {_size(row.planned)} planned, "
            f"{_size(row.compiled)} compiled{ratio}"
            f"{'' if row.ok else ': MORE THAN PLANNED'}"
        )
        for c in row.unplanned:
            yield f"    {_size(c.bytes)}  {_purpose(c.purpose)}"


def _largest(collectives):
    return sorted(collectives, key=lambda c: -c.bytes)[:5]


def _purpose(text):
    text = text.removeprefix("jit(train_step)/")
    return text if len(text) <= 56 else text[:53] + "..."


def _times(report):
    time = report.time
    yield ""
    yield f"Time of a step: {_ms(time.total)}"
    width = max(map(len, PARTS))
    for part in PARTS:
        yield (
            f"  {part:<{width}}  {_ms(getattr(time, part)):>10}  "
            f"{100 * time.share(part):4.0f} %  {_MEANING[part]}"
        )
    count = report.compilations
    yield (
        f"  and {time.compilation:.2g} s of compilation before or between the "
        f"steps, {count} time{'s' * (count != 1)}"
    )
    yield (
        f"One device: {_ms(report.one_device_seconds)}, all devices: "
        f"{_ms(report.step_seconds)} (batches in memory, no callbacks)"
    )
    yield (
        f"  speed-up {report.speed_up:.2f}, efficiency "
        f"{100 * report.efficiency:.0f} %"
    )


def _end(report):
    for text in (*report.notes, f"What limits it: {_sentence(report)}"):
        yield ""
        yield from textwrap.wrap(text, _WIDTH, break_on_hyphens=False)


def _sentence(report):
    text = report.bottleneck.sentence
    return text[0].lower() + text[1:]


def _ms(seconds):
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _size(count):
    return _si(count, "B")


def _si(number, unit):
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.1f} {prefix}{unit}"
    return f"{number:.0f} {unit}".rstrip()
