"""What all modes of training a Keras model have in common.

Callbacks, files, exceptions, the order of targets and what is said of
mistakes are the same in each: a mode adds where its parts run.
"""

import contextlib
import functools
import inspect

import keras

from keras_parallel._errors import DistributionSetError
from keras_parallel._errors import RefusedModelError
from keras_parallel.strategies import _checks
from keras_parallel.strategies import _feeding
from keras_parallel.strategies import _job
from keras_parallel.strategies import _keras
from keras_parallel.strategies import _mistakes
from keras_parallel.strategies import _once
from keras_parallel.strategies import _targets
from keras_parallel.strategies._names import check_old_output_names
from keras_parallel.strategies._overlay import Overlay
from keras_parallel.strategies._overlay import OverlayState
from keras_parallel.strategies._overlay import adopt
from keras_parallel.strategies._overlay import overlay


class TrainingState(OverlayState):
    """What a parallel model that trains holds beside the user's model.

    Args:
        template: The user's model.
        engine: The engine of the backend.
        execution: What runs its methods on several devices.
        layers: Classes of the mode, to put above that of the user's model.
    """

    # Whether each device computes rows of its own of a batch.
    splits_rows = False

    def __init__(self, template, engine, execution, layers=()):
        self.engine = engine
        self.execution = execution
        super().__init__(
            template,
            (*layers, TrainingLayer, execution.trainer_layer),
            engine.runtime_attributes,
        )
        # Kind of step -> the engine's view of the variables it takes.
        self.states = {}
        # The batch that a step failed with, until that is explained.
        self.failed_batch = None
        # Whether nothing is logged, as for a model that is only tried out.
        self.is_quiet = False
        # For callbacks of a job of several processes.
        self._own_twin = None

    def compile_arguments(self, model, args, kwargs):
        if not _targets.is_of_keras(self.template.compile):
            check_old_output_names(model, kwargs)
            return args, kwargs
        signature = inspect.signature(keras.Model.compile)
        try:
            kwargs = signature.bind(model, *args, **kwargs).arguments
        except TypeError:
            return args, kwargs  # Keras says what it does not know.
        del kwargs["self"]
        check_old_output_names(model, kwargs)
        names = _targets.output_order(model)
        if names is not None:
            wrong = _mistakes.wrong_loss_weights(names, kwargs)
            if wrong is not None:
                raise wrong
            kwargs = _targets.complete_losses(names, kwargs)
        return (), kwargs

    def users(self, name, of_the_class):
        step = super().users(name, of_the_class)

        # Runs while a step is compiled only.
        @functools.wraps(step)
        def noting_what_fails(*args):
            with self.noting(lambda: args[-1]):
                return step(*args)

        return noting_what_fails

    @contextlib.contextmanager
    def noting(self, batch):
        """Keeps `batch()` if what runs inside fails."""
        try:
            yield
        except Exception:
            self.failed_batch = batch()
            raise

    def batch_preparation(self, model, kind):
        """What is applied to each batch before a step of `kind` takes it."""

        def place(batch):
            return self.execution.place_batch(batch)

        if not _targets.is_of_keras(_step_of(model, kind)):
            return place  # It may want the batch as it comes.
        order = self.target_order(model, kind)
        return lambda batch: place(order(batch))

    def target_order(self, model, kind):
        """What puts targets in the order of outputs for a step of Keras.

        It also gives all batches the form in which `fit` passes them:
        `train_on_batch` passes `(x, y, None)`, which would be compiled anew.
        """
        names = None
        if kind != "predict" and _targets.is_of_keras(_step_of(model, kind)):
            names = _targets.output_order(model)
        return functools.partial(_targets.in_output_order, model, names or [])

    def running(self, model):
        _check_no_distribution()
        return self.execution.running(model)

    @property
    def processes(self):
        """The job that trains the model, if other processes take part."""
        workers = {device.worker for device in self.execution.devices}
        return self.engine.processes if len(workers) > 1 else None

    def by_itself(self) -> "TrainingState":
        """What a model like this one holds on the devices of this process."""
        raise NotImplementedError

    def own_twin(self, model):
        """A twin of the parallel `model` that this process runs alone."""
        if self._own_twin is None:
            alone = self.by_itself()
            alone.hidden = {*self.hidden}
            alone.own_attributes = {*self.own_attributes}
            self._own_twin = overlay(alone)
        return adopt(self._own_twin, model)


