"""`tf.distribute.MirroredStrategy`: `tensorflow_worker.py PEER DEVICES`."""

import sys

import tensorflow as tf

DEVICES = int(sys.argv[2])
(_CPU,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    _CPU, [tf.config.LogicalDeviceConfiguration()] * DEVICES
)

import keras  # noqa: E402  the devices come first
from keras_runner import KerasRunner  # noqa: E402
from serving import serve  # noqa: E402


class TensorFlowRunner(KerasRunner):
    def __init__(self):
        self._strategy = tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(DEVICES)]
        )

    def make(self, workload):
        with self._strategy.scope():
            return super().make(workload)

    def versions(self):
        return {"keras": keras.__version__, "tensorflow-cpu": tf.__version__}


if __name__ == "__main__":
    serve(TensorFlowRunner())
