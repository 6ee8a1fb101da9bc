"""The model whose `fit` is a sequence of rounds.

Keras's own `fit` reads the data, counts epochs, prints the bar and calls the
callbacks; in place of a step it meets a round. The model reads as the one that
is saved, so that callbacks see that, and has the optimizers of the phases.
"""

import contextlib
import typing
from typing import Any

import keras

from keras_parallel._logging import logger
from keras_parallel.engines import active_engine
from keras_parallel.strategies import _feeding
from keras_parallel.strategies import _keras
from keras_parallel.strategies import _phase_model
from keras_parallel.strategies import _twin
from keras_parallel.strategies._overlay import Overlay
from keras_parallel.strategies._overlay import OverlayState
from keras_parallel.strategies._overlay import overlay
from keras_parallel.strategies._overlay import own_attributes_of
from keras_parallel.strategies._position import Position
from keras_parallel.strategies._rounds import Logs
from keras_parallel.strategies._rounds import Turn
from keras_parallel.strategies._rounds import play
from keras_parallel.strategies._schedule import Schedule


class ConductorState(OverlayState):
    """What the model that plays rounds holds beside the one that is saved.

    Args:
        template: The model that is saved.
        engine: The engine of the backend.
        turns: The phases, in order.
        schedule: Which of them take their turn, and when.
    """

    def __init__(self, template, engine, turns: list[Turn], schedule: Schedule):
        layers = (ConductorLayer, engine.rounds_layer)
        super().__init__(template, layers, engine.runtime_attributes)
        self.engine = engine
        self.turns = turns
        self.schedule = schedule
        self.position = Position(self._seeds)
        self._train_logs, self._test_logs = Logs(), Logs()
        self._validates = None

    def _seeds(self):
        models = [_twin.template_of(t.phase.model) for t in self.turns]
        found = {}
        for model in models:
            weights = {id(v) for v in model.weights}
            found |= {
                id(v): v
                for v in model.non_trainable_variables
                if id(v) not in weights
            }
        return list(found.values())

    def directions(self) -> dict[str, str]:
        """Name of a log -> whether it is better `"up"` or `"down"`."""
        of_metrics = {
            metric.name: getattr(metric, "_direction", None)
            for turn in self.turns
            for metric in _keras.single_metrics(turn.model)
        }
        found = {}
        for name in self._train_logs.names():
            for metric, direction in of_metrics.items():
                if name.endswith(f"_{metric}") and direction:
                    found[name] = direction
            if name.endswith("_loss"):
                found[name] = "down"
        return found

    def like(self, template, layers=()):
        # No model is made parallel as this one is: see below.
        raise NotImplementedError

    def made_parallel(self, template):
        # A copy of the model, and not of what trains it.
        return template

    @contextlib.contextmanager
    def running(self, name, args, kwargs):
        """The context in which a method runs; yields its arguments."""
        with contextlib.ExitStack() as stack:
            for turn in self.turns:
                parallel: Any = getattr(turn.model, "_keras_parallel", None)
                if getattr(parallel, "splits_rows", False):
                    # Weights stay on all devices from turn to turn.
                    stack.enter_context(parallel.running(turn.model))
            feeding = _feeding.fed(name, self.engine, args, kwargs)
            yield stack.enter_context(feeding)

    def train_round(self, batch):
        position = self.position
        active = self.schedule.in_round(position.epoch, position.round)
        logs = play(self.turns, active, batch, training=True)
        position.round += 1
        return self._train_logs.add(logs)

    def test_round(self, batch):
        active = self._validates
        if active is None:
            active = range(len(self.turns))
        logs = play(self.turns, list(active), batch, training=False)
        return self._test_logs.add(logs)

    def begin_epoch(self, epoch):
        self.position.epoch = epoch
        self._validates = self.schedule.in_epoch(epoch)
        self._train_logs = Logs()
        for turn in self.turns:
            turn.skipped = turn.asked = 0

    def end_epoch(self, epoch):
        self.position.epoch = epoch + 1
        for turn in self.turns:
            if turn.skipped:
                logger.warning(
                    "epoch %d: phase %r skipped %d of %d batches, for which "
                    "its `make_batch` returned `None`",
                    epoch + 1,
                    turn.phase.name,
                    turn.skipped,
                    turn.asked,
                )

    def end_training(self):
        self._validates = None
        for turn in self.turns:
            optimizer = turn.model.optimizer
            if getattr(optimizer, "use_ema", False) and optimizer.built:
                optimizer.finalize_variable_values(
                    turn.model.trainable_variables
                )

    def forget_logs(self):
        # Keras does so before each epoch, and before it evaluates.
        self._test_logs = Logs()
        for turn in self.turns:
            _phase_model.reset_metrics(turn.model)


