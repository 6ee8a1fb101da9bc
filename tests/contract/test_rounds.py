"""What `Engine.rounds_layer` promises: Keras's `fit`, and no step of Keras."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_parallel._errors import BackendError
from keras_parallel.engines import active_engine
from keras_parallel.engines.fake import FakeEngine
from keras_parallel.strategies import _overlay


class Played(_overlay.OverlayState):
    """Notes the batches that it is handed."""

    def __init__(self, template):
        engine = active_engine()
        layers_ = (_overlay.Overlay, engine.rounds_layer)
        super().__init__(template, layers_, engine.runtime_attributes)
        self.trained, self.tested = [], []

    def like(self, template, layers=()):
        raise NotImplementedError  # Only a copy of the model would ask.

    def train_round(self, batch):
        self.trained.append(batch)
        return {"rounds": float(len(self.trained))}

    def test_round(self, batch):
        self.tested.append(batch)
        return {"rounds": float(len(self.tested))}


def test_fit_hands_over_each_batch_and_computes_nothing():
    template = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    template.compile("sgd", "mse")
    before = [np.array(v) for v in template.variables]
    state = Played(template)
    model = _overlay.overlay(state)
    x = np.arange(30.0, dtype="float32").reshape(10, 3)
    y = np.arange(20.0, dtype="float32").reshape(10, 2)
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: seen.append((step, dict(logs)))
    )
    history = model.fit(
        x,
        y,
        batch_size=4,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=(x, y),
        callbacks=[note],
    )
    assert [len(batch[0]) for batch in state.trained] == [4, 4, 2] * 2
    assert [len(batch[0]) for batch in state.tested] == [4, 4, 2] * 2
    for batch in (*state.trained, *state.tested):
        assert all(type(part) is np.ndarray for part in batch)
    np.testing.assert_array_equal(
        np.concatenate([batch[0] for batch in state.trained[:3]]), x
    )
    assert [step for step, _ in seen] == [0, 1, 2] * 2
    assert seen[-1][1]["rounds"] == 6.0
    assert history.history == {"rounds": [3.0, 6.0], "val_rounds": [3.0, 6.0]}
    for one, other in zip(before, template.variables):
        np.testing.assert_array_equal(one, other)


def test_an_engine_without_rounds_says_so():
    with pytest.raises(BackendError, match=r"Received: .*works"):
        FakeEngine().rounds_layer  # noqa: B018
