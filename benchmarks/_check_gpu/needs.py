"""What an interpreter lacks to run the check."""

import importlib.util

# Keras and what it imports, and JAX, by the names that are imported, with the
# packages that have them where those are called otherwise.
_NEEDED = {
    "numpy": "numpy",
    "keras": "keras",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "absl": "absl-py",
    "h5py": "h5py",
    "ml_dtypes": "ml-dtypes",
    "namex": "namex",
    "optree": "optree",
    "packaging": "packaging",
    "rich": "rich",
}
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_plugins.xla_cuda13")


def lacking(virtual):
    """Names of packages that are not installed.

    Args:
        virtual: Whether virtual devices will do.
    """
    missing = [p for name, p in _NEEDED.items() if not _is_there(name)]
    if not virtual and not has_plugin():
        missing.append("jax[cuda13] or jax[cuda12]")
    return missing


def has_plugin():
    """Whether there is a JAX for NVIDIA's GPUs."""
    return any(map(_is_there, _PLUGINS))


def _is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
