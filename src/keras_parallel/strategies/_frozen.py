"""What a phase trains: the layers that were trainable, less those it freezes.

Keras reads `trainable` anew in each step, but an optimizer is built for the
variables that were trainable once: a layer that is frozen between two steps
is an error on one backend and no effect on another. So a phase remembers its
set, and the flags say so only while its steps are traced.
"""

import contextlib
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

import keras

from keras_parallel.strategies import _keras


class FrozenSet:
    """The variables that a phase trains, and those that it does not.

    Args:
        model: The model of the phase.
        trainable: Layer -> whether it was trainable when `model` was compiled.
        freeze: Layers that the phase does not train.
    """

    def __init__(
        self,
        model: keras.Model,
        trainable: Mapping[keras.Layer, bool],
        freeze: Iterable[keras.Layer],
    ):
        self._model = model
        self._trainable = trainable
        self._freeze = tuple(freeze)
        self._split = None

    def split(self) -> tuple[list, list]:
        """The trainable and the other variables, in the order of Keras."""
        if self._split is not None:
            return self._split
        with self.applied():
            split = (
                self._model.trainable_variables,
                self._model.non_trainable_variables,
            )
        if all(layer.built for layer in self._layers()):
            self._split = split
        return split

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The flags of the layers are those of the phase inside."""
        layers = {layer: layer.trainable for layer in self._layers()}
        variables = {id(v): (v, v.trainable) for v in self._model.variables}
        try:
            _set(layers, self._trainable)
            for layer in self._freeze:
                layer.trainable = False
            yield
        finally:
            _set(layers, layers)
            for variable, trainable in variables.values():
                if variable.trainable != trainable:
                    variable.trainable = trainable

    def _layers(self):
        return _keras.layers_of(self._model, with_self=True)


def _set(layers, flags):
    # Outer layers come first: setting one sets all within it.
    for layer in layers:
        if layer in flags and layer.trainable != flags[layer]:
            layer.trainable = flags[layer]
