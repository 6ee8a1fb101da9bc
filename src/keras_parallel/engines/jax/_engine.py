"""The devices of JAX, and replicas on them."""

import dataclasses
import importlib.metadata
import os
import types
import warnings

import jax
import keras

from keras_parallel._errors import AlreadyStartedError
from keras_parallel._errors import BackendError
from keras_parallel._errors import ClusterError
from keras_parallel._errors import DeviceError
from keras_parallel._logging import logger
from keras_parallel.engines.base import Engine
from keras_parallel.engines.jax import _processes
from keras_parallel.engines.jax._compilations import compilations
from keras_parallel.engines.jax._profile import profile
from keras_parallel.engines.jax._replicas import JaxReplicas
from keras_parallel.engines.jax._rounds import JaxRoundsLayer
from keras_parallel.engines.jax._stages import JaxStages
from keras_parallel.planning import Device
from keras_parallel.planning.devices import best_kind

# JAX's names for platforms that we call by one name.
_KIND_OF_PLATFORM = {"gpu": "gpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}


class JaxEngine(Engine):
    """Devices and replicas on JAX. See `Engine`."""

    runtime_attributes = ("_jax_state", "_jax_state_synced")
    # TensorFlow and PyTorch, if the worker uses them, obey the second.
    worker_environment = types.MappingProxyType(
        {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    )

    def __init__(self):
        self._num_virtual = 0
        # `Device` -> `jax.Device`, read when the backend is first needed.
        self._known = None
        self._processes = None

    @property
    def backend(self):
        return "jax"

    def list_devices(self):
        return tuple(self._devices())

    def _devices(self):
        if self._known is None:
            self._known = self._read_devices()
        return self._known

    def _read_devices(self):
        local = self._read_local(_local_devices())
        if self._processes is None:
            return local
        return self._read_all(local)

    def _read_all(self, local):
        """The devices of all processes, by rank; each has one kind only.

        JAX tells the devices of all processes for one platform.
        """
        best = best_kind(tuple(local))
        platform = local[best[0]].platform
        of_all = [d for d in jax.devices() if d.platform == platform]
        known = {}
        for rank in range(self._processes.count):
            of_rank = [d for d in of_all if d.process_index == rank]
            if self._num_virtual:
                of_rank = of_rank[:-1]
            for device, jax_device in zip(best, of_rank):
                joint = dataclasses.replace(device, worker=rank)
                known[joint] = jax_device
        return known

    def _read_local(self, local):
        count = self._num_virtual
        if count and local[0].platform == "cpu":
            known = {
                Device("gpu", i, virtual=True): local[i] for i in range(count)
            }
            return known | {Device("cpu", 0, virtual=True): local[count]}
        known = {}
        for kind in ("gpu", "tpu"):
            same_kind = [
                d for d in local if _KIND_OF_PLATFORM.get(d.platform) == kind
            ]
            known |= {Device(kind, i): d for i, d in enumerate(same_kind)}
        cpus = _cpu_devices()
        if count:
            logger.warning(
                "this host has accelerators (%s): they are used, and no "
                "virtual devices",
                ", ".join(d.name for d in known),
            )
            cpus = cpus[:1]
        return known | {Device("cpu", i): d for i, d in enumerate(cpus)}

    def use_virtual_devices(self, count):
        if self._num_virtual == count:
            return
        try:
            jax.config.update("jax_num_cpu_devices", count + 1)
        except RuntimeError as error:
            raise AlreadyStartedError(
                f"Virtual devices are made before JAX starts. Received: "
                f"use_virtual_devices({count}), but JAX runs already with "
                f"{[str(d) for d in jax.local_devices()]}. A layer, a tensor, "
                "a random seed or a list of devices starts it: move the call "
                "above all of those, to the line after the imports. In a "
                "notebook, restart the kernel first. From outside, "
                f"`keras-parallel run --virtual-devices {count} script.py` "
                "is never too late."
            ) from error
        _reserve_threads(count + 1)
        self._num_virtual = count

    @property
    def processes(self):
        return self._processes

    def join(self, address, count, rank, timeout, local_devices):
        if self._known is not None:
            _processes.refuse_started()
        self._processes = _processes.join(
            address, count, rank, timeout, local_devices
        )
        self._check_alike()

    def _check_alike(self):
        """All processes have as many devices, of one kind: rows are equal."""
        local = best_kind(tuple(self._read_local(_local_devices())))
        mine = f"{len(local)} of kind {local[0].kind!r}"
        found = self._processes.gathered(mine.encode(), "its devices")
        counts = [text.decode() for text in found]
        if len({*counts}) > 1:
            self._processes.leave()
            raise ClusterError(
                "Each process of a job has as many devices of the same kind. "
                "Received, by rank: "
                + "; ".join(f"{i}: {text}" for i, text in enumerate(counts))
                + ". Where a process has the wrong kind, its accelerators "
                "could not be started: `keras-parallel devices` there says "
                "why. A start that works gives each as many: `srun "
                "--gpus-per-task=1 python script.py`."
            )

    @property
    def rounds_layer(self):
        return JaxRoundsLayer

    def replicas(self, devices, report, shard_optimizer=False):
        self._check_process()
        _check_randomness()
        known = self._devices()
        return JaxReplicas(
            devices, [known[d] for d in devices], report, shard_optimizer
        )

    def stages(self, devices, homes_of, traced):
        self._check_process()
        if self._processes is not None:
            raise BackendError(
                "The stages of a model lie in one process so far. Received: "
                f"process {self._processes.rank} of {self._processes.count} "
                "of a job. Train a device-parallel model in a process of its "
                "own, or one that holds it whole in a job: "
                "`keras_parallel.data_parallel(model)`."
            )
        known = self._devices()
        return JaxStages(devices, [known[d] for d in devices], homes_of, traced)

    def _check_process(self):
        if self._processes is None and jax.process_count() > 1:
            raise BackendError(
                "Processes of a job are joined by keras_parallel, which keeps "
                "them in step. Received: process "
                f"{jax.process_index()} of {jax.process_count()} of "
                "`jax.distributed`. In place of "
                "`jax.distributed.initialize(...)`, with the same arguments: "
                "`keras_parallel.cluster.initialize()`."
            )
        if keras.config.is_nnx_enabled():
            raise BackendError(
                "Variables that belong to flax.nnx are not placed on several "
                "devices. Received: keras.config.is_nnx_enabled() is True. "
                "Unset `KERAS_NNX_ENABLED`."
            )

    def profile(self):
        return profile(self._devices())

    def imagined(self, make):
        made = []

        def trace():
            made.extend(
                keras.KerasTensor(v.shape, v.dtype, name=v.name) for v in make()
            )

        jax.eval_shape(trace)
        return made

    def held_dtype(self, dtype):
        # Without `jax_enable_x64`, no entry is wider than 32 bits.
        return str(jax.dtypes.canonicalize_dtype(dtype))

    def compilations(self):
        return compilations()

    def versions(self):
        return {
            name: importlib.metadata.version(name) for name in ("jax", "jaxlib")
        }


def _local_devices():
    try:
        return jax.local_devices()
    except (RuntimeError, AssertionError) as error:
        # JAX 0.10.2 asserts that there is a device.
        raise DeviceError(
            "JAX runs on a device of this host. Received: JAX_PLATFORMS="
            f"{os.environ.get('JAX_PLATFORMS')!r}, and JAX finds no device: "
            f"{str(error) or 'none of that platform'}. A setting that works: "
            "`JAX_PLATFORMS=cpu`."
        ) from error


def _cpu_devices():
    try:
        return jax.local_devices(backend="cpu")
    except RuntimeError:
        # `JAX_PLATFORMS=cuda` leaves the CPU out.
        return []


def _reserve_threads(num_devices):
    """Gives XLA's CPU client a thread for each device and each collective.

    Blocked collectives and matrix products share one pool there, sized by
    the number of cores. With more devices than threads a step stops in an
    all-reduce that some devices never reach, and XLA aborts the process.
    XLA reads the size from `PJRT_NPROC` when the backend starts. To be
    deleted when XLA sizes the pool by the number of devices.
    """
    wanted = 2 * num_devices
    given = os.environ.get("PJRT_NPROC", "")
    if not given.isdecimal() or int(given) < wanted:
        os.environ["PJRT_NPROC"] = str(wanted)


def _check_randomness():
    # With these defaults JAX draws the same numbers however an array is
    # sharded (jax.random, "advanced random number generator configuration").
    generator, partitionable = (
        getattr(jax.config, name)
        for name in ("jax_default_prng_impl", "jax_threefry_partitionable")
    )
    if generator == "threefry2x32" and partitionable:
        return
    warnings.warn(
        "Random numbers may depend on the number of devices: that they do not "
        "holds for JAX's default generator only. Received: "
        f"jax_default_prng_impl={generator!r}, jax_threefry_partitionable="
        f"{partitionable}. Leave both at their "
        "defaults ('threefry2x32' and True).",
        stacklevel=2,
    )