class Optimizers:
    """The optimizers of all phases, as callbacks see them.

    Callbacks that set a learning rate do so for each of `optimizers`, as for
    a `keras.optimizers.MultiOptimizer`.
    """

    def __init__(self, turns: list[Turn]):
        self._turns = turns

    @property
    def optimizers(self) -> list:
        """One for each phase that has one."""
        found = [turn.model.optimizer for turn in self._turns]
        return [optimizer for optimizer in found if optimizer is not None]

    @property
    def built(self) -> bool:
        """Whether all have their slots."""
        return all(optimizer.built for optimizer in self.optimizers)

    def build(self, variables=None) -> None:
        """Makes the slots of all, each for what its phase trains."""
        del variables
        for turn in self._turns:
            turn.prepare()

    @property
    def iterations(self):
        """The step count of the first phase."""
        return self.optimizers[0].iterations

    @property
    def learning_rate(self):
        """That of the first phase."""
        return self.optimizers[0].learning_rate


class ConductorLayer(Overlay):
    """What is put above the engine's layer for rounds."""

    _keras_parallel: typing.Any

    def fit(self, *args, callbacks=None, **kwargs):
        state = self._keras_parallel
        follower = _Follower(state)
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.callbacks.insert(0, follower)
        else:
            callbacks = [follower, *keras.tree.flatten(callbacks or [])]
        kwargs["callbacks"] = callbacks
        try:
            with state.running("fit", args, kwargs) as (args, kwargs):
                return super().fit(*args, **kwargs)
        finally:
            state.end_training()

    def evaluate(self, *args, **kwargs):
        with self._keras_parallel.running("evaluate", args, kwargs) as given:
            args, kwargs = given
            return super().evaluate(*args, **kwargs)

    def _symbolic_build(self, iterator=None, data_batch=None):
        # Each phase builds its own model, losses and metrics.
        pass

    def reset_metrics(self):
        self._keras_parallel.forget_logs()

    @property
    def metrics(self):
        # Callbacks that monitor a log look here for its direction.
        return _keras.metrics_for_monitors(self._keras_parallel.directions())

    def get_metrics_result(self):
        # The logs of the last round are the means since the epoch began.
        return {}

    def save(self, filepath, overwrite=True, zipped=None, **kwargs):
        # The model as the user has it, without what trains it.
        template = self._keras_parallel.template
        template.save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)


class _Follower(keras.callbacks.Callback):
    """Tells the conductor where `fit` is. The first of all callbacks."""

    def __init__(self, state):
        super().__init__()
        self._state = state

    def on_epoch_begin(self, epoch, logs=None):
        self._state.begin_epoch(epoch)

    def on_epoch_end(self, epoch, logs=None):
        self._state.end_epoch(epoch)


def conductor(model: keras.Model, turns: list[Turn], schedule: Schedule):
    """Makes the model whose `fit` plays rounds, and that reads as `model`."""
    template = _twin.template_of(model)
    state = ConductorState(template, active_engine(), turns, schedule)
    made = overlay(state)
    own = own_attributes_of(made)
    own |= {
        "compiled": True,
        "optimizer": Optimizers(turns),
        "steps_per_execution": 1,
        "stop_training": False,
        "_initial_epoch": None,
    }
    own.pop("_compile_config", None)
    own.pop("_compiled_trainable_state", None)
    # What a file of weights holds beside the model: attributes that Keras
    # finds and saves.
    state.own("phase_state")
    own["phase_state"] = [
        *own["optimizer"].optimizers,
        *_apart(template, turns),
        state.position,
    ]
    return made


def _apart(template, turns):
    """Models of phases that hold weights which `template` does not."""
    known, found = {id(v) for v in template.variables}, []
    for turn in turns:
        model = _twin.template_of(turn.phase.model)
        if any(id(v) not in known for v in model.variables):
            found.append(model)
            known |= {id(v) for v in model.variables}
    return found
