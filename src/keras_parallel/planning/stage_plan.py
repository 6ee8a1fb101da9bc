"""The plan of a model in stages: what runs where, and what is sent."""

import dataclasses
import os
import typing

from keras_parallel._errors import PlanError
from keras_parallel.planning._figure import check_picture_path
from keras_parallel.planning.devices import Device
from keras_parallel.planning.plan import DeviceShare
from keras_parallel.planning.tensors import Tensor

if typing.TYPE_CHECKING:
    from matplotlib.figure import Figure

# Floating-point operations, and the numbers of stages.
_Path = tuple[float, tuple[int, ...]]
# Why a tensor goes from one place to another.
PURPOSES = ("input", "activation", "gradient", "weight", "state")


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A tensor that goes from one place to another in each training step.

    Args:
        what: The tensor: the call that makes it, the input, or the weight.
        purpose: One of `PURPOSES`. A gradient is that of `what`.
        source: Where it comes from; `None` is the host.
        target: Where it goes to.
        bytes: Its size, `None` if the data decides.
        shape: Its dims, if it is one tensor.
        dtype: Its dtype, likewise.
    """

    what: str
    purpose: str
    source: Device | None
    target: Device
    bytes: int | None
    shape: tuple[int | None, ...] | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.purpose not in PURPOSES:
            raise PlanError(
                f"A transfer has one of the purposes {list(PURPOSES)}. "
                f"Received: purpose={self.purpose!r}. A call that works: "
                "`Transfer('x', 'activation', source, target, 4)`."
            )
        if self.source == self.target:
            raise PlanError(
                "A transfer goes to another place. Received: "
                f"{self.what!r}, from {self.source} to {self.target}. A call "
                "that works: `keras_parallel.plan(model)`."
            )


@dataclasses.dataclass(frozen=True)
class PlannedStage:
    """Calls that run as one program on one device, forward.

    Args:
        device: Where they run.
        calls: Their names, in order.
        after: The numbers of the stages that have to have run.
        weights: Size of the variables that live here and that it uses first,
            in bytes.
        activations: What it keeps for the backward pass, in bytes for a
            batch; `None` if that is not known.
        flops: Floating-point operations for a batch, `None` if not known.
    """

    device: Device
    calls: tuple[str, ...]
    after: tuple[int, ...]
    weights: int
    activations: int | None
    flops: float | None


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """Where each part of a device-parallel model runs, and what is sent.

    `print` it for tables; a notebook shows it as such.

    Args:
        model: Name of the model.
        batch_size: Rows of a batch: each device computes all of them.
        default: The device of what has no scope.
        shares: What each device holds.
        stages: The stages of the forward pass. The backward pass has the
            same ones, in the opposite order.
        transfers: What is sent in each training step.
        placement: The device of each call, for `device_parallel(placement=)`
            and for JSON.
        losses: The name of each output that has a loss -> the device on
            which that is computed.
        notes: What else a reader should know, in sentences.
    """

    model: str
    batch_size: int
    default: Device
    shares: tuple[DeviceShare, ...]
    stages: tuple[PlannedStage, ...]
    transfers: tuple[Transfer, ...]
    placement: dict[str, str]
    losses: dict[str, Device] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        devices = [share.device for share in self.shares]
        if not devices or len(set(devices)) < len(devices):
            raise PlanError(
                "A plan has one share for each of its devices. Received: "
                f"shares for {[d.name for d in devices]}. A call that works: "
                "`keras_parallel.plan(model)`."
            )
        used = [stage.device for stage in self.stages]
        used += [transfer.target for transfer in self.transfers]
        used += [t.source for t in self.transfers if t.source is not None]
        for device in [self.default, *used]:
            if device not in devices:
                raise PlanError(
                    "A part of a model runs on a device of the plan. Received: "
                    f"{device.name!r}, and there are shares for "
                    f"{[d.name for d in devices]}. A call that works: "
                    "`keras_parallel.plan(model)`."
                )
        for number, stage in enumerate(self.stages):
            if any(not 0 <= other < number for other in stage.after):
                raise PlanError(
                    "A stage runs after stages that come before it. Received: "
                    f"stage {number} after {list(stage.after)}. A call that "
                    "works: `keras_parallel.plan(model)`."
                )

    @property
    def bytes_per_step(self) -> int:
        """All that goes between devices in a training step, in bytes."""
        return sum(t.bytes or 0 for t in self.transfers if t.source is not None)

    @property
    def critical_path(self) -> tuple[int, ...]:
        """The stages that nothing can run beside: the longest chain of them.

        Counted in floating-point operations, and without transfers. Empty if
        the operations are not known.
        """
        longest: list[_Path] = []
        for number, stage in enumerate(self.stages):
            if stage.flops is None:
                return ()
            before = _longest([longest[other] for other in stage.after])
            longest.append((before[0] + stage.flops, (*before[1], number)))
        return _longest(longest)[1]

    @property
    def speedup_bound(self) -> float | None:
        """How many times as fast as one device it can be, at most.

        If nothing but floating-point operations took time: the critical path
        and what the busiest device computes limit it. `None` if the
        operations are not known.
        """
        path = self.critical_path
        flops = [stage.flops or 0.0 for stage in self.stages]
        busy = [
            sum(n for n, s in zip(flops, self.stages) if s.device == x.device)
            for x in self.shares
        ]
        least = max([sum(flops[i] for i in path), *busy])
        return sum(flops) / least if path and least else None

    def __str__(self) -> str:
        from keras_parallel.planning._stage_table import text_of

        return text_of(self)

    def _repr_html_(self) -> str:
        from keras_parallel.planning._stage_table import html_of

        return html_of(self)

    def to_dict(self) -> dict[str, typing.Any]:
        """The whole plan in numbers, strings, lists and dicts.

        Returns:
            What `json.dumps` takes. Sizes are in bytes.
        """
        return {
            "model": self.model,
            "batch_size": self.batch_size,
            "default": self.default.name,
            "devices": [share.to_dict() for share in self.shares],
            "stages": [
                {
                    "device": stage.device.name,
                    "calls": list(stage.calls),
                    "after": list(stage.after),
                    "weights": stage.weights,
                    "activations": stage.activations,
                    "activations_per_row": self.per_row(stage.activations),
                    "flops": stage.flops,
                }
                for stage in self.stages
            ],
            "transfers": [
                {
                    "what": transfer.what,
                    "purpose": transfer.purpose,
                    "source": transfer.source and transfer.source.name,
                    "target": transfer.target.name,
                    "shape": transfer.shape and list(transfer.shape),
                    "dtype": transfer.dtype,
                    "bytes": transfer.bytes,
                }
                for transfer in self.transfers
            ],
            "bytes_per_step": self.bytes_per_step,
            "critical_path": list(self.critical_path),
            "speedup_bound": self.speedup_bound,
            "placement": dict(self.placement),
            "losses": {name: d.name for name, d in self.losses.items()},
            "notes": list(self.notes),
        }

    def per_row(self, size: int | None) -> int | None:
        """The part of one row, rounded up."""
        return None if size is None else -(-size // self.batch_size)

    def plot(self, path: "str | os.PathLike[str] | None" = None) -> "Figure":
        """Draws a lane for each device, its stages, and what is sent.

        Args:
            path: Where to write the picture; the suffix says in which
                format, such as `"plan.png"` or `"plan.svg"`. `None` writes
                nothing.

        Returns:
            The Matplotlib figure. A notebook shows it.

        Raises:
            InputError: if `path` is no path of a file in a directory that
                exists, with a suffix that Matplotlib writes.
            PlotError: if Matplotlib is not installed.
        """
        from keras_parallel.planning._stage_picture import picture_of

        if path is not None:
            check_picture_path(path, 'plan.plot("plan.png")')
        figure = picture_of(self)
        if path is not None:
            figure.savefig(path)
        return figure


def sent(tensor: Tensor, rows: int) -> dict[str, typing.Any]:
    """What a `Transfer` says of a tensor for a batch of some rows."""
    shape = tuple(rows if n is None else n for n in tensor.shape[:1])
    return {
        "bytes": tensor.bytes(rows),
        "shape": (*shape, *tensor.shape[1:]),
        "dtype": tensor.dtype,
    }


def _longest(paths: list[_Path]) -> _Path:
    return max(paths, key=lambda p: (p[0], len(p[1])), default=(0.0, ()))
