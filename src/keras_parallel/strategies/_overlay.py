"""A Keras model that reads as another one and has its own compile state.

Every mode gives back such a model. It is an instance of a class made on the
fly below the user's class, with an almost empty `__dict__`: what Keras's
trainer keeps is its own, everything else is looked up in, and written to,
the user's model. So there is one set of layers, weights and names, a model
that is built through one of the two is built for both, and compiling one
leaves the other as it was.
"""

import abc
import inspect
import types
import typing

import keras

from keras_parallel._errors import RefusedModelError
from keras_parallel.strategies import _files
from keras_parallel.strategies import _keras
from keras_parallel.strategies._wording import shown

if typing.TYPE_CHECKING:
    _Model = keras.Model
else:
    _Model = object

# The steps of a model: a layer that overrides one calls the user's, which may
# be a function put on the instance.
STEPS = frozenset({"train_step", "test_step", "predict_step"})

# Where the user's instance has one of its own, that is the one to call.
FILE_METHODS = frozenset({"save", "save_weights", "load_weights"})


class OverlayState(abc.ABC):
    """What a parallel model holds beside the user's model.

    It lies in the `_keras_parallel` attribute of the parallel model.

    Args:
        template: The user's model.
        layers: The classes that are put above its class.
        runtime_attributes: What the engine's trainer sets while it runs.
    """

    def __init__(self, template, layers, runtime_attributes):
        self.template = template
        self.layers = layers
        # The very dict of the template: what is set there is seen here.
        self.shared = vars(template)
        self.compiling = False
        self.set_by_keras = {*_keras.TRAINER_ATTRIBUTES, *runtime_attributes}
        self.layer_attributes = {
            name
            for layer in layers
            for base in layer.__mro__[:-1]
            for name in vars(base)
            if not name.startswith("__") and name not in FILE_METHODS
        }
        # Where a layer has a property, that says where the value lies.
        self.own_attributes = self.set_by_keras - self.layer_attributes
        # Not looked up in the template.
        self.hidden = self.own_attributes | self.layer_attributes

    def own(self, name):
        self.own_attributes.add(name)
        self.hidden.add(name)

    def users(self, name, of_the_class):
        """A method as the user has it: of the instance, or of the class."""
        return self.shared.get(name, of_the_class)

    @abc.abstractmethod
    def like(self, template, layers: tuple[type, ...] = ()) -> "OverlayState":
        """What a model like this one holds, of another model of the user's.

        Args:
            template: That model.
            layers: Classes to put above those that this one has.
        """

    def made_parallel(self, template) -> keras.Model:
        """Another model like this one, of another model of the user's."""
        return overlay(self.like(template))

    def compile_arguments(self, model, args, kwargs):
        """Checks what `compile` received; returns what to pass on."""
        del model
        return args, kwargs


class _Instance:
    """Gives its subclasses an instance dict that they cannot rename."""


# The attributes that a parallel model has for itself. Its `__dict__` is that
# of the user's model.
_own_dict = vars(_Instance)["__dict__"].__get__


def own_attributes_of(model) -> dict:
    """The attributes that a parallel model has for itself."""
    return _own_dict(model)


