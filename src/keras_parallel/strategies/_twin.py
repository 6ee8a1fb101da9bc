"""Other models of the user's model, to try it out.

A twin shares the variables and the compile state of a model and has compiled
functions, a history and flags of its own. What it does to what it shares is
for the caller to undo.
"""

import functools
from typing import Any

import keras

from keras_parallel.strategies import _targets
from keras_parallel.strategies._overlay import Overlay
from keras_parallel.strategies._overlay import OverlayState
from keras_parallel.strategies._overlay import adopt
from keras_parallel.strategies._overlay import overlay
from keras_parallel.strategies._overlay import own_attributes_of
from keras_parallel.strategies.data import data_parallel


def is_parallel(model: keras.Layer) -> bool:
    """Whether `model` is one of ours."""
    # Its `__class__` is that of the user.
    return issubclass(type(model), Overlay)


def template_of(model: Any) -> Any:
    """The user's model: what `model` was made from, or `model` itself."""
    return model._keras_parallel.template if is_parallel(model) else model


def parallel_twin(model: keras.Model) -> keras.Model:
    """A parallel model like `model`, or on all devices if it is plain."""
    if not is_parallel(model):
        return _quiet(data_parallel(model))
    parallel = model._keras_parallel
    return adopt(_quiet(parallel.made_parallel(parallel.template)), model)


def one_device_twin(model: keras.Model, parallel: keras.Model) -> keras.Model:
    """A model that plain Keras runs, on one device.

    Args:
        model: The model, plain or parallel.
        parallel: A parallel twin of it.
    """
    runtime = parallel._keras_parallel.engine.runtime_attributes
    state = _OneDeviceState(template_of(model), (Overlay,), runtime)
    twin = overlay(state)
    return adopt(twin, model) if is_parallel(model) else twin


def watch(twin: keras.Model, wrap_step, wrap_preparation=None) -> None:
    """Puts functions of the caller around the train step of a twin.

    Args:
        twin: A twin that has not trained.
        wrap_step: Takes the function that Keras calls for each step, and
            returns the one to call.
        wrap_preparation: Takes what is applied to each batch, and returns
            what to apply. For a parallel twin.
    """
    make = twin.make_train_function

    def make_watched(force=False):
        before = twin.train_function
        make(force)
        if twin.train_function is not before:
            twin.train_function = wrap_step(twin.train_function)

    own_attributes_of(twin)["make_train_function"] = make_watched
    if wrap_preparation is not None:
        parallel = twin._keras_parallel
        prepared = parallel.batch_preparation

        @functools.wraps(prepared)
        def watched(model, kind):
            prepare = prepared(model, kind)
            return wrap_preparation(prepare) if kind == "train" else prepare

        parallel.batch_preparation = watched


def in_plain_form(parallel: keras.Model, batch):
    """A batch as plain Keras takes it, where names are ours to resolve."""
    state = parallel._keras_parallel
    if not _targets.is_of_keras(state.template.train_step):
        return batch
    return state.target_order(parallel, "train")(batch)


class _OneDeviceState(OverlayState):
    """What a model that only reads as another one holds."""

    def like(self, template, layers=()):
        # Asked for by a copy of the model, and nobody copies a twin.
        raise NotImplementedError


def _quiet(twin):
    # The user has not called `fit`.
    twin._keras_parallel.is_quiet = True
    return twin
