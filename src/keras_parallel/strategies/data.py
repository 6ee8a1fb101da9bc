"""Data parallelism: a replica on each device, a slice of the batch for each.

Synchronous and exact: the batch, its statistics, its loss and its metrics
are those of the whole batch, as on one device.
"""

import contextlib
import functools
import inspect
import numbers
from collections.abc import Sequence

import keras

from keras_parallel._errors import DistributionSetError
from keras_parallel._errors import RefusedModelError
from keras_parallel._logging import logger
from keras_parallel.engines import active_engine
from keras_parallel.planning import choose_devices
from keras_parallel.strategies import _checks
from keras_parallel.strategies import _data_plan
from keras_parallel.strategies import _feeding
from keras_parallel.strategies import _keras
from keras_parallel.strategies import _mistakes
from keras_parallel.strategies import _targets
from keras_parallel.strategies._names import check_old_output_names
from keras_parallel.strategies._overlay import Overlay
from keras_parallel.strategies._overlay import OverlayState
from keras_parallel.strategies._overlay import check_template
from keras_parallel.strategies._overlay import overlay
from keras_parallel.strategies._wording import error
from keras_parallel.strategies._wording import shown


def data_parallel(
    model: keras.Model,
    devices: int | Sequence[str] | None = None,
    *,
    shard_optimizer: bool = False,
) -> keras.Model:
    """Makes a model that trains on several devices as if on one.

    Every device holds a replica of `model` and works on its own rows of each
    batch. Losses, metrics, weights, optimizer slots and non-trainable
    variables are those that one device would have given for the same
    batches; `batch_size` stays that of the whole batch.

    Example:

    ```python
    parallel = keras_parallel.data_parallel(model)
    parallel.compile(optimizer="rmsprop", loss="categorical_crossentropy")
    parallel.fit(x, y, batch_size=256)   # 8 devices: 32 rows each
    model.save("model.keras")            # the same weights
    ```

    Args:
        model: Any `keras.Model`, built or not, compiled or not. It shares
            its variables with the parallel model. If it is compiled, the
            parallel model adopts its losses, metrics and optimizer.
        devices: `None` for all devices of the best kind, an int for the
            first that many, or a list of names such as `["gpu:0", "gpu:1"]`.
        shard_optimizer: Whether each device keeps its own part of the
            optimizer's slots only, and updates that part of the weights
            (ZeRO stage 1, arXiv:1910.02054; in XLA arXiv:2004.13336). The
            numbers and the files stay the same; N devices hold 1/N of the
            slots each. A slot is split along its largest dim that N divides;
            one without such a dim stays whole on each device.

    Returns:
        A `keras.Model` with the names, layers and outputs of `model`, that
        is saved as `model` would be. For a subclassed model it is an
        instance of that class too.

    Raises:
        DeviceError: if the devices are not there or cannot be combined.
        RefusedModelError: if no parallel model can be made of `model`.
        BackendError: if there is no engine for the Keras backend in use.
        InputError: if `shard_optimizer` is neither `True` nor `False`.
    """
    if not isinstance(shard_optimizer, bool):
        raise error(
            "`shard_optimizer` is `True` or `False`.",
            f"shard_optimizer={shown(shard_optimizer)}",
            "keras_parallel.data_parallel(model, shard_optimizer=True)",
        )
    return _make(model, devices, "devices", shard_optimizer)


def _make(model, devices, argument, shard_optimizer=False):
    _feeding.check_not_starting("a parallel model was made")
    check_template(model)
    engine = active_engine()
    chosen = choose_devices(devices, engine.list_devices(), argument)
    _check_no_distribution()
    _check_variables(model)
    state = DataParallelState(model, engine, chosen, shard_optimizer)
    _check_overrides(model, state.replicas.reserved_methods)
    return overlay(state)


def multi_gpu_model(
    model: keras.Model,
    gpus: int | Sequence[int | str] | None = None,
    cpu_merge: bool = True,
    cpu_relocation: bool = False,
) -> keras.Model:
    """The classic spelling of `data_parallel`.

    The signature is that of `keras.utils.multi_gpu_model`, which Keras
    removed in 2020. What it renamed keeps its name here.

    Args:
        model: See `data_parallel`.
        gpus: `None` for all, an int for the first that many, or a list of
            GPU indices such as `[0, 2]`.
        cpu_merge: Accepted and without effect: nothing is merged on the CPU.
        cpu_relocation: Accepted and without effect: each device holds the
            weights.

    Returns:
        See `data_parallel`.

    Raises:
        DeviceError: if there are fewer GPUs than asked for. The message says
            what is there and how to try on virtual devices.
        RefusedModelError: if no parallel model can be made of `model`.
    """
    del cpu_merge, cpu_relocation
    if isinstance(gpus, list | tuple | range):
        gpus = [
            g
            if isinstance(g, bool) or not isinstance(g, numbers.Integral)
            else f"gpu:{g}"
            for g in gpus
        ]
    return _make(model, gpus, "gpus")