class Overlay(_Instance, _Model):
    """What is put above the user's model class. See the module."""

    _keras_parallel: typing.Any

    def __init_subclass__(cls):
        # Not passed on: for the user's class this is no new subclass.
        pass

    def __del__(self):
        # The user's runs for the user's model.
        pass

    def __new__(cls, *args, **kwargs):
        # Calling this class, as `from_config` does, makes a plain model.
        return cls.__bases__[-1](*args, **kwargs)

    @property
    def __class__(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        # Keras writes `obj.__class__` into files and configurations. Nothing
        # there may name a class that only exists in this process.
        return type(self._keras_parallel.template)

    @property
    def __dict__(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        # What reads or writes `vars(self)` is code of the user's model.
        return self._keras_parallel.shared

    def __getattribute__(self, name):
        own = _own_dict(self)
        if name not in own:
            state = own["_keras_parallel"]
            if name in state.shared and name not in state.hidden:
                return state.shared[name]
        return object.__getattribute__(self, name)

    def __getattr__(self, name):
        state = self._keras_parallel
        if name in state.hidden:
            raise AttributeError(
                f"'{type(self).__name__}' object has no attribute {name!r}"
            )
        return getattr(state.template, name)

    def __setattr__(self, name, value):
        state = self._keras_parallel
        if name in state.own_attributes:
            _own_dict(self)[name] = value
            return
        descriptor = inspect.getattr_static(type(self), name, None)
        if hasattr(type(descriptor), "__set__"):
            object.__setattr__(self, name, value)
        elif state.compiling:
            # What a custom `compile` sets is compile state too. Tracking
            # finds the metrics among it.
            state.own(name)
            _own_dict(self)[name] = state.template._tracker.track(value)
        elif name in state.layer_attributes - STEPS:
            _own_dict(self)[name] = value
        else:
            setattr(state.template, name, value)

    def __delattr__(self, name):
        if name in _own_dict(self):
            object.__delattr__(self, name)
        else:
            delattr(self._keras_parallel.template, name)

    def __dir__(self):
        # Keras finds what to save in a model by listing its attributes.
        own = set(_own_dict(self)) - {"_keras_parallel"}
        return sorted(set(dir(self._keras_parallel.template)) | own)

    def __reduce__(self):
        # Keras pickles what a file would hold, and a method of the class.
        unpickle, arguments = super().__reduce__()
        return getattr(self.__class__, unpickle.__name__), arguments

    def __deepcopy__(self, memo):
        unpickle, arguments = self.__reduce__()
        return self._keras_parallel.made_parallel(unpickle(*arguments))

    def save(self, filepath, overwrite=True, zipped=None, **kwargs):
        options = {"zipped": zipped, **kwargs}
        method = super().save
        return _files.write_whole(self, method, filepath, overwrite, options)

    def save_weights(self, filepath, overwrite=True, max_shard_size=None):
        options = {"max_shard_size": max_shard_size}
        method = super().save_weights
        return _files.write_whole(self, method, filepath, overwrite, options)

    def load_weights(self, filepath, skip_mismatch=False, **kwargs):
        result = super().load_weights(filepath, skip_mismatch, **kwargs)
        if getattr(getattr(self, "optimizer", None), "built", False):
            # With the optimizer's slots it goes on where the file was saved.
            _files.restore_random_state(self, filepath)
        return result

    def compile(self, *args, **kwargs):
        state = self._keras_parallel
        args, kwargs = state.compile_arguments(self, args, kwargs)
        state.compiling = True
        try:
            super().compile(*args, **kwargs)
        finally:
            state.compiling = False


def overlay(state: OverlayState):
    """Makes a model that reads as `state.template`.

    Returns:
        The model, with the compile state of the template adopted.

    Raises:
        RefusedModelError: if the template has a method on the instance that
            the layers would hide.
    """
    template = state.template
    hiding = state.layer_attributes - STEPS - state.set_by_keras
    for name in sorted(hiding & set(state.shared)):
        raise RefusedModelError(
            f"`{name}` was replaced on the instance {template.name!r}, and a "
            f"parallel model has a `{name}` of its own that would hide it. "
            f"Received: {template.name}.{name}={state.shared[name]!r}. "
            f"Override `{name}` in a subclass, or replace it on the parallel "
            f"model: `parallel.{name} = {name}`."
        )
    cls = type(template)
    overlay_class = types.new_class(
        cls.__name__,
        (*state.layers, cls),
        exec_body=lambda namespace: namespace.update(
            __module__=cls.__module__,
            __qualname__=cls.__qualname__,
            __doc__=cls.__doc__,
        ),
    )
    model = object.__new__(overlay_class)
    own = _own_dict(model)
    own["_keras_parallel"] = state
    for name in state.own_attributes & set(state.shared):
        own[name] = state.shared[name]
    own |= dict.fromkeys(_keras.COMPILED_FUNCTIONS)
    return model


def adopt(twin, model):
    """Gives a twin the compile state of `model`, a parallel model."""
    state, own = twin._keras_parallel, _own_dict(twin)
    for name, value in _own_dict(model).items():
        if name != "_keras_parallel":
            state.own(name)
            own[name] = value
    own |= dict.fromkeys(_keras.COMPILED_FUNCTIONS)
    return twin


def check_template(model, maker):
    """Raises `RefusedModelError` unless a parallel model can be made of it.

    Args:
        model: What the user passed.
        maker: The name of the function that was called.
    """
    if isinstance(model, type) and issubclass(model, keras.Model):
        raise RefusedModelError(
            "A parallel model is made of a model, not of its class. "
            f"Received: model={model.__name__}. A call that works: "
            f"`keras_parallel.{maker}({model.__name__}(...))`."
        )
    if not isinstance(model, keras.Model):
        raise RefusedModelError(
            "A parallel model is made of a `keras.Model`. "
            f"Received: model={shown(model)}. A call that works: "
            f"`keras_parallel.{maker}({_model_for(model)})`."
        )
    if issubclass(type(model), Overlay):
        raise RefusedModelError(
            f"The model {model.name!r} is parallel already, and is not made "
            "so again. Received: a parallel model on "
            f"{[d.name for d in model._keras_parallel.execution.devices]}. A "
            f"call that works: `{maker}(model)` on the model you built. Both "
            "then share its weights."
        )


def _model_for(thing):
    """What makes a model of something that is none, as code."""
    if isinstance(thing, str):
        return f"keras.saving.load_model({thing!r})"
    if isinstance(thing, keras.Layer):
        return f"keras.Sequential([{type(thing).__name__}(...)])"
    if isinstance(thing, list | tuple):
        return "keras.Sequential(layers)"
    return "keras.Sequential([layer, ...])"
