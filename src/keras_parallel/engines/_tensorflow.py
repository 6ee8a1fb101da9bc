"""TensorFlow beside another backend, where it only feeds data.

TensorFlow starts on every GPU that it sees as soon as its first tensor or
dataset is made, and what it holds there is missing for training. Keras has it
take memory only as needed; what needs none is that it sees no GPU, and that
can be had only between its import and its first use.
"""

import importlib.abc
import importlib.util
import sys
import typing

from keras_parallel._logging import logger

_NAME = "tensorflow"


def keep_off_accelerators(only_feeds) -> None:
    """Hides accelerators from TensorFlow, now or when it is imported.

    Does not import it. Devices that the user has made visible or hidden, or
    does later with `tf.config.set_visible_devices`, stay as they are.

    Args:
        only_feeds: Called once TensorFlow is imported; whether it only feeds
            data.
    """
    module = sys.modules.get(_NAME)
    if type(module).__name__ == "_LazyModule":
        return  # Looking into it would import it.
    if module is None:
        sys.meta_path.insert(0, _AfterImport(only_feeds))
    elif only_feeds():
        _hide(module)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds TensorFlow where others find it, and sees its import end."""

    def __init__(self, only_feeds):
        self._only_feeds = only_feeds
        self._asks_the_others = False

    def find_spec(self, fullname, path=None, target=None):
        # The others may ask all finders again, as this one does.
        if fullname != _NAME or self._asks_the_others:
            return None
        self._asks_the_others = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asks_the_others = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _ThenHide(spec.loader, self._only_feeds)
        return spec


class _ThenHide(importlib.abc.Loader):
    """Loads as another loader does, and then hides accelerators.

    That one may be shared with other modules, so it stays as it is.
    """

    def __init__(self, loader, only_feeds):
        self._loader = loader
        self._only_feeds = only_feeds

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module: typing.Any):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if self._only_feeds():
            _hide(module)


def _hide(tensorflow):
    config: typing.Any = getattr(tensorflow, "config", None)
    if not hasattr(config, "set_visible_devices"):
        return  # Another module of that name.
    for kind in ("GPU", "TPU"):
        visible = config.get_visible_devices(kind)
        if not visible or visible != config.list_physical_devices(kind):
            continue
        try:
            config.set_visible_devices([], kind)
        except RuntimeError:
            logger.warning(
                "TensorFlow had started before keras_parallel was imported, "
                "and holds memory on %d devices of kind %s. If it only feeds "
                "data, import keras_parallel first, or call "
                '`tf.config.set_visible_devices([], "%s")` right after '
                "`import tensorflow as tf`",
                len(visible),
                kind,
                kind,
            )