class DataParallelState(OverlayState):
    """What a data-parallel model holds beside the user's model."""

    def __init__(self, template, engine, devices, shard_optimizer):
        self.engine = engine
        self.replicas = engine.replicas(devices, self._report, shard_optimizer)
        super().__init__(
            template,
            (DataParallelLayer, self.replicas.trainer_layer),
            self.replicas.runtime_attributes,
        )
        # Kind of step -> the engine's view of the variables it takes.
        self.states = {}
        # The batch that a step failed with, until that is explained.
        self.failed_batch = None
        # Whether nothing is logged, as for a model that is only tried out.
        self.is_quiet = False

    def made_parallel(self, template):
        return data_parallel(
            template,
            [d.name for d in self.replicas.devices],
            shard_optimizer=self.replicas.shard_optimizer,
        )

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
            return self.replicas.place_batch(batch)

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

    def plan(self, model, batch_size):
        return _data_plan.plan_of(self, model, batch_size)

    def running(self, model):
        _check_no_distribution()
        return self.replicas.running(model)

    def _report(self, layout):
        if self.is_quiet:
            return
        self.is_quiet = True  # Once is enough.
        devices = self.replicas.devices
        count = len(devices)
        logger.info(
            "data parallel on %d device%s (%s%s), batches of %d row%s: %s",
            count,
            "" if count == 1 else "s",
            ", ".join(d.name for d in devices),
            ", virtual" if devices[0].virtual else "",
            layout.rows,
            "" if layout.rows == 1 else "s",
            layout,
        )
        if not layout.split and layout.rows >= count:
            logger.warning(
                "batches of %d rows do not divide by %d devices: the result "
                "is exact, but each device computes the whole batch. A "
                "batch_size of %d is shared out",
                layout.rows,
                count,
                -(-layout.rows // count) * count,
            )


def _step_of(model, kind):
    """The step that the user's model has, without what is put above it."""
    return getattr(model._keras_parallel.template, f"{kind}_step")


# Those that may train for long before they look at all arguments.
_CHECKED_BEFORE = ("fit", "evaluate", "predict")


def _runs_on_replicas(name):
    """Makes a method that runs Keras's on the replicas."""
    keras_method = getattr(keras.Model, name)

    @functools.wraps(keras_method)
    def method(self, *args, **kwargs):
        parallel = self._keras_parallel
        if name in _CHECKED_BEFORE:
            _checks.check_before(self, name, args, kwargs)
        try:
            with parallel.running(self):
                return getattr(super(DataParallelLayer, self), name)(
                    *args, **kwargs
                )
        except Exception as failure:
            batch, parallel.failed_batch = parallel.failed_batch, None
            _checks.explain(failure, self, name, args, kwargs, batch)
            raise

    return method


def _is_fed(name):
    """Makes a method that reads datasets and runs Keras's on the replicas."""
    on_replicas = _runs_on_replicas(name)

    @functools.wraps(on_replicas)
    def method(self, *args, **kwargs):
        engine = self._keras_parallel.engine
        with _feeding.fed(name, engine, args, kwargs) as (args, kwargs):
            return on_replicas(self, *args, **kwargs)

    return method


class DataParallelLayer(Overlay):
    """What data parallelism puts above the engine's trainer layer."""

    fit = _is_fed("fit")
    evaluate = _is_fed("evaluate")
    predict = _is_fed("predict")
    train_on_batch = _runs_on_replicas("train_on_batch")
    test_on_batch = _runs_on_replicas("test_on_batch")
    predict_on_batch = _runs_on_replicas("predict_on_batch")

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
                "The weights of a data-parallel model are not laid out by a "
                f"`keras.distribution`. Received: {variable.path!r} with the "
                f"layout {layout}. A call that works, before the model is "
                "built: `keras.distribution.set_distribution(None)`."
            )


def _check_overrides(model, reserved_methods):
    for name in reserved_methods:
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
