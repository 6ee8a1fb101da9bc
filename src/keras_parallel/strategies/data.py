"""Data parallelism: a replica on each device, a slice of the batch for each.

Synchronous and exact: the batch, its statistics, its loss and its metrics
are those of the whole batch, as on one device.
"""

import copy
import numbers
from collections.abc import Sequence

import keras

from keras_parallel._logging import logger
from keras_parallel.engines import active_engine
from keras_parallel.planning import choose_devices
from keras_parallel.strategies import _data_plan
from keras_parallel.strategies import _feeding
from keras_parallel.strategies._overlay import check_template
from keras_parallel.strategies._overlay import overlay
from keras_parallel.strategies._training import TrainingState
from keras_parallel.strategies._training import check_not_distributed
from keras_parallel.strategies._training import check_overrides
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
    check_template(model, "data_parallel")
    engine = active_engine()
    chosen = choose_devices(devices, engine.list_devices(), argument)
    check_not_distributed(model)
    state = DataParallelState(model, engine, chosen, shard_optimizer)
    check_overrides(model, state.replicas)
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


class DataParallelState(TrainingState):
    """What a data-parallel model holds beside the user's model."""

    splits_rows = True

    def __init__(self, template, engine, devices, shard_optimizer, layers=()):
        self.replicas = engine.replicas(devices, self._report, shard_optimizer)
        super().__init__(template, engine, self.replicas, layers)

    def like(self, template, layers=()):
        return DataParallelState(
            template,
            self.engine,
            self.replicas.devices,
            self.replicas.shard_optimizer,
            layers,
        )

    def by_itself(self):
        rank = self.engine.processes.rank
        own = [d for d in self.replicas.devices if d.worker == rank]
        alone = copy.copy(self)
        alone.replicas = alone.execution = self.engine.replicas(
            tuple(own), self._report, self.replicas.shard_optimizer
        )
        alone.states = {}
        alone.is_quiet = True
        return alone

    def plan(self, model, batch_size):
        return _data_plan.plan_of(self, model, batch_size)

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
