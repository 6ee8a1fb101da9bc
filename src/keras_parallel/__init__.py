"""Keras 3 models on every device and machine, equal to one device.

Importing this module loads neither Keras nor a backend; its names are
resolved when they are first used.
"""

import importlib
import typing

__version__ = "0.1.0"

# Public name -> the module that defines it.
_PUBLIC = {
    "AlternatingTrainer": "keras_parallel.strategies.alternating",
    "Phase": "keras_parallel.strategies.alternating",
    "check": "keras_parallel.inspection._check",
    "data_parallel": "keras_parallel.strategies.data",
    "device_parallel": "keras_parallel.strategies.device",
    "device_scope": "keras_parallel.strategies.device",
    "list_devices": "keras_parallel.engines",
    "multi_gpu_model": "keras_parallel.strategies.data",
    "plan": "keras_parallel.inspection._plan",
    "trace": "keras_parallel.inspection._trace",
    "use_virtual_devices": "keras_parallel.engines",
}
_PUBLIC_MODULES = ("testing",)

__all__ = [
    "AlternatingTrainer",
    "Phase",
    "check",
    "data_parallel",
    "device_parallel",
    "device_scope",
    "list_devices",
    "multi_gpu_model",
    "plan",
    "testing",
    "trace",
    "use_virtual_devices",
]

if typing.TYPE_CHECKING:
    from keras_parallel import testing as testing
    from keras_parallel.engines import list_devices as list_devices
    from keras_parallel.engines import (
        use_virtual_devices as use_virtual_devices,
    )
    from keras_parallel.inspection._check import check as check
    from keras_parallel.inspection._plan import plan as plan
    from keras_parallel.inspection._trace import trace as trace
    from keras_parallel.strategies.alternating import (
        AlternatingTrainer as AlternatingTrainer,
    )
    from keras_parallel.strategies.alternating import Phase as Phase
    from keras_parallel.strategies.data import data_parallel as data_parallel
    from keras_parallel.strategies.data import (
        multi_gpu_model as multi_gpu_model,
    )
    from keras_parallel.strategies.device import (
        device_parallel as device_parallel,
    )
    from keras_parallel.strategies.device import device_scope as device_scope


def __getattr__(name):
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name in _PUBLIC_MODULES:
        return importlib.import_module(f"keras_parallel.{name}")
    import difflib

    near = difflib.get_close_matches(name, __all__, n=1)
    raise AttributeError(
        f"module 'keras_parallel' has no attribute {name!r}. "
        + (f"Did you mean {near[0]!r}?" if near else f"It has {__all__}.")
    )


def __dir__():
    return sorted([*globals(), *__all__])


def _is_command():
    """Whether this is imported to run the command `keras-parallel`."""
    import os
    import sys

    command = (getattr(sys, "argv", None) or [""])[0]
    if command == "-m":  # So it is while `python -m` looks for its module.
        return "keras_parallel.cli" in sys.orig_argv
    name = os.path.basename(command)
    return name.removesuffix(".exe").removesuffix(".py") == "keras-parallel"


def _prepare():
    if _is_command():
        return  # It does so when it has read its options.
    from keras_parallel import engines

    engines.choose_backend()
    engines.keep_tensorflow_off_accelerators()
    engines.apply_environment()


_prepare()
