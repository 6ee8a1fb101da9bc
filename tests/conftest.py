"""The backend and the virtual devices of all tests, before Keras starts."""

import os

# Others are installed beside it, to feed data.
os.environ.setdefault("KERAS_BACKEND", "jax")

import keras_parallel

NUM_VIRTUAL_DEVICES = 8

keras_parallel.use_virtual_devices(NUM_VIRTUAL_DEVICES)
