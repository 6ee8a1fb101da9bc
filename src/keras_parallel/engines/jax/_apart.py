"""Variables whose value stays apart on several devices until it is needed.

Between two methods a variable holds an ordinary array of one device. For a
slot that is sharded that would be the whole slot: the memory that sharding
saves, and a transfer at the end of each `train_on_batch`. So the value stays
where it is, and the variable gathers it when somebody asks for it. Until then
its class is one below its own.

Touches private names of Keras: `Variable._value`, the array a variable holds,
and `in_stateless_scope`, in which a variable has another value.
"""

import functools

import jax
import numpy as np
from keras.src.backend.common.stateless_scope import in_stateless_scope


def lies_apart(value):
    """Whether `value` is an array that is made for several devices."""
    return (
        isinstance(value, jax.Array)
        and value.committed
        and len(value.sharding.device_set) > 1
        and not value.is_deleted()
    )


def gathered(value, home):
    """The whole of `value`, as an ordinary array of the device `home`."""
    # Not committed to it, like the arrays that Keras makes.
    with jax.default_device(home):
        return jax.device_put(np.asarray(value))


def value_where_it_is(variable):
    """The array that `variable` holds, gathered or not."""
    return vars(variable)["_value"]


def keep_apart(variable, home):
    """Leaves the value of `variable` where it is until it is asked for."""
    cls = type(variable)
    if not hasattr(cls, "_is_apart"):
        variable.__class__ = _apart(cls, home)


@functools.cache
def _apart(cls, home):
    """A class of variables like those of `cls`, that gather when asked."""

    def get(self):
        # An assignment makes it one of `cls` again.
        self._value = gathered(value_where_it_is(self), home)
        return self._value

    def assign(self, value):
        self.__class__ = cls
        self._value = value

    def as_numpy(self, dtype=None, copy=None):
        # This is how Keras writes files: through the host, no device has to
        # have room for the whole.
        if in_stateless_scope():
            return cls.__array__(self, dtype)
        convert = np.array if copy else np.asarray
        return convert(value_where_it_is(self), dtype)

    def reduce(self, protocol):
        # A copy and a pickle are of the class that everybody knows.
        get(self)
        return self.__reduce_ex__(protocol)

    return type(
        cls.__name__,
        (cls,),
        {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__array__": as_numpy,
            "__reduce_ex__": reduce,
            "_is_apart": True,
            "_value": property(get, assign),
        },
    )
