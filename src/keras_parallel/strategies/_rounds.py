"""A round: each phase in its turn, on one batch of the data."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras

from keras_parallel.strategies import _made_batch
from keras_parallel.strategies import _phase_model
from keras_parallel.strategies._wording import error


class Turn:
    """A phase while the trainer runs.

    Args:
        phase: The `Phase`.
        model: The model of the phase, see `_phase_model`.
    """

    def __init__(self, phase, model: keras.Model):
        self.phase = phase
        self.model = model
        self._is_prepared = False
        # Batches for which `make_batch` returned `None`, and all.
        self.skipped = self.asked = 0

    def prepare(self) -> None:
        """Builds the optimizer, once the model is built."""
        if not self._is_prepared:
            _phase_model.prepare(self.model)
            self._is_prepared = self.model.built

    def data(self, batch, predictions):
        """What the phase trains on: `(x, y, sample_weight)`, or `None`."""
        if self.phase.make_batch is None:
            return keras.utils.unpack_x_y_sample_weight(batch)
        made = self.phase.make_batch(batch, predictions)
        self.asked += 1
        if made is None:
            self.skipped += 1
            return None
        _made_batch.check(made, self.phase)
        return keras.utils.unpack_x_y_sample_weight(made)

    def train(self, data) -> dict[str, float]:
        """Takes a step."""
        logs = self._run("train_on_batch", data)
        self.model._keras_parallel.has_trained = True
        return logs

    def test(self, data) -> dict[str, float]:
        """Evaluates."""
        return self._run("test_on_batch", data)

    def predict(self, data):
        """The predictions for a batch, NumPy arrays."""
        with _made_batch.explained(self.phase, data):
            return self.model.predict_on_batch(data[0])

    def _run(self, method, data):
        x, y, sample_weight = data
        self.prepare()
        with _made_batch.explained(self.phase, data):
            return getattr(self.model, method)(
                x, y, sample_weight=sample_weight, return_dict=True
            )


class Predictions(Mapping):
    """The predictions of earlier phases for one batch, by phase name.

    They are those of the weights that the phase had after its turn. What no
    one asks for is not computed.
    """

    def __init__(self):
        self._made: dict[str, Any] = {}
        self._pending: dict[str, Callable[[], Any]] = {}

    def __getitem__(self, name):
        if name in self._pending:
            # What it needs may ask in turn.
            predict = self._pending.pop(name)
            self._made[name] = predict()
        if name not in self._made:
            raise KeyError(
                f"There are predictions of earlier phases: {list(self)}. "
                f"Received: {name!r}, which is no such phase, or had no batch "
                "in this round."
            )
        return self._made[name]

    def __iter__(self):
        return iter([*self._made, *self._pending])

    def __len__(self):
        return len(self._made) + len(self._pending)

    def __repr__(self):
        return f"{type(self).__name__}({list(self)})"

    def add(self, name: str, predict: Callable[[], Any]) -> None:
        """Adds predictions, to be made when they are asked for."""
        self._pending[name] = predict

    def make(self) -> None:
        """Makes those that wait: the weights they depend on will change."""
        for name in list(self._pending):
            self[name]


def play(turns: list[Turn], active: list[int], batch, training: bool) -> dict:
    """Plays a round.

    Args:
        turns: All phases.
        active: The indices of those that take their turn.
        batch: The batch, as the data gave it.
        training: Whether they train; they evaluate otherwise.

    Returns:
        The logs of each phase that had its turn, by phase name.
    """
    predictions, logs = Predictions(), {}
    makers = [i for i in active if turns[i].phase.make_batch is not None]
    for i, turn in enumerate(turns):
        if i > max(active, default=-1):
            break
        if i not in active:
            predictions.add(turn.phase.name, _later(turn, batch, predictions))
            continue
        trained_on = None
        for _ in range(turn.phase.steps if training else 1):
            data = turn.data(batch, predictions)
            if data is None:
                continue
            if training and i < max(makers, default=-1):
                predictions.make()
            run = turn.train if training else turn.test
            logs[turn.phase.name] = run(data)
            trained_on = data
        if trained_on is not None:
            predictions.add(
                turn.phase.name,
                lambda turn=turn, data=trained_on: turn.predict(data),
            )
    return logs


def _later(turn, batch, predictions):
    """Predictions of a phase that does not have its turn."""

    def predict():
        data = turn.data(batch, predictions)
        if data is None:
            raise KeyError(
                f"`make_batch` of the phase {turn.phase.name!r} returned "
                "`None`, so that it predicts nothing for this batch."
            )
        return turn.predict(data)

    return predict


class Logs:
    """The logs of all phases, since an epoch began."""

    def __init__(self):
        self._found: dict[str, dict] = {}

    def names(self) -> list[str]:
        """The names of all, with those of the phases."""
        return list(self.add({}))

    def add(self, logs: dict) -> dict:
        """Adds those of a round; returns all, with the names of the phases.

        Raises:
            InputError: if two phases would have a name together.
        """
        self._found.update(logs)
        named, phase_of = {}, {}
        for phase, values in self._found.items():
            for name, value in values.items():
                full = f"{phase}_{name}"
                if full in named:
                    raise error(
                        "What a phase logs begins with its name, and two "
                        "phases do not log one name.",
                        f"{full!r} of the phases {phase_of[full]!r} and "
                        f"{phase!r}",
                        'keras_parallel.Phase("another_name", model)',
                    )
                named[full], phase_of[full] = value, phase
        return named
