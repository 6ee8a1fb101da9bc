"""Rounds in place of the steps of Keras's JAX trainer.

Private names of Keras that are touched here: `_get_jax_state` and
`_jax_state_synced`, as in `_trainer.py`. There is no state to pass on: who
trains within a round keeps it.
"""

import typing

import jax
import keras
import numpy as np

from keras_parallel.engines.jax._input import Input

if typing.TYPE_CHECKING:
    _Trainer = keras.Model
else:
    _Trainer = object


class JaxRoundsLayer(_Trainer):
    """Hands each batch of `fit` and `evaluate` over. See `Engine`."""

    _keras_parallel: typing.Any

    def _get_jax_state(self, *, purge_model_variables=False, **kinds):
        del purge_model_variables
        return ((),) * sum(kinds.values())

    def jax_state_sync(self):
        self._jax_state_synced = True

    def make_train_function(self, force=False):
        self.train_function = _taking(self._keras_parallel.train_round)

    def make_test_function(self, force=False):
        self.test_function = _taking(self._keras_parallel.test_round)


def _taking(take_round):
    source = Input(_to_numpy, several=False)

    def function(state, iterator):
        return take_round(next(source.batches(iterator))), state

    return function


def _to_numpy(batch):
    return jax.tree.map(
        lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf,
        batch,
    )
