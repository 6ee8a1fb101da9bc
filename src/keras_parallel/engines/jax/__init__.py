"""The JAX engine: one process, one compiled step over all devices (SPMD)."""

from keras_parallel.engines.jax._engine import JaxEngine


def create() -> JaxEngine:
    return JaxEngine()
