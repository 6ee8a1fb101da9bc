"""What several test modules need."""

import ast
import contextlib
import logging
import re

import jax
import keras
import numpy as np

import keras_parallel


def seeded(make_model, seed=0):
    """A new model from a seed, with the seed set again for what follows."""
    keras.utils.set_random_seed(seed)
    model = make_model()
    keras.utils.set_random_seed(seed)
    return model


def both(make_model, devices):
    """A plain model and a parallel one, from the same seed."""
    return (
        seeded(make_model),
        keras_parallel.data_parallel(seeded(make_model), devices),
    )


def arrays(structure):
    """The leaves of a nested structure as NumPy arrays."""
    return [
        keras.ops.convert_to_numpy(leaf)
        for leaf in keras.tree.flatten(structure)
        if leaf is not None
    ]


def assert_close(expected, actual, tolerance=1e-5):
    """Asserts equality of two nested structures.

    `tolerance` is relative to the largest entry of each leaf. A few steps of
    the small learning rates used here amplify rounding no further.
    """
    expected, actual = arrays(expected), arrays(actual)
    assert len(expected) == len(actual)
    for i, (e, a) in enumerate(zip(expected, actual)):
        assert e.shape == a.shape
        # Sums of terms of order 1 leave an error of 1e-7 where they cancel.
        scale = max(np.abs(e).max(initial=0.0), 0.05)
        difference = np.abs(e - a).max(initial=0.0) / scale
        assert difference <= tolerance, (
            f"leaf {i} of shape {e.shape}: {difference:.2g} apart, {e} and {a}"
        )


def state_of(model):
    return [v.numpy() for v in model.variables + model.optimizer.variables]


@contextlib.contextmanager
def compilations():
    """Counts what XLA compiles, by the name of the function."""
    counts = {}

    class Count(logging.Handler):
        def emit(self, record):
            found = re.match(r"Compiling jit\((\w+)\)", record.getMessage())
            if found:
                counts[found[1]] = counts.get(found[1], 0) + 1

    logger = logging.getLogger("jax._src.interpreters.pxla")
    handler, propagate = Count(), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    jax.config.update("jax_log_compiles", True)
    try:
        yield counts
    finally:
        jax.config.update("jax_log_compiles", False)
        logger.removeHandler(handler)
        logger.propagate = propagate


def assert_teaches(error):
    """The rule, what was received, and something that works."""
    rule, _, rest = str(error).partition("Received: ")
    assert len(rule) > 20
    received, *code = rest.split("`")
    assert received.strip()
    assert len(code) >= 2, rest
    for snippet in code[::2]:
        if not snippet.startswith("keras-parallel "):
            ast.parse(snippet)
    for private in ("_keras_parallel", "JaxTrainer", "Overlay", "NoneType"):
        assert private not in str(error)
