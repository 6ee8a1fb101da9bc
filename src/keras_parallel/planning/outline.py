"""What a training step of a model computes, found without running it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Outline:
    """What a training step of a model computes, for all rows of a batch.

    Args:
        row_activations: Size of what the forward pass keeps of the rows for
            the backward pass, of all rows together, in bytes.
        other_activations: Size of what it keeps beside, in bytes.
        gradients: For each trainable variable, in order, the size in which
            its gradient crosses, in bytes; 0 where no rows meet it alone.
        updates: For each non-trainable variable, in order, how often the
            forward pass assigns it.
        merged: Size in which the gradients of values cross that several
            weights are merged into before rows meet them, in bytes.
        gathered: Sizes of values of rows that each device needs whole, of
            all rows together, in bytes.
        outputs: How many arrays the model returns.
    """

    row_activations: int
    other_activations: int
    gradients: tuple[int, ...]
    updates: tuple[int, ...]
    merged: int = 0
    gathered: tuple[int, ...] = ()
    outputs: int = 1

    def activations(self, parts: int) -> int:
        """What one of `parts` devices keeps, each with rows of its own."""
        return -(-self.row_activations // parts) + self.other_activations


@dataclasses.dataclass(frozen=True)
class CallOutline:
    """What one call computes for a batch.

    Args:
        flops: Floating-point operations of the forward pass, of products of
            matrices and convolutions only.
        activations: What it keeps for the backward pass, in bytes.
    """

    flops: float
    activations: int


@dataclasses.dataclass(frozen=True)
class StagesOutline:
    """What the calls of a model compute, found without running it.

    Args:
        calls: One for each call that was asked for, in order.
        updates: For each non-trainable variable, in order, how often the
            forward pass assigns it.
    """

    calls: tuple[CallOutline, ...]
    updates: tuple[int, ...]
