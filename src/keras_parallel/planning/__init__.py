"""Frozen values that say where everything lives. No Keras, no backend."""

from keras_parallel.planning.devices import KINDS
from keras_parallel.planning.devices import Device
from keras_parallel.planning.devices import choose_devices
from keras_parallel.planning.rows import RowLayout
from keras_parallel.planning.rows import lay_out_rows

__all__ = ["KINDS", "Device", "RowLayout", "choose_devices", "lay_out_rows"]
