"""Alternating training: several models that share layers, in turn.

For each batch a phase trains its model one step and predicts on that batch;
the next phase makes its own batch of that, in Python, and trains. So a region
proposal network and a detector are trained on one backbone (arXiv:1506.01497),
and so are a generator and a discriminator (arXiv:1406.2661).
"""

import dataclasses
import os
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras

from keras_parallel.strategies import _phase_checks
from keras_parallel.strategies import _phase_model
from keras_parallel.strategies import _twin
from keras_parallel.strategies import _umbrella
from keras_parallel.strategies._conductor import conductor
from keras_parallel.strategies._rounds import Turn
from keras_parallel.strategies._schedule import Schedule
from keras_parallel.strategies._wording import error
from keras_parallel.strategies._wording import shown

_STATE_SUFFIX = ".weights.h5"


@dataclasses.dataclass(frozen=True)
class Phase:
    """The turn of one model in alternating training.

    Args:
        name: The name. What the phase logs begins with it: `rpn_loss`.
        model: A compiled model: plain, data-parallel or device-parallel.
        make_batch: Makes what the phase trains on. It is called with the
            batch as the data gave it, arrays as NumPy arrays, and a mapping
            from the names of earlier phases to their predictions for it, as
            `predict_on_batch` returns them. It returns `(x, y)` or `(x, y,
            sample_weight)`, or `None` to skip the batch. `None`: the phase
            takes the batch as it is.
        optimizer: The optimizer of this phase. `None` is that of `model`,
            which one phase can use.
        steps: How many steps the phase takes in each of its turns. Each asks
            `make_batch` anew.
        every: The phase has a turn in one of so many rounds.
        epochs: How many epochs the phase lasts. Phases that have a number
            follow one another; `None`: it is there in each epoch.
        freeze: Layers of `model`, or their names, that this phase does not
            train. They behave as with `trainable = False`; other phases do
            not notice.
        training_predictions: Whether later phases get predictions that were
            made as in training (dropout on, statistics of the batch).
    """

    name: str
    model: keras.Model
    make_batch: Callable[[Any, Any], Any] | None = None
    optimizer: Any = None
    steps: int = 1
    every: int = 1
    epochs: int | None = None
    freeze: Sequence[keras.Layer | str] = ()
    training_predictions: bool = False

    def __post_init__(self):
        _phase_checks.check_phase(self)


