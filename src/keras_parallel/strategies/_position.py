"""Where an alternating training is, kept in a file of weights.

Beside weights and slots that is the epoch, the round, and the random state of
the process, from which Keras shuffles and a `make_batch` may draw.
"""

import contextlib
import copy
import json
from collections.abc import Callable

import keras
import numpy as np

from keras_parallel.strategies import _keras
from keras_parallel.strategies import _random


class Position(keras.layers.Layer):
    """The next epoch and round, both counted from 0.

    A layer, since Keras writes those into files of weights.

    Args:
        seeds: Returns the variables of all seed generators that training uses.
    """

    def __init__(self, seeds: Callable[[], list]):
        super().__init__(name="position", trainable=False)
        self._seeds = seeds
        self.epoch = 0
        self.round = 0
        self.built = True

    def save_own_variables(self, store):
        text = json.dumps(
            {
                "epoch": self.epoch,
                "round": self.round,
                "random": _random.state(),
                "seeds": [v.numpy().tolist() for v in self._seeds()],
            }
        )
        store["position"] = np.frombuffer(text.encode(), "uint8")

    def load_own_variables(self, store):
        found = json.loads(bytes(np.asarray(store["position"])).decode())
        self.epoch, self.round = found["epoch"], found["round"]
        _random.set_state(found["random"])
        for variable, value in zip(self._seeds(), found["seeds"], strict=True):
            variable.assign(np.asarray(value, variable.dtype))


@contextlib.contextmanager
def untouched_random_state():
    """Random numbers and names come afterwards as if nothing ran inside."""
    state, attributes = _random.state(), _keras.global_attributes()
    names = copy.copy(attributes["object_name_uids"])
    try:
        yield
    finally:
        attributes["object_name_uids"] = names
        _keras.set_global_attributes(attributes)
        _random.set_state(state)
