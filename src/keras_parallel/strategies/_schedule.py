"""Which phases take their turn, by epoch and round."""

from collections.abc import Sequence

from keras_parallel.strategies._wording import error


class Schedule:
    """The order of phases in time.

    A phase without `epochs` is there in each. Those with `epochs` follow one
    another, each for so many.

    Args:
        phases: Each with `name`, `epochs` and `every`.
    """

    def __init__(self, phases: Sequence):
        self._phases = phases
        self._spans, start = [], 0
        for phase in phases:
            if phase.epochs is None:
                self._spans.append(None)
            else:
                self._spans.append(range(start, start + phase.epochs))
                start += phase.epochs
        # Of phases that have a number of epochs.
        self.epochs = start or None

    def in_epoch(self, epoch: int) -> list[int]:
        """The indices of the phases of an epoch, counted from 0."""
        return [
            i
            for i, span in enumerate(self._spans)
            if span is None or epoch in span
        ]

    def in_round(self, epoch: int, round_: int) -> list[int]:
        """The indices of the phases that take their turn in a round.

        Args:
            epoch: The epoch, counted from 0.
            round_: The round, counted from the first one of the training.
        """
        return [
            i
            for i in self.in_epoch(epoch)
            if round_ % self._phases[i].every == 0
        ]

    def check(self, initial_epoch: int, epochs: int) -> None:
        """Raises `InputError` if an epoch has no phase."""
        for epoch in range(initial_epoch, epochs):
            if not self.in_epoch(epoch):
                raise error(
                    "Each epoch has a phase. Those with `epochs` follow one "
                    f"another and end after {self.epochs}.",
                    f"fit(epochs={epochs}) with "
                    + ", ".join(
                        f'Phase("{p.name}", epochs={p.epochs})'
                        for p in self._phases
                    ),
                    f"trainer.fit(data, epochs={self.epochs})",
                )