def _step_of(model, kind):
    """The step that the user's model has, without what is put above it."""
    return getattr(model._keras_parallel.template, f"{kind}_step")


# Those that may train for long before they look at all arguments.
_CHECKED_BEFORE = ("fit", "evaluate", "predict")


def _runs_on_devices(name):
    """Makes a method that runs Keras's on the devices."""
    keras_method = getattr(keras.Model, name)

    @functools.wraps(keras_method)
    def method(self, *args, **kwargs):
        parallel = self._keras_parallel
        if parallel.processes is not None and _once.in_callback():
            # Other processes wait for what the callback does.
            twin = parallel.own_twin(self)
            with parallel.execution.by_itself(_job.variables_of(self)):
                return getattr(twin, name)(*args, **kwargs)
        if name in _CHECKED_BEFORE:
            _checks.check_before(self, name, args, kwargs)
        try:
            with parallel.running(self):
                return getattr(super(TrainingLayer, self), name)(
                    *args, **kwargs
                )
        except Exception as failure:
            batch, parallel.failed_batch = parallel.failed_batch, None
            _checks.explain(failure, self, name, args, kwargs, batch)
            raise

    return method


def _is_fed(name):
    """Makes a method that reads datasets and runs Keras's on the devices."""
    on_devices = _runs_on_devices(name)

    @functools.wraps(on_devices)
    def method(self, *args, **kwargs):
        parallel = self._keras_parallel
        with contextlib.ExitStack() as stack:
            fed = _feeding.fed(name, parallel.engine, args, kwargs)
            args, kwargs = stack.enter_context(fed)
            together = _job.together(
                parallel.processes,
                getattr(parallel.template, name),
                lambda: _job.variables_of(self),
                args,
                kwargs,
            )
            args, kwargs = stack.enter_context(together)
            return on_devices(self, *args, **kwargs)

    return method


class TrainingLayer(Overlay):
    """What is put above the engine's trainer layer."""

    fit = _is_fed("fit")
    evaluate = _is_fed("evaluate")
    predict = _is_fed("predict")
    train_on_batch = _runs_on_devices("train_on_batch")
    test_on_batch = _runs_on_devices("test_on_batch")
    predict_on_batch = _runs_on_devices("predict_on_batch")

    def _symbolic_build(self, iterator=None, data_batch=None):
        # Keras builds losses and metrics from the first batch, before any
        # step has seen it.
        parallel = self._keras_parallel
        order = parallel.target_order(self, "train")
        seen = [data_batch if iterator is None else _checks.NO_BATCH]

        def see(batch):
            seen[0] = batch
            return order(batch)

        if data_batch is not None:
            data_batch = order(data_batch)
        elif iterator is not None:
            iterator = (
                (first, last, map(see, batches))
                for first, last, batches in iterator
            )
        with parallel.noting(lambda: seen[0]):
            super()._symbolic_build(iterator, data_batch)


def check_not_distributed(model):
    """Raises if Keras itself places `model` or its batches."""
    _check_no_distribution()
    _check_variables(model)


def _check_no_distribution():
    distribution = keras.distribution.distribution()
    if distribution is not None:
        raise DistributionSetError(
            "A parallel model places its own batches and weights, and a "
            "global `keras.distribution` would place them again. Received: "
            f"{type(distribution).__name__} is set. Call "
            "`keras.distribution.set_distribution(None)` first."
        )


def _check_variables(model):
    for variable in model.variables:
        layout = _keras.layout_of(variable)
        if layout is not None:
            raise RefusedModelError(
                "The weights of a parallel model are not laid out by a "
                f"`keras.distribution`. Received: {variable.path!r} with the "
                f"layout {layout}. A call that works, before the model is "
                "built: `keras.distribution.set_distribution(None)`."
            )


def check_overrides(model, execution):
    """Raises if `model` overrides what `execution` needs."""
    for name in execution.reserved_methods:
        implemented = getattr(type(model), name, None)
        module = getattr(implemented, "__module__", "")
        if implemented is not None and not module.startswith("keras."):
            raise RefusedModelError(
                f"The class {type(model).__name__!r} overrides `{name}`, a "
                "private method of Keras by which the state reaches a step; "
                "replicas need that place. Received: "
                f"`{type(model).__name__}.{name}`. Override `train_step` "
                "instead: it receives and returns the whole state."
            )
