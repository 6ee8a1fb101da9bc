"""The plan: what each device holds, and what crosses in each step."""

import dataclasses

from keras_parallel.planning.devices import Device

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
        bytes: Size of what each device puts in, in bytes.
        count: In how many operations.
    """

    kind: str
    purpose: str
    bytes: int
    count: int = 1


@dataclasses.dataclass(frozen=True)
class DeviceShare:
    """What one device holds, in bytes, and computes.

    Args:
        device: The device.
        rows: Rows of each global batch that it computes.
        weights: The trainable variables.
        gradients: Their gradients.
        optimizer: The variables of the optimizer.
        non_trainable: Other variables: statistics, seeds, metrics.
        activations: Estimate of what the forward pass keeps for the backward
            pass; `None` where it cannot be told before training.
    """

    device: Device
    rows: int
    weights: int
    gradients: int
    optimizer: int
    non_trainable: int
    activations: int | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where everything of a parallel model lives, and what crosses.

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
