"""The random state of the process: of Keras, NumPy and Python.

Keras shuffles from it, and data or a `make_batch` may draw from it.
"""

import random

import numpy as np

from keras_parallel.strategies import _keras


def state() -> dict:
    """The state, as JSON holds it."""
    generator = _keras.global_seed_generator()
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
        "keras": generator and np.asarray(generator.state).tolist(),
    }


def set_state(state: dict) -> None:
    """Sets what `state` has returned."""
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, "uint32"), *rest))
    generator = _keras.global_seed_generator()
    if state["keras"] is not None and generator is not None:
        generator.state.assign(state["keras"])
