"""From the iterator that Keras gives a step to placed batches.

On accelerators Keras sends each batch whole to the first device, one batch
ahead of the step. Here each device is sent its own rows instead, as early.
"""

import inspect

import jax
import numpy as np

# Keras's generator that looks one batch ahead, and its argument.
_LOOK_AHEAD = "_one_batch_ahead_iterator"
_NUMPY_BATCHES = "numpy_iterator"


class Input:
    """Opens the iterators of one kind of step.

    Args:
        prepare: Applied to each batch; places it.
        several: Whether several batches are read before the first is used: a
            generator may give the same arrays again, with other values.
    """

    def __init__(self, prepare, several):
        self._prepare = prepare
        if several:
            self._prepare = lambda batch: prepare(_copied(batch))
        self._given = None
        self._batches = iter(())

    def batches(self, iterator):
        """The batches of `iterator`, placed, each time from where it is."""
        if iterator is not self._given:
            self._given = iterator
            numpy_batches = _behind_look_ahead(iterator)
            if numpy_batches is None:
                self._batches = map(self._prepare, iterator)
            else:
                self._batches = _one_ahead(map(self._prepare, numpy_batches))
        return self._batches


def _copied(batch):
    return jax.tree.map(
        lambda x: x.copy() if isinstance(x, np.ndarray) else x, batch
    )


def _behind_look_ahead(iterator):
    """What Keras's look-ahead would read, if it has read nothing yet."""
    if (
        inspect.isgenerator(iterator)
        and iterator.gi_code.co_name == _LOOK_AHEAD
        and inspect.getgeneratorstate(iterator) == inspect.GEN_CREATED
    ):
        return inspect.getgeneratorlocals(iterator).get(_NUMPY_BATCHES)
    return None


def _one_ahead(batches):
    upcoming = None
    for batch in batches:
        if upcoming is not None:
            yield upcoming
        upcoming = batch
    if upcoming is not None:
        yield upcoming
