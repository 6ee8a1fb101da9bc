"""Who trains: ours, and the loop by hand in plain Keras."""

import contextlib

import keras_parallel as kp

import jax
import keras

from _alternating.models import propose
from _measuring.turns import timed
from _measuring.turns import wait_for


class Ours:
    """`AlternatingTrainer`.

    Args:
        case: What is trained.
        devices: How many devices share each batch; 1: the models are plain.
    """

    def __init__(self, case, devices):
        self._batch = case.batch
        if devices == 1:
            self._pair = case.make()
        else:
            self._pair = case.make(lambda m: kp.data_parallel(m, devices))
        self._trainer = kp.AlternatingTrainer(
            [
                kp.Phase("rpn", self._pair.rpn),
                kp.Phase("detector", self._pair.detector, make_batch=propose),
            ],
            model=self._pair.model,
        )

    def seconds(self, data, rounds):
        """Of a round."""

        def run():
            self._trainer.fit(
                *data, batch_size=self._batch, shuffle=False, verbose=0
            )
            _wait_for(self._pair)

        return timed(run, rounds)


class ByHand:
    """`train_on_batch`, `predict_on_batch`, `train_on_batch`.

    Args:
        case: What is trained.
        devices: How many devices share each batch, by
            `keras.distribution.DataParallel`; 1: plain Keras.
    """

    def __init__(self, case, devices):
        self._batch = case.batch
        self._distribution = None
        if devices > 1:
            names = keras.distribution.list_devices("cpu")[:devices]
            self._distribution = keras.distribution.DataParallel(devices=names)
        with self._distributed():
            self._pair = case.make()

    def seconds(self, data, rounds):
        """Of a round."""

        def run():
            for start in range(0, len(data[0]), self._batch):
                images, boxes = (a[start : start + self._batch] for a in data)
                self._round(images, boxes)
            _wait_for(self._pair)

        with self._distributed():
            return timed(run, rounds)

    def _round(self, images, boxes):
        pair = self._pair
        pair.rpn.train_on_batch(images, boxes, return_dict=True)
        found = pair.rpn.predict_on_batch(images)
        x, y = propose((images, boxes), {"rpn": found})
        pair.detector.train_on_batch(x, y, return_dict=True)

    @contextlib.contextmanager
    def _distributed(self):
        keras.distribution.set_distribution(self._distribution)
        try:
            yield
        finally:
            keras.distribution.set_distribution(None)


def _wait_for(pair):
    for model in (pair.rpn, pair.detector):
        wait_for(model)
    jax.effects_barrier()
