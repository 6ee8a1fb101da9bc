"""Which backend Keras runs on, and the engine for it."""

import functools
import importlib
import importlib.util
import json
import os
import pathlib
import sys

from keras_parallel._errors import BackendError
from keras_parallel._errors import DeviceError
from keras_parallel._logging import logger
from keras_parallel.engines import _tensorflow
from keras_parallel.engines.base import Engine
from keras_parallel.planning import KINDS

# Backends with an engine, in the order in which one is picked when the user
# chose none, with the module of the engine.
_ENGINES = {"jax": "keras_parallel.engines.jax"}

_WRITTEN_BY_KERAS = {
    "floatx": "float32",
    "epsilon": 1e-07,
    "backend": "tensorflow",
    "image_data_format": "channels_last",
}

VIRTUAL_DEVICES_VARIABLE = "KERAS_PARALLEL_VIRTUAL_DEVICES"


def choose_backend() -> str | None:
    """Picks an installed backend if the user chose none.

    Keras itself falls back on TensorFlow even where only another backend is
    installed. An explicit choice (`KERAS_BACKEND`, `keras.json`, or a Keras
    that is imported already) is never overridden.

    Returns:
        The name picked, or `None` if there was nothing to pick.
    """
    if (
        "keras" in sys.modules
        or os.environ.get("KERAS_BACKEND")
        or _chosen_in_keras_json()
    ):
        return None
    for name in _ENGINES:
        if _is_installed(name):
            os.environ["KERAS_BACKEND"] = name
            logger.info(
                "no Keras backend was chosen, so %r is used "
                "(set KERAS_BACKEND to choose another)",
                name,
            )
            return name
    return None


def _keras_json():
    home = os.environ.get("KERAS_HOME")
    folder = pathlib.Path(home) if home else pathlib.Path.home() / ".keras"
    try:
        settings = json.loads((folder / "keras.json").read_text())
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _chosen_in_keras_json():
    settings = _keras_json()
    backend = settings.get("backend")
    # Keras writes this file by itself at its first import, whatever backend
    # runs then. As written, or without a TensorFlow, nobody has meant it.
    return (
        backend is not None
        and settings != _WRITTEN_BY_KERAS
        and (backend != "tensorflow" or _is_installed("tensorflow"))
    )


def keep_tensorflow_off_accelerators() -> None:
    """Hides accelerators from a TensorFlow that only feeds data."""
    _tensorflow.keep_off_accelerators(_tensorflow_only_feeds)


def _tensorflow_only_feeds():
    config = getattr(sys.modules.get("keras"), "config", None)
    if config is not None:
        backend = config.backend()
    else:
        # As Keras reads it. TensorFlow may be imported by Keras right now.
        backend = os.environ.get("KERAS_BACKEND") or _keras_json().get(
            "backend", "tensorflow"
        )
    return backend in _ENGINES and backend != "tensorflow"


def _is_installed(name):
    return importlib.util.find_spec(name) is not None


def _check_engine(backend):
    if backend not in _ENGINES:
        raise BackendError(
            f"keras-parallel has an engine for {list(_ENGINES)}. "
            f"Received: the Keras backend {backend!r}. To use another, set "
            f"`KERAS_BACKEND={next(iter(_ENGINES))}` before Keras is imported."
        )


@functools.cache
def _engine_for(backend: str) -> Engine:
    _check_engine(backend)
    return importlib.import_module(_ENGINES[backend]).create()


def active_engine() -> Engine:
    """The engine for the backend that Keras runs on.

    Raises:
        BackendError: if there is none.
    """
    choose_backend()
    chosen = os.environ.get("KERAS_BACKEND", "")
    if chosen and "keras" not in sys.modules:
        _check_engine(chosen)
    try:
        import keras
    except ModuleNotFoundError as error:
        if error.name == "keras":
            raise
        raise BackendError(
            "Keras runs on a backend that is installed. Received: "
            f"KERAS_BACKEND={os.environ.get('KERAS_BACKEND')!r}, and {error}. "
            "Install it, or set one that is there, such as "
            f"`KERAS_BACKEND={next(iter(_ENGINES))}`, before Keras is imported."
        ) from error
    return _engine_for(keras.config.backend())


def list_devices(device_type: str | None = None) -> list[str]:
    """The names of the devices that can be used, best kind first.

    Args:
        device_type: `"gpu"`, `"tpu"` or `"cpu"` for the devices of one kind.
            Defaults to `None`, for all of them.

    Returns:
        Names such as `["gpu:0", "gpu:1", "cpu:0"]`. GPUs count within
        `CUDA_VISIBLE_DEVICES`. The name of a virtual device is an ordinary
        string that prints as `'gpu:0' (virtual)` inside a list.

    Raises:
        DeviceError: if `device_type` is no kind of device.
    """
    devices = active_engine().list_devices()
    if device_type is not None:
        kind = str(device_type).lower()
        if kind not in KINDS:
            raise DeviceError(
                f"`device_type` is one of {list(KINDS)}. Received: "
                f"device_type={device_type!r}. A call that works: "
                f"`keras_parallel.list_devices('{KINDS[0]}')`."
            )
        devices = tuple(d for d in devices if d.kind == kind)
    return [_VirtualName(d.name) if d.virtual else d.name for d in devices]


class _VirtualName(str):
    """A device name that shows in a printed list that it is virtual."""

    __slots__ = ()

    def __repr__(self):
        return f"{super().__repr__()} (virtual)"


def use_virtual_devices(n: int) -> None:
    """Makes CPU devices that stand for `n` GPUs, to develop without GPUs.

    `"gpu:0"` to `f"gpu:{n - 1}"` become CPU devices, and `"cpu:0"` is one
    more of its own, which `devices=None` leaves out. Call it before the
    backend starts: before the first layer or tensor is made. From outside,
    `KERAS_PARALLEL_VIRTUAL_DEVICES=8` does the same. On a host with real
    accelerators those are used, and a warning says so.

    Args:
        n: Number of virtual GPUs, at least 1.

    Raises:
        DeviceError: if `n` is no positive integer.
        AlreadyStartedError: if the backend has started with other devices.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise DeviceError(
            "The number of virtual devices is an integer of at least 1. "
            f"Received: n={n!r}. A call that works: "
            "`keras_parallel.use_virtual_devices(8)`."
        )
    active_engine().use_virtual_devices(n)


def apply_environment() -> None:
    """Does what `KERAS_PARALLEL_VIRTUAL_DEVICES` asks for, if it is set."""
    text = os.environ.get(VIRTUAL_DEVICES_VARIABLE)
    if not text:
        return
    if not text.isdecimal() or int(text) < 1:
        raise DeviceError(
            f"`{VIRTUAL_DEVICES_VARIABLE}` is the number of virtual devices, "
            f"at least 1. Received: {text!r}. A value that works: "
            f"`{VIRTUAL_DEVICES_VARIABLE}=8`."
        )
    use_virtual_devices(int(text))


def set_virtual_devices_from_outside(n: int) -> None:
    """Asks for `n` virtual devices here and in the processes started here."""
    os.environ[VIRTUAL_DEVICES_VARIABLE] = str(n)
