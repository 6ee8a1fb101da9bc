"""What a training step of a model computes, found without running it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A sum over all rows that is the gradient of a variable, or a part of it.

    Args:
        bytes: Its size, in bytes.
        steps: How often it is made: the length of the loop of the model, such
            as one over time steps, that it is made in; 1 outside loops.
    """

    bytes: int
    steps: int = 1


@dataclasses.dataclass(frozen=True)
class Outline:
    """What a training step of a model computes, for all rows of a batch.

    Args:
        row_activations: Size of what the forward pass keeps of the rows for
            the backward pass, of all rows together, in bytes.
        other_activations: Size of what it keeps beside, in bytes.
        reductions: For each trainable variable, in order, the sums over rows
            that make its gradient: one for each use in the forward pass.
        updates: For each non-trainable variable, in order, how often the
            forward pass assigns it.
    """

    row_activations: int
    other_activations: int
    reductions: tuple[tuple[Reduction, ...], ...]
    updates: tuple[int, ...]

    def activations(self, parts: int) -> int:
        """What one of `parts` devices keeps, each with rows of its own."""
        return -(-self.row_activations // parts) + self.other_activations
