"""The calls of a model, placed, and what each needs."""

import dataclasses

from keras_parallel.planning.devices import Device
from keras_parallel.planning.tensors import Tensor


@dataclasses.dataclass(frozen=True)
class Weight:
    """A variable of a model that a call uses.

    Args:
        number: What tells it from others.
        name: What people call it: its path.
        bytes: Its size.
        home: The device on which it lives.
        trainable: Whether it has a gradient.
        is_updated: Whether a call assigns it in training, as statistics are.
    """

    number: int
    name: str
    bytes: int
    home: Device
    trainable: bool
    is_updated: bool = False


@dataclasses.dataclass(frozen=True)
class PlacedCall:
    """A call of an operation on a device.

    Args:
        name: What tells it from others.
        device: Where it runs.
        takes: The tensors that it takes.
        makes: The tensors that it makes.
        weights: The variables that it uses.
        flops: Floating-point operations of its forward pass for a batch,
            `None` if they are not known.
        activations: What it keeps for its backward pass, in bytes for a
            batch; `None` if that is not known.
    """

    name: str
    device: Device
    takes: tuple[Tensor, ...]
    makes: tuple[Tensor, ...]
    weights: tuple[Weight, ...] = ()
    flops: float | None = None
    activations: int | None = None
