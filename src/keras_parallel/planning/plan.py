"""The plan: what each device holds, and what crosses in each step."""

import dataclasses
import os
import typing

from keras_parallel._errors import PlanError
from keras_parallel.planning._figure import check_picture_path
from keras_parallel.planning._picture import picture_of
from keras_parallel.planning._table import html_of
from keras_parallel.planning._table import text_of
from keras_parallel.planning.devices import Device

if typing.TYPE_CHECKING:
    from matplotlib.figure import Figure

# The names that XLA, NCCL and MPI share.
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)


@dataclasses.dataclass(frozen=True)
class Collective:
    """What all devices exchange for one purpose in each step.

    Args:
        kind: One of `COLLECTIVES`.
        purpose: What it is needed for, such as `"gradients"` or
            `"statistics of 'batch_normalization'"`.
        bytes: Size of what each device puts in, in all `count` operations
            together, in bytes.
        count: In how many operations. The compiler may do several in one.
        group: What it is a part of where a reader wants few lines, such as
            `"statistics"`; empty if it stands for itself.
    """

    kind: str
    purpose: str
    bytes: int
    count: int = 1
    group: str = ""

    def __post_init__(self) -> None:
        if self.kind not in COLLECTIVES:
            raise PlanError(
                f"A collective is one of {list(COLLECTIVES)}. Received: "
                f"kind={self.kind!r}. A call that works: "
                "`Collective('all-reduce', 'gradients', 4)`."
            )
        _check_sizes(self, "bytes", "count")


@dataclasses.dataclass(frozen=True)
class DeviceShare:
    """What one device holds, in bytes, and computes.

    Args:
        device: The device.
        rows: Rows of each global batch that it computes.
        weights: The trainable variables.
        gradients: Their gradients.
        optimizer: The variables of the optimizer; `None` where it is not
            known before training.
        non_trainable: Other variables: frozen weights, statistics, seeds,
            metrics.
        activations: Estimate of what the forward pass keeps for the backward
            pass; `None` where it cannot be told before training.
    """

    device: Device
    rows: int
    weights: int
    gradients: int
    optimizer: int | None
    non_trainable: int
    activations: int | None

    def __post_init__(self) -> None:
        _check_sizes(
            self,
            *("rows", "weights", "gradients", "optimizer"),
            *("non_trainable", "activations"),
        )

    @property
    def parts(self) -> dict[str, int | None]:
        """The name of each part and its size in bytes, in order."""
        return {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "non-trainable": self.non_trainable,
            "activations": self.activations,
        }

    @property
    def total(self) -> int:
        """All of it that is known, in bytes."""
        return sum(size or 0 for size in self.parts.values())

    def to_dict(self) -> dict[str, typing.Any]:
        """All of it in numbers and strings. Sizes are in bytes."""
        return {
            "device": self.device.name,
            "virtual": self.device.virtual,
            "rows": self.rows,
            **{
                name.replace("-", "_"): size
                for name, size in self.parts.items()
            },
            "total": self.total,
        }


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where everything of a parallel model lives, and what crosses.

    `print` it for tables; a notebook shows it as such.

    Args:
        model: Name of the model.
        batch_size: Rows of a global batch.
        shares: What each device holds.
        collectives: What crosses in each training step.
        notes: What else a reader should know, in sentences.
    """

    model: str
    batch_size: int
    shares: tuple[DeviceShare, ...]
    collectives: tuple[Collective, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        devices = [share.device for share in self.shares]
        if not devices or len(set(devices)) < len(devices):
            raise PlanError(
                "A plan has one share for each of its devices. Received: "
                f"shares for {[d.name for d in devices]}. A call that works: "
                "`keras_parallel.plan(parallel)`."
            )
        rows = [share.rows for share in self.shares]
        whole = all(n == self.batch_size for n in rows)
        if not whole and sum(rows) != self.batch_size:
            raise PlanError(
                "Each row of a batch is computed once, or all rows on every "
                f"device. Received: batch_size={self.batch_size} and the rows "
                f"{rows}. A call that works: `keras_parallel.plan(parallel, "
                f"batch_size={max(sum(rows), 1)})`."
            )
        if self.collectives and len(devices) == 1:
            raise PlanError(
                "Nothing crosses where there is one device. Received: "
                f"{self.collectives[0]} on {devices[0]}. A call that works: "
                "`keras_parallel.plan(parallel)`."
            )

    @property
    def bytes_per_step(self) -> int:
        """What each device puts into all collectives of a step, in bytes."""
        return sum(collective.bytes for collective in self.collectives)

    def __str__(self) -> str:
        return text_of(self)

    def _repr_html_(self) -> str:
        return html_of(self)

    def to_dict(self) -> dict[str, typing.Any]:
        """The whole plan in numbers, strings, lists and dicts.

        Returns:
            What `json.dumps` takes. Sizes are in bytes.
        """
        return {
            "model": self.model,
            "batch_size": self.batch_size,
            "devices": [share.to_dict() for share in self.shares],
            "collectives": [
                {
                    "kind": collective.kind,
                    "purpose": collective.purpose,
                    "bytes": collective.bytes,
                    "count": collective.count,
                }
                for collective in self.collectives
            ],
            "bytes_per_step": self.bytes_per_step,
            "notes": list(self.notes),
        }

    def plot(self, path: "str | os.PathLike[str] | None" = None) -> "Figure":
        """Draws every device, what it holds, and all that crosses.

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
        if path is not None:
            check_picture_path(path, 'plan.plot("plan.png")')
        figure = picture_of(self)
        if path is not None:
            figure.savefig(path)
        return figure


def _check_sizes(value: object, *names: str) -> None:
    for name in names:
        size = getattr(value, name)
        if size is not None and size < 0:
            raise PlanError(
                "A plan counts bytes, rows and operations from 0. Received: "
                f"{name}={size} in a {type(value).__name__}. A call that "
                "works: `keras_parallel.plan(parallel)`."
            )
