"""The model of a phase: the user's, with a training of its own.

It shares layers, weights and names with the model that the user compiled, runs
on the same devices, and has its own frozen set, compiled functions and, where
that is asked for, optimizer.
"""

import contextlib
import typing

import keras

from keras_parallel.engines import active_engine
from keras_parallel.strategies import _keras
from keras_parallel.strategies import _phase_optimizer
from keras_parallel.strategies import _twin
from keras_parallel.strategies._frozen import FrozenSet
from keras_parallel.strategies._overlay import Overlay
from keras_parallel.strategies._overlay import OverlayState
from keras_parallel.strategies._overlay import adopt
from keras_parallel.strategies._overlay import overlay
from keras_parallel.strategies._overlay import own_attributes_of
from keras_parallel.strategies._training import check_not_distributed


class PhaseState(OverlayState):
    """What the model of a phase holds if it runs on one device."""

    def like(self, template, layers=()):
        # Asked for by a copy of the model, and nobody copies that of a phase.
        raise NotImplementedError


class PhaseLayer(Overlay):
    """What is put above all else in the model of a phase.

    `self._keras_parallel` has `frozen`, a `FrozenSet`; `training_predictions`,
    whether predictions are made as in training; and `has_trained`, whether it
    has taken a step, so that all there is to build is built.
    """

    _keras_parallel: typing.Any

    @property
    def trainable_variables(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._keras_parallel.frozen.split()[0]

    @property
    def non_trainable_variables(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._keras_parallel.frozen.split()[1]

    def reset_metrics(self):
        # Keras does so before each batch of `train_on_batch`: the logs of a
        # phase are means since the trainer has asked for it.
        if not self._keras_parallel.keeps_metrics:
            super().reset_metrics()

    def _symbolic_build(self, *args, **kwargs):
        # Keras looks through all layers before each step whether one is not
        # built, which takes as long as a small step.
        if not self._keras_parallel.has_trained:
            super()._symbolic_build(*args, **kwargs)

    # While these are traced, or run if they are not compiled, layers that ask
    # whether they are trainable hear what holds in this phase.

    def train_step(self, *args):
        with self._keras_parallel.frozen.applied():
            return super().train_step(*args)

    def test_step(self, *args):
        with self._keras_parallel.frozen.applied():
            return super().test_step(*args)

    def predict_step(self, *args):
        parallel = self._keras_parallel
        with contextlib.ExitStack() as stack:
            stack.enter_context(parallel.frozen.applied())
            if parallel.training_predictions:
                parallel.calls_as_in_training = True
                stack.callback(setattr, parallel, "calls_as_in_training", False)
            return super().predict_step(*args)

    # One of the two is what a step calls, which depends on the backend.

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **_as_asked(self, kwargs))

    def stateless_call(self, *args, **kwargs):
        return super().stateless_call(*args, **_as_asked(self, kwargs))


def _as_asked(model, kwargs):
    if "training" in kwargs and model._keras_parallel.calls_as_in_training:
        return kwargs | {"training": True}
    return kwargs


def phase_model(phase, freeze: list[keras.Layer], is_second: bool):
    """Makes the model of a phase.

    Args:
        phase: The `Phase`.
        freeze: The layers that it freezes.
        is_second: Whether an earlier phase trains the same model.

    Returns:
        A `keras.Model`.
    """
    model = phase.model
    check_not_distributed(model)
    template = _twin.template_of(model)
    if _twin.is_parallel(model):
        state = model._keras_parallel.like(template, (PhaseLayer,))
    else:
        attributes = active_engine().runtime_attributes
        state = PhaseState(template, (PhaseLayer,), attributes)
    trainable = {
        # A parallel model has no flag of its own.
        _twin.template_of(layer): flag
        for layer, flag in _keras.trainable_when_compiled(model).items()
    }
    vars(state).update(
        frozen=FrozenSet(template, trainable, freeze),
        training_predictions=phase.training_predictions,
        calls_as_in_training=False,
        has_trained=False,
        keeps_metrics=True,
    )
    made = overlay(state)
    if _twin.is_parallel(model):
        adopt(made, model)
    optimizer = model.optimizer
    if phase.optimizer is not None:
        optimizer = _phase_optimizer.optimizer_of(
            phase.optimizer, model, phase.name
        )
    arguments = _keras.arguments_of_compile(model) if is_second else None
    if arguments is not None:
        # Means over batches that do not mix with those of the earlier phase.
        for name in ("metrics", "weighted_metrics"):
            arguments[name] = _anew(arguments[name])
        made.compile(**arguments | {"optimizer": optimizer})
    own_attributes_of(made)["optimizer"] = optimizer
    return made


def reset_metrics(made: keras.Model) -> None:
    """Begins the means that a phase's model logs anew."""
    parallel = made._keras_parallel
    parallel.keeps_metrics = False
    try:
        made.reset_metrics()
    finally:
        parallel.keeps_metrics = True


def prepare(made: keras.Model) -> None:
    """Builds the optimizer of a phase's model, for what the phase trains."""
    optimizer = made.optimizer
    if optimizer is None or not made.built:
        return
    variables = made.trainable_variables
    if not optimizer.built:
        optimizer.build(variables)
    own_attributes_of(made)["optimizer"] = _phase_optimizer.on_variables(
        optimizer, variables
    )


def _anew(metrics):
    """The same metrics, with a state of their own."""

    def new(metric):
        if not isinstance(metric, keras.metrics.Metric):
            return metric
        return type(metric).from_config(metric.get_config())

    return keras.tree.map_structure(new, metrics, none_is_leaf=False)
