"""What executes a plan, one module or folder per Keras backend."""

from keras_parallel.engines._select import VIRTUAL_DEVICES_VARIABLE
from keras_parallel.engines._select import active_engine
from keras_parallel.engines._select import apply_environment
from keras_parallel.engines._select import choose_backend
from keras_parallel.engines._select import keep_tensorflow_off_accelerators
from keras_parallel.engines._select import list_devices
from keras_parallel.engines._select import set_virtual_devices_from_outside
from keras_parallel.engines._select import use_virtual_devices
from keras_parallel.engines.base import Engine
from keras_parallel.engines.base import Processes
from keras_parallel.engines.base import Recording
from keras_parallel.engines.base import Replicas

__all__ = [
    "VIRTUAL_DEVICES_VARIABLE",
    "Engine",
    "Processes",
    "Recording",
    "Replicas",
    "active_engine",
    "apply_environment",
    "choose_backend",
    "keep_tensorflow_off_accelerators",
    "list_devices",
    "set_virtual_devices_from_outside",
    "use_virtual_devices",
]
