"""Virtual devices for all tests: asked for before the backend starts."""

import keras_parallel

NUM_VIRTUAL_DEVICES = 8

keras_parallel.use_virtual_devices(NUM_VIRTUAL_DEVICES)
