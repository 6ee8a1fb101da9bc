"""A context after which a model is what it was before, bit by bit.

A check trains the user's own model: a copy of a model with code of its own
cannot be had in general. So what training changes is noted before and put back
after: the values of variables, and the attributes of the objects of Keras and
of the user's own classes that a model consists of, down to the lists, dicts,
NumPy arrays and random generators they hold.
"""

import contextlib
import random
import sys
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_parallel.strategies import _keras
from keras_parallel.strategies._memory import Memory
from keras_parallel.strategies._overlay import own_attributes_of
from keras_parallel.strategies._twin import is_parallel
from keras_parallel.strategies._twin import template_of


@contextlib.contextmanager
def untouched(model: keras.Model, others: Iterable[Any] = ()):
    """Puts everything back at the end, normal or not.

    Args:
        model: A model, plain or parallel.
        others: Other objects to put back: callbacks, a dataset.
    """
    seeds = _keras.global_seed_generator()
    roots = [template_of(model), *others]
    if seeds is not None:
        roots.append(seeds)
    if is_parallel(model):
        roots.append(own_attributes_of(model))
    memory = Memory(roots)
    python, numpy = random.getstate(), np.random.get_state()
    restore_torch = _torch()
    try:
        memory.use_copies()
        yield
    finally:
        memory.restore()
        random.setstate(python)
        np.random.set_state(numpy)
        restore_torch()
        if seeds is None:
            _keras.forget_global_seed_generator()


def _torch():
    """Notes what torch draws next, and returns what puts it back."""
    # Only who has loaded torch draws from it. TensorFlow does not say.
    torch = sys.modules.get("torch")
    if torch is None:
        return lambda: None
    state = torch.get_rng_state()
    return lambda: torch.set_rng_state(state)
