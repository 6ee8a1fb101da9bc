"""The tables of names, held against the Keras that is installed."""

import importlib
import inspect

import keras
import pytest

from keras_parallel.migrate import _names
from keras_parallel.migrate.rules import layers
from keras_parallel.migrate.rules import optimizers


def exists(path):
    """Whether `keras.a.b` can be had."""
    owner = keras
    for name in path.split(".")[1:]:
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


def is_module(path):
    try:
        importlib.import_module(path)
    except ImportError:
        return False
    return True


@pytest.mark.parametrize(("old", "new"), _names.MODULES.items())
def test_modules_that_moved(old, new):
    assert not is_module(old)
    assert is_module(new)


@pytest.mark.parametrize(("old", "new"), _names.NAMES.items())
def test_names_that_moved(old, new):
    assert exists(new)
    if old == "keras.utils.Sequence":
        assert keras.utils.Sequence is keras.utils.PyDataset
    else:
        assert not exists(old)


@pytest.mark.parametrize(
    "name", [*_names.GONE, *_names.GONE_MODULES, _names.MULTI_GPU_MODEL]
)
def test_names_that_are_gone(name):
    if name in ("keras.legacy",):
        assert not exists("keras.legacy.layers")
        return
    assert not exists(name)
    assert not is_module(name)


def test_what_is_left_of_the_backend():
    public = {n for n in dir(keras.backend) if not n.startswith("_")}
    assert public == _names.BACKEND_KEPT


@pytest.mark.parametrize(("old", "new"), _names.LOSS_STRINGS.items())
def test_losses_by_string(old, new):
    with pytest.raises(ValueError, match=old):
        keras.losses.get(old)
    assert keras.losses.get(new)


@pytest.mark.parametrize("name", optimizers._OPTIMIZERS)
def test_the_order_of_arguments_of_optimizers(name):
    signature = inspect.signature(getattr(keras.optimizers, name).__init__)
    order = tuple(signature.parameters)[1:]
    expected = optimizers._TENSORFLOW_OPTIMIZERS[name]
    assert order[: len(expected)] == ("learning_rate", *expected[1:])
    rate = signature.parameters["learning_rate"].default
    changed = rate != float(optimizers._RATES[name])
    assert changed == (name in optimizers._CHANGED_RATES)
    assert rate == float(optimizers._TENSORFLOW_RATES[name])


@pytest.mark.parametrize("name", layers._KEYWORDS)
def test_keywords_that_were_renamed(name):
    """The new one is taken, and the old one is not."""
    renamed = layers._KEYWORDS[name]
    target = keras
    for part in _names.new_name(name).split(".")[1:]:
        target = getattr(target, part)
    if name.endswith("Model"):
        model = keras.Model(inputs=(i := keras.Input((1,))), outputs=i)
        assert model.outputs
        return
    parameters = inspect.signature(target).parameters
    assert set(renamed.values()) <= set(parameters)
    assert not set(renamed) & set(parameters)


@pytest.mark.parametrize("name", _names.GONE_MODULES)
def test_modules_of_which_nothing_is_left(name):
    assert _names.gone(f"{name}.Anything")
    assert _names.gone(f"tensorflow.{name}.Anything")


def test_names_in_modules_that_moved():
    assert _names.new_name("keras.layers.core.Dense") == "keras.layers.Dense"
    assert (
        _names.new_name("tensorflow.python.keras.utils.data_utils.Sequence")
        == "keras.utils.PyDataset"
    )
    assert _names.new_name("numpy.sum") == "numpy.sum"
    assert _names.gone("keras.backend.epsilon") is None
    assert _names.gone("keras.utils.np_utils.to_categorical") is None
