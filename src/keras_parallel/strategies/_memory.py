"""What a model consists of, noted to be put back later.

That is the values of variables, and the attributes of the objects of Keras and
of the user's own classes that a model consists of, down to the lists, dicts,
NumPy arrays and random generators they hold.
"""

import collections
import contextlib
import functools
import random
import sys
import sysconfig
from typing import Any

import keras
import numpy as np

from keras_parallel.strategies import _keras
from keras_parallel.strategies._overlay import Overlay
from keras_parallel.strategies._overlay import own_attributes_of

# Of larger arrays, such as data, no copy is made.
_LARGEST_ARRAY = 2**28


class Memory:
    """What `roots`, and all that they hold, are now.

    Args:
        roots: Objects of Keras, or containers of such.
    """

    def __init__(self, roots):
        self._variables = []
        # Pairs of an object and what it held.
        self._attributes = []
        self._containers = []
        self._arrays = []
        # What puts back the state of a random generator.
        self._generators = []
        self._see_all(roots)

    def _see_all(self, roots):
        # By identity, and kept alive by what is noted, so that none is reused.
        seen, waiting = {}, list(roots)
        while waiting:
            thing = waiting.pop()
            if id(thing) in seen:
                continue
            seen[id(thing)] = thing
            waiting.extend(self._note(thing))
        self._seen = seen

    def _note(self, thing):
        """Notes what `thing` holds, and returns what to look at next."""
        if isinstance(thing, keras.Variable):
            self._note_variable(thing)
            return ()
        if isinstance(thing, tuple):
            return thing
        if isinstance(thing, dict):
            self._containers.append((thing, list(thing.items())))
            return thing.values()
        if isinstance(thing, list | set | collections.deque):
            self._containers.append((thing, list(thing)))
            return thing
        if isinstance(thing, np.ndarray):
            self._note_array(thing)
            return ()
        if isinstance(thing, random.Random):
            state = thing.getstate()
            self._generators.append(functools.partial(thing.setstate, state))
            return ()
        if isinstance(thing, np.random.Generator | np.random.RandomState):
            self._note_generator(thing)
            return ()
        known = _is_of_keras(thing) or _is_of_the_user(thing)
        if known and not issubclass(type(thing), Overlay):
            held = dict(vars(thing))
            self._attributes.append((vars(thing), held))
            return held.values()
        return ()

    def _note_variable(self, variable):
        self._variables.append((variable, variable.value))

    def _note_array(self, array):
        if (
            array.flags.writeable
            and array.nbytes <= _LARGEST_ARRAY
            and not isinstance(array, np.memmap)  # A file.
        ):
            self._arrays.append((array, array.copy()))

    def _note_generator(self, generator):
        if isinstance(generator, np.random.RandomState):
            put_back = functools.partial(
                generator.set_state, generator.get_state()
            )
        else:
            bits = generator.bit_generator
            put_back = functools.partial(setattr, bits, "state", bits.state)
        self._generators.append(put_back)

    def use_copies(self):
        """Leaves the arrays themselves to the user: a step consumes its own."""
        for variable, value in self._variables:
            variable.assign(keras.ops.copy(value))

    def restore(self):
        for attributes, held in self._attributes:
            if not _same(attributes.items(), held.items()):
                attributes.clear()
                attributes.update(held)
        for container, held in self._containers:
            if isinstance(container, dict):
                if not _same(container.items(), held):
                    _refill_dict(container, held)
            elif not _same_things(container, held):
                _refill(container, held)
        for array, held in self._arrays:
            if array.tobytes() != held.tobytes():
                array[...] = held
        for put_back in self._generators:
            put_back()
        for variable, value in self._variables:
            variable.assign(value)


class MemoryOfTrace(Memory):
    """The same for what only traces: arrays are neither read nor copied."""

    def _note_variable(self, variable):
        attributes = vars(variable)
        self._attributes.append((attributes, dict(attributes)))

    def _note_array(self, array):
        del array


@contextlib.contextmanager
def traced_only(model: keras.Model):
    """Puts everything back after the code of a parallel model was traced.

    Such code may build layers, count its calls, or keep what it computed: in
    a trace, all that is of no use to anybody later.
    """
    attributes = _keras.global_attributes()
    template = model._keras_parallel.template
    memory = MemoryOfTrace(
        [template, own_attributes_of(model), *attributes.values()]
    )
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        memory.restore()
        _keras.set_global_attributes(attributes)
        random.setstate(python)
        np.random.set_state(numpy)


def _is_of_the_user(thing):
    """Whether its class is of the user, not of Python or a library."""
    if not hasattr(thing, "__dict__") or isinstance(thing, type):
        return False
    name = type(thing).__module__
    if name == "__main__":
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return (
        file is not None
        and name.partition(".")[0] not in _OWN_AND_KERAS
        and not file.startswith(_PYTHON)
        and not any(part in file for part in _INSTALLED)
    )


_OWN_AND_KERAS = ("keras_parallel", "keras")
_INSTALLED = ("site-packages", "dist-packages")
_PYTHON = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))


def _is_of_keras(thing):
    return hasattr(thing, "__dict__") and any(
        cls.__module__.partition(".")[0] == "keras"
        for cls in type(thing).__mro__
    )


def _same(items, others):
    items, others = list(items), list(others)
    return len(items) == len(others) and all(
        a is c and b is d for (a, b), (c, d) in zip(items, others)
    )


def _same_things(container, held):
    container = list(container)
    return len(container) == len(held) and all(map(_is, container, held))


def _is(a, b):
    return a is b


# What Keras tracks has methods that track again; those of the built-in types
# do not.


def _refill_dict(container: Any, items):
    is_ordered = isinstance(container, collections.OrderedDict)
    kind = collections.OrderedDict if is_ordered else dict
    kind.clear(container)
    for key, value in items:
        kind.__setitem__(container, key, value)


def _refill(container: Any, held):
    if isinstance(container, list):
        list.__setitem__(container, slice(None), held)
    elif isinstance(container, set):
        set.clear(container)
        set.update(container, held)
    else:
        container.clear()
        container.extend(held)
