"""The variables that a step takes, and their copies on every device.

Touches a private name of Keras, `Variable._value`, the array a variable holds:
its public `assign` converts, checks and copies what is known to fit. And one of
JAX, `ArrayImpl`, to make an array that is not committed to its device.
"""

import operator
import weakref

import jax
from jax._src.array import ArrayImpl

from keras_parallel.engines.jax import _apart
from keras_parallel.engines.jax._processes import is_joint
from keras_parallel.engines.jax._processes import put
from keras_parallel.engines.jax._processes import whole_on_each

# The attribute of a variable that remembers, beside the one-device array it
# holds, the replicated array which that is a part of.
_COPIES = "_keras_parallel_copies"


class StepState:
    """The variables of one kind of step, and the arrays last seen there.

    Args:
        groups: Lists of Keras variables, in the order in which the step
            takes them.
        on_each: The sharding that puts a whole array on every device.
        home: The device of a variable while no step runs.
        shardings: The sharding of each variable, if not all are `on_each`.
    """

    def __init__(self, groups, on_each, home, shardings=None):
        self._variables = [v for group in groups for v in group]
        self._lengths = [len(group) for group in groups]
        self._on_each = on_each
        self._home = home
        self._shardings = shardings
        self._arrays = []

    def read(self):
        """The values of the variables, on every device, in their groups."""
        held = self._held()
        if not self._arrays or any(map(operator.is_not, held, self._arrays)):
            self._arrays = self._on_every_device(held)
            self._assign()
        return in_groups(self._arrays, self._lengths)

    def write(self, groups):
        """Gives the variables the arrays that a step returned."""
        self._arrays = [array for group in groups for array in group]
        self._assign()

    def bring_home(self):
        """Gives each variable the copy of its home device.

        That is the very buffer of the replica there, so neither this nor
        the way back moves data, and a loop of `train_on_batch` is free of
        broadcasts.
        """
        held = each_once(self._held())
        for variable, replicated in zip(self._variables, held):
            if self._is_replicated(replicated) and not replicated.is_deleted():
                copy = home_copy(replicated, self._home)
                _remember(variable, copy, replicated)
                variable._value = copy
            elif self._shardings and _apart.lies_apart(replicated):
                if is_joint(replicated.sharding):
                    # Later no other process may be there to give its part.
                    whole = whole_on_each(replicated, self._on_each)
                    variable._value = home_copy(whole, self._home)
                else:
                    _apart.keep_apart(variable, self._home)
        self._arrays = []

    def _held(self):
        if self._shardings:
            return [_apart.value_where_it_is(v) for v in self._variables]
        return [v._value for v in self._variables]

    def _assign(self):
        for variable, array in zip(self._variables, self._arrays):
            variable._value = array

    def _on_every_device(self, held):
        held = each_once(held)
        shardings = self._shardings or [self._on_each] * len(held)
        arrays = [
            self._replica_of(variable, value)
            if sharding is self._on_each
            else value
            if lies_as(value, sharding)
            else None
            for variable, value, sharding in zip(
                self._variables, held, shardings
            )
        ]
        missing = [i for i, array in enumerate(arrays) if array is None]
        if missing:
            # One call for all costs little more than one array.
            placed = put(
                [held[i] for i in missing], [shardings[i] for i in missing]
            )
            for i, array in zip(missing, placed):
                arrays[i] = array
        return arrays

    def _replica_of(self, variable, value):
        if self._is_replicated(value):
            return value
        copy, replicated = getattr(variable, _COPIES, (_nothing, None))
        known = copy() is value and self._is_replicated(replicated)
        return replicated if known else None

    def _is_replicated(self, value):
        return lies_as(value, self._on_each)


def in_groups(arrays, lengths):
    """The arrays of a flat list, in a tuple of lists of these lengths."""
    groups, start = [], 0
    for length in lengths:
        groups.append(arrays[start : start + length])
        start += length
    return tuple(groups)


def lies_as(value, sharding):
    """Whether `value` is an array that a step takes as it is."""
    return getattr(value, "sharding", None) == sharding and value.committed


def home_copy(replicated, home):
    """The buffer of a replicated array that lies on the device `home`."""
    # The first copy is had without making an object for each of them.
    copy = replicated.addressable_data(0)
    if home not in copy.devices():
        at_home = [
            shard.data
            for shard in replicated.addressable_shards
            if shard.device == home
        ]
        copy = at_home[0] if at_home else jax.device_put(copy, home)
    return uncommitted(copy)


def each_once(arrays):
    """The same arrays, with a copy for each whose buffer is there again.

    A step consumes what it takes, and `a.assign(b)` leaves two variables with
    one array, as averages of the weights do at the end of a training.
    """
    buffers = list(map(_buffer_of, arrays))
    if len({*buffers}) == len(buffers):
        return arrays
    seen, once = set(), []
    for array, buffer in zip(arrays, buffers):
        once.append(array.copy() if buffer in seen else array)
        seen.add(buffer)
    return once


def _buffer_of(array):
    """What tells the memory of an array from that of others."""
    if not isinstance(array, jax.Array) or not array.size or array.is_deleted():
        return object()
    if len(array.sharding.device_set) > 1:
        return id(array)
    return next(iter(array.devices())), array.unsafe_buffer_pointer()


def _nothing():
    return None


def _remember(variable, copy, replicated):
    # As long as the variable holds the copy: other weights would otherwise
    # lie on every device beside the old ones.
    owner = weakref.ref(variable)

    def forget(copy):
        variable = owner()
        if variable is not None and getattr(variable, _COPIES)[0] is copy:
            delattr(variable, _COPIES)

    setattr(variable, _COPIES, (weakref.ref(copy, forget), replicated))


def uncommitted(array):
    # Like the arrays that Keras makes, it goes along with what it is computed
    # with, on whatever device that is. JAX has no public way to say so.
    return ArrayImpl(array.aval, array.sharding, [array], committed=False)
