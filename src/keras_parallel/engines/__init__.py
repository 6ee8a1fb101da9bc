"""What executes a plan, one module or folder per Keras backend."""

from keras_parallel.engines._select import active_engine
from keras_parallel.engines._select import choose_backend
from keras_parallel.engines._select import list_devices
from keras_parallel.engines._select import use_virtual_devices
from keras_parallel.engines.base import Engine
from keras_parallel.engines.base import Replicas

__all__ = [
    "Engine",
    "Replicas",
    "active_engine",
    "choose_backend",
    "list_devices",
    "use_virtual_devices",
]
