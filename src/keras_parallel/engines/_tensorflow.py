"""TensorFlow beside another backend, where it only feeds data.

TensorFlow starts on every GPU that it sees as soon as its first tensor or
dataset is made, and what it holds there is missing for training. Keras has it
take memory only as needed; what needs none is that it sees no GPU, and that
can be had only between its import and its first use.
"""

import importlib.abc
import sys

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
    if sys.modules.get(_NAME) is not None:
        if only_feeds():
            _hide(sys.modules[_NAME])
        return
    sys.meta_path.insert(0, _AfterImport(only_feeds))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds TensorFlow where others find it, and sees its import end."""

    def __init__(self, only_feeds):
        self._only_feeds = only_feeds

    def find_spec(self, fullname, path=None, target=None):
        if fullname != _NAME:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._watch(spec.loader)
                return spec
        return None

    def _watch(self, loader):
        if loader is None:
            return
        exec_module = loader.exec_module

        def then_hide(module):
            exec_module(module)
            if self._only_feeds():
                _hide(module)

        loader.exec_module = then_hide


def _hide(tensorflow):
    config = tensorflow.config
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
