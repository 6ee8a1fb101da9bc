"""A Keras model that reads as another one and has its own compile state.

Every mode gives back such a model. It is an instance of a class made on the
fly below the user's class, with an almost empty `__dict__`: what Keras's
trainer keeps is its own, everything else is looked up in, and written to,
the user's model. So there is one set of layers, weights and names, a model
that is built through one of the two is built for both, and compiling one
leaves the other as it was.
"""

import inspect
import types
import typing

import keras

from keras_parallel._errors import RefusedModelError
from keras_parallel.strategies import _keras

if typing.TYPE_CHECKING:
    _Model = keras.Model
else:
    _Model = object


class Overlay(_Model):
    """What is put above the user's model class. See the module."""

    _parallel: typing.Any

    @property
    def __class__(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        # Keras writes `obj.__class__` into files and configurations. Nothing
        # there may name a class that only exists in this process.
        return type(self._parallel.template)

    def __getattr__(self, name):
        own = object.__getattribute__(self, "__dict__")
        parallel = own.get("_parallel")
        if parallel is None or parallel.owns(name):
            raise AttributeError(
                f"'{type(self).__name__}' object has no attribute {name!r}"
            )
        return getattr(parallel.template, name)

    def __setattr__(self, name, value):
        parallel = self._parallel
        descriptor = inspect.getattr_static(type(self), name, None)
        is_property = hasattr(type(descriptor), "__set__") and not isinstance(
            descriptor, _Shared
        )
        if parallel.compiling and not is_property:
            # What a custom `compile` sets is compile state too. Tracking
            # finds the metrics among it.
            value = parallel.template._tracker.track(value)
            parallel.own_attributes.add(name)
        if parallel.owns(name):
            self.__dict__[name] = value
        elif is_property:
            object.__setattr__(self, name, value)
        else:
            setattr(parallel.template, name, value)

    def __delattr__(self, name):
        if name in self.__dict__:
            object.__delattr__(self, name)
        else:
            delattr(self._parallel.template, name)

    def __dir__(self):
        # Keras finds what to save in a model by listing its attributes.
        own = set(self.__dict__) - {"_parallel"}
        return sorted(set(dir(self._parallel.template)) | own)

    def __reduce__(self):
        # Keras pickles what a file would hold, and a method of the class.
        unpickle, arguments = super().__reduce__()
        return getattr(self.__class__, unpickle.__name__), arguments

    def compile(self, *args, **kwargs):
        kwargs = self._parallel.compile_arguments(self, args, kwargs)
        self._parallel.compiling = True
        try:
            super().compile(*args, **kwargs)
        finally:
            self._parallel.compiling = False


class OverlayState:
    """What a parallel model holds beside the user's model.

    Args:
        template: The user's model.
        runtime_attributes: What the engine's trainer sets while it runs.
    """

    def __init__(self, template, runtime_attributes):
        self.template = template
        self.own_attributes = set(_keras.TRAINER_ATTRIBUTES)
        self.own_attributes |= set(runtime_attributes)
        self.compiling = False

    def owns(self, name):
        return name in self.own_attributes


def overlay(template: keras.Model, layers: tuple[type, ...], state):
    """Makes a model that reads as `template`.

    Args:
        template: The user's model.
        layers: Classes to put above the class of `template`, first wins.
        state: An `OverlayState` for the new model.

    Returns:
        The model, with the compile state of `template` adopted.
    """
    model = object.__new__(_overlay_class(template, layers))
    own = model.__dict__
    own["_parallel"] = state
    own |= {k: v for k, v in vars(template).items() if state.owns(k)}
    own |= dict.fromkeys(_keras.COMPILED_FUNCTIONS)
    return model


def _overlay_class(template, layers):
    cls = type(template)
    shared = {
        name
        for name in set(vars(template)) | _class_values(cls)
        if hasattr(cls, name) and not name.startswith("__")
    }
    return types.new_class(
        cls.__name__,
        (*layers, cls),
        exec_body=lambda namespace: namespace.update(
            {name: _Shared(name) for name in shared},
            __module__=cls.__module__,
            __qualname__=cls.__qualname__,
            __doc__=cls.__doc__,
        ),
    )


def _class_values(cls):
    """Names that the user's class gives a value an instance may replace."""
    return {
        name
        for base in cls.__mro__
        if not base.__module__.startswith(("keras.", "builtins"))
        for name, value in vars(base).items()
        if not hasattr(type(value), "__get__")
    }


class _Shared:
    """An attribute of the user's model that its class defines as well.

    Python would find the value of the class before it asks `__getattr__`.
    Keras wraps `build` and `quantize` of each instance so, and people
    replace `call` or override a default of the class.
    """

    def __init__(self, name):
        self.name = name

    def __get__(self, model, cls=None):
        if model is None:
            raise AttributeError(self.name)
        if self.name in model.__dict__:
            return model.__dict__[self.name]
        return getattr(model._parallel.template, self.name)

    def __set__(self, model, value):
        # `Overlay.__setattr__` decides; this makes Python ask `__get__`.
        raise AttributeError(self.name)


def check_template(model):
    """Raises `RefusedModelError` unless a parallel model can be made of it."""
    if isinstance(model, type) and issubclass(model, keras.Model):
        raise RefusedModelError(
            "A parallel model is made of a model, not of its class. "
            f"Received: model={model.__name__}. A call that works: "
            f"`keras_parallel.data_parallel({model.__name__}(...))`."
        )
    if not isinstance(model, keras.Model):
        raise RefusedModelError(
            "A parallel model is made of a `keras.Model`. "
            f"Received: model={model!r} (of type {type(model).__name__})."
            + (
                " A call that works: "
                "`keras_parallel.data_parallel(keras.Sequential([layer]))`."
                if isinstance(model, keras.Layer)
                else ""
            )
        )
    if issubclass(type(model), Overlay):
        raise RefusedModelError(
            f"The model {model.name!r} is parallel already, and its replicas "
            "cannot be replicated again. Received: a parallel model on "
            f"{[d.name for d in model._parallel.replicas.devices]}. To use "
            "other devices, call `data_parallel` on the model you built: "
            "both then share its weights."
        )
