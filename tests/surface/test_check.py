"""`keras_parallel.check`: what it names, and what it leaves as it was."""

import time

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp


def dense(*units, inputs=16, optimizer="sgd"):
    model = keras.Sequential(
        [keras.Input((inputs,)), *(layers.Dense(u) for u in units)]
    )
    model.compile(optimizer, "mse")
    return model


def data(rows, inputs=16, outputs=4):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, inputs)).astype("float32")
    return x, rng.normal(size=(rows, outputs)).astype("float32")


def slow(batches, seconds):
    for batch in batches:
        time.sleep(seconds)
        yield batch


def batches_of(rows):
    return [data(n) for n in rows]


class Saver(keras.callbacks.Callback):
    """Waits for the device and for a disk after each batch."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.get_weights()
        time.sleep(0.05)


# Planted bottlenecks: the effects are large, so that a busy machine names them
# too.


def slow_input():
    parallel = kp.data_parallel(dense(4), 2)
    return kp.check(parallel, slow(batches_of([16] * 9), 0.1)), "input"


def slow_callback():
    parallel = kp.data_parallel(dense(4), 2)
    return kp.check(parallel, *data(96), callbacks=[Saver()]), "callbacks"


def tiny_batch():
    parallel = kp.data_parallel(dense(4, 4), 2)
    report = kp.check(parallel, *data(64), batch_size=4, steps=16)
    return report, "tiny steps"


def other_shapes():
    parallel = kp.data_parallel(dense(4), 2)
    return kp.check(parallel, iter(batches_of([8, 10, 12, 14, 16]))), (
        "recompilation"
    )


def uneven_batches():
    parallel = kp.data_parallel(dense(4), 4)
    return kp.check(parallel, *data(150), batch_size=30), "uneven batches"


def large_layer():
    parallel = kp.data_parallel(dense(2048, 4, inputs=1024), 2)
    report = kp.check(parallel, *data(16, 1024), batch_size=4, steps=4)
    return report, "large layer"


PLANTED = {
    f.__name__: f
    for f in (
        slow_input,
        slow_callback,
        tiny_batch,
        other_shapes,
        uneven_batches,
        large_layer,
    )
}


@pytest.mark.parametrize("name", list(PLANTED))
def test_planted_bottlenecks_are_named(name):
    report, expected = PLANTED[name]()
    print(report)
    assert report.bottleneck.name == expected
    assert report.ok
    sentence = report.bottleneck.sentence
    assert sentence in " ".join(str(report).split())
    for words in {
        "slow_callback": ("`Saver`",),
        "other_shapes": ("5 shapes of batch in 5 steps",),
        "uneven_batches": ("30 rows", "4 devices", "batch_size of 32"),
        "large_layer": ("'sequential", "/dense", "8.4 MB"),
    }.get(name, ()):
        assert words in sentence