class AlternatingTrainer:
    """Trains several models that share layers, in turn, on each batch.

    Example:

    ```python
    trainer = keras_parallel.AlternatingTrainer(
        [
            keras_parallel.Phase("rpn", rpn_model),
            keras_parallel.Phase(
                "detector", detector_model, make_batch=propose_regions
            ),
        ],
        model=full_model,
    )
    trainer.fit(train_data, epochs=40, validation_data=val_data)
    trainer.save("faster_rcnn.keras")
    ```

    In each round the phases have their turn in order. Weights that models
    share are seen by all of them at once, on every device. Which layers a
    phase trains is what was trainable when its model was compiled, less what
    it freezes.

    Args:
        phases: The `Phase`s, in order.
        model: The model that holds all parts: it is the one that callbacks
            see and that is saved. `None` is the model of a phase that holds
            the weights of all others.

    Raises:
        InputError: if phases contradict each other, or if `model` is `None`
            and no phase's model holds all weights.
        RefusedModelError: if a model is none, or none that can be trained so.
    """

    def __init__(
        self, phases: Sequence[Phase], model: keras.Model | None = None
    ):
        phases = _phase_checks.check_phases(phases)
        self.phases = phases
        self.model = _phase_checks.model_of_all(phases, model)
        _phase_checks.warn_of_what_is_apart(phases, self.model)
        turns, seen = [], set()
        for phase in phases:
            layers = _phase_checks.frozen_layers(phase)
            is_second = id(phase.model) in seen
            seen.add(id(phase.model))
            made = _phase_model.phase_model(phase, layers, is_second)
            turns.append(Turn(phase, made))
        self._schedule = Schedule(phases)
        self._conductor = conductor(self.model, turns, self._schedule)
        self._resumes_at = None

    def fit(
        self,
        x=None,
        y=None,
        batch_size: int | None = None,
        epochs: int | None = None,
        verbose: str | int = "auto",
        callbacks=None,
        validation_split: float = 0.0,
        validation_data=None,
        shuffle: bool = True,
        sample_weight=None,
        initial_epoch: int | None = None,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int = 1,
    ) -> keras.callbacks.History:
        """Trains, as `keras.Model.fit` does.

        Args:
            x: See `keras.Model.fit`, as for all arguments not named here.
                Arrays, a `PyDataset`, a `tf.data.Dataset`, a loader of torch
                or a generator.
            y: The same.
            batch_size: The same.
            epochs: How many. `None` is as many as the phases have together,
                or 1 if none has a number.
            verbose: The same.
            callbacks: The same. They see `model`; `model.optimizer.optimizers`
                has those of all phases.
            validation_split: The same.
            validation_data: Evaluated by each phase that the epoch has.
            shuffle: The same.
            sample_weight: The same.
            initial_epoch: `None` is 0, or where `load_state` left off.
            steps_per_epoch: The same.
            validation_steps: The same.
            validation_batch_size: The same.
            validation_freq: The same.

        Returns:
            The history. Its keys begin with the names of the phases:
            `rpn_loss`, `detector_boxes_mae`, `val_detector_loss`.

        Raises:
            InputError: if an epoch has no phase, or if a phase cannot take
                its batch: it names the phase, what came and what was
                expected.
        """
        if epochs is None:
            epochs = self._schedule.epochs or 1
        if initial_epoch is None:
            initial_epoch = self._resumes_at or 0
        self._schedule.check(initial_epoch, epochs)
        self._resumes_at = None
        return self._conductor.fit(
            x=x,
            y=y,
            batch_size=batch_size,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_split=validation_split,
            validation_data=validation_data,
            shuffle=shuffle,
            sample_weight=sample_weight,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
            validation_freq=validation_freq,
        )

    def evaluate(
        self,
        x=None,
        y=None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        sample_weight=None,
        steps: int | None = None,
        callbacks=None,
    ) -> dict[str, float]:
        """Evaluates all phases, as `keras.Model.evaluate` does.

        Returns:
            The logs by name, such as `rpn_loss`.
        """
        return self._conductor.evaluate(
            x=x,
            y=y,
            batch_size=batch_size,
            verbose=verbose,
            sample_weight=sample_weight,
            steps=steps,
            callbacks=callbacks,
            return_dict=True,
        )

    @property
    def skipped(self) -> dict[str, int]:
        """Batches that each phase skipped in the last epoch, by name."""
        turns = self._conductor._keras_parallel.turns
        return {turn.phase.name: turn.skipped for turn in turns}

    def save(self, filepath, overwrite: bool = True) -> None:
        """Saves `model`, all parts, in one file that plain Keras loads.

        Args:
            filepath: Where to; it ends in `.keras`.
            overwrite: As in `keras.Model.save`.

        Raises:
            InputError: if `model` does not hold what the phases train, or if
                plain Keras does not load what was written, which is tried.
                A file that was there before is kept then.
        """
        _umbrella.check_holds(self.model, self.phases)
        _umbrella.save(
            _twin.template_of(self.model),
            self._conductor.save,
            filepath,
            overwrite,
        )

    def save_state(self, filepath) -> None:
        """Saves what a training needs to go on as if it had not stopped.

        Weights, the optimizers of all phases, the epoch and the round, and
        the random state of Keras, NumPy (`numpy.random`) and Python. Between
        two epochs it is exact; within one, the epoch begins anew.

        Args:
            filepath: Where to; it ends in `.weights.h5`.
        """
        _check_state_path(filepath, "save_state")
        for turn in self._conductor._keras_parallel.turns:
            turn.prepare()
        self._conductor.save_weights(filepath, overwrite=True)

    def load_state(self, filepath) -> None:
        """Loads what `save_state` has saved; the next `fit` goes on there.

        Args:
            filepath: The file. The trainer has phases like those of the one
                that saved it.
        """
        _check_state_path(filepath, "load_state")
        for turn in self._conductor._keras_parallel.turns:
            turn.prepare()
        self._conductor.load_weights(filepath)
        self._resumes_at = self._conductor._keras_parallel.position.epoch


def _check_state_path(filepath, method):
    if not str(os.fspath(filepath)).endswith(_STATE_SUFFIX):
        raise error(
            f"The file of a state ends in {_STATE_SUFFIX!r}.",
            f"{method}({shown(filepath)})",
            f'trainer.{method}("training{_STATE_SUFFIX}")',
        )
