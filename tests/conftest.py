"""The backend and the virtual devices of all tests, before Keras starts."""

import gc
import os
import pathlib

import pytest

# Others are installed beside it, to feed data.
os.environ.setdefault("KERAS_BACKEND", "jax")

# Tests compile the same programs of one device again and again. Each process
# has its own folder: one would crash on what another one has written in part.
_CACHE = pathlib.Path(__file__).parents[1] / ".pytest_cache" / "xla"
_CACHE /= os.environ.get("PYTEST_XDIST_WORKER", "alone")
os.environ |= {
    "JAX_COMPILATION_CACHE_DIR": str(_CACHE),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}

import keras_parallel  # noqa: E402  the environment comes first

NUM_VIRTUAL_DEVICES = 8

keras_parallel.use_virtual_devices(NUM_VIRTUAL_DEVICES)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Lets go of what a module compiled.

    JAX keeps each program, which XLA holds in memory maps of its own: without
    this a process of the whole run needs more than Linux allows it (65,530),
    and what follows fails anywhere, or crashes.
    """
    yield
    import jax

    jax.clear_caches()
    gc.collect()


@pytest.fixture
def float64(monkeypatch):
    """All in double precision, where rounding is too small to hide a fault."""
    import jax
    import keras

    # Means and normalization would compute in single precision anyway.
    for module in ("backend", "backend.common.dtypes"):
        monkeypatch.setattr(
            f"keras.src.{module}.result_type", lambda *_: "float64"
        )
    jax.config.update("jax_enable_x64", True)
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy("float32")
    keras.config.set_floatx("float32")
    jax.config.update("jax_enable_x64", False)
