"""Every kind of data gives what one device gives, each row exactly once.

Reports by users: J02 (mapped datasets), T07 (dictionaries), T16, T17, T19
(batches of other sizes), T20 (rows and targets stay paired), T22 (finite
datasets over several epochs), G18 (rows of `predict`).
"""

import dataclasses
import os
import typing

# Before TensorFlow is imported: its greeting is no part of a test's output.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from keras import layers

import keras_parallel
from tests import helpers
from tests import models
from tests import selection
from tests.datasets import Endless
from tests.datasets import Rows
from tests.datasets import Watched

ROWS = 53  # A prime: two batches of 24 and one of 5.
SIZE = 24
BATCHES = 3
DEVICES = (1, 2, 8)

pytestmark = [
    # Keras, after an epoch of a dataset whose size it did not know.
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
]


@dataclasses.dataclass
class Feed:
    """What `fit`, `evaluate` and `predict` are called with."""

    x: typing.Any
    y: typing.Any = None
    weight: typing.Any = None
    # Batches of an epoch, for data that does not end.
    steps: int | None = None
    batch_size: int | None = None
    shuffle: bool = False
    epochs: int = 2
    # Which rows the data promises for each epoch; `None` for all.
    promised: list | None = None

    def fit(self, model, **options):
        return model.fit(
            self.x,
            self.y,
            sample_weight=self.weight,
            batch_size=self.batch_size,
            steps_per_epoch=self.steps,
            shuffle=self.shuffle,
            epochs=self.epochs,
            verbose=0,
            **options,
        )

    def evaluate(self, model):
        return model.evaluate(
            self.x,
            self.y,
            sample_weight=self.weight,
            batch_size=self.batch_size,
            steps=self.steps,
            verbose=0,
        )

    def predict(self, model):
        return model.predict(
            self.x, batch_size=self.batch_size, steps=self.steps, verbose=0
        )


# Each makes a `Feed` of two inputs and a target.


def arrays(x, y, **options):
    return Feed(x, y, **{"batch_size": SIZE, "shuffle": True} | options)


def batches(a, b, y, sizes=(SIZE,) * BATCHES):
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        yield {"a": a[part], "b": b[part]}, y[part]
        start += size


def again_and_again(a, b, y):
    while True:
        yield from batches(a, b, y)


def weighted(batches):
    return ((x, y, 1.0 + y[:, 0] ** 2) for x, y in batches)


def untuned(dataset):
    """Without the thread that tunes a dataset while it is read.

    It sleeps for up to a minute, and who lets go of an iterator may have to
    wait for it to wake up (TensorFlow 2.21).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def tf_rows(a, b, y):
    return untuned(tf.data.Dataset.from_tensor_slices(({"a": a, "b": b}, y)))


def tf_generated(a, b, y, **options):
    return untuned(
        tf.data.Dataset.from_generator(
            lambda: batches(a, b, y, **options),
            output_signature=(
                {
                    "a": tf.TensorSpec((None, a.shape[1]), a.dtype),
                    "b": tf.TensorSpec((None, b.shape[1]), b.dtype),
                },
                tf.TensorSpec((None, 1), y.dtype),
            ),
        )
    )


class TorchRows(torch.utils.data.Dataset):
    def __init__(self, a, b, y):
        self.arrays = a, b, y

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        a, b, y = (array[index] for array in self.arrays)
        return {"a": a, "b": b}, y


class TorchStream(torch.utils.data.IterableDataset):
    """Of unknown length."""

    def __init__(self, a, b, y):
        self.rows = TorchRows(a, b, y)

    def __iter__(self):
        return map(self.rows.__getitem__, range(ROWS))


def loader(dataset, **options):
    return torch.utils.data.DataLoader(dataset, SIZE, **options)


RAGGED = (24, 1, 24, 4)

DATA = {
    "NumPy": lambda a, b, y: arrays([a, b], y),
    "JAX": lambda a, b, y: arrays(
        [jnp.asarray(a), jnp.asarray(b)], jnp.asarray(y)
    ),
    "tensors of TensorFlow": lambda a, b, y: arrays(
        [tf.constant(a), tf.constant(b)], tf.constant(y)
    ),
    "tensors of torch": lambda a, b, y: arrays(
        [torch.tensor(a), torch.tensor(b)], torch.tensor(y)
    ),
    "dicts": lambda a, b, y: arrays({"a": a, "b": b}, y),
    "tuples": lambda a, b, y: arrays((a, b), (y,)),
    "float64": lambda a, b, y: arrays([a.astype("f8"), b], y),
    "weights": lambda a, b, y: arrays([a, b], y, weight=1.0 + y[:, 0] ** 2),
    "one batch": lambda a, b, y: arrays([a, b], y, batch_size=100),
    "steps_per_epoch": lambda a, b, y: arrays(
        [a, b],
        y,
        steps=1,
        epochs=3,
        shuffle=False,
        promised=[range(24), range(24, 48), range(48, 53)],
    ),
    "generator of dicts": lambda a, b, y: Feed(
        again_and_again(a, b, y), steps=BATCHES
    ),
    "generator with weights": lambda a, b, y: Feed(
        weighted(again_and_again(a, b, y)), steps=BATCHES
    ),
    "generator of ragged batches": lambda a, b, y: Feed(
        batches(a, b, y, RAGGED), epochs=1
    ),
    "generator, fewer steps": lambda a, b, y: Feed(
        again_and_again(a, b, y),
        steps=2,
        epochs=3,
        promised=[range(48), [*range(48, 53), *range(24)], range(24, 53)],
    ),
    "PyDataset": lambda a, b, y: Feed(Rows(a, b, y)),
    "PyDataset, shuffled": lambda a, b, y: Feed(
        Rows(a, b, y, size=4), shuffle=True
    ),
    "PyDataset with threads": lambda a, b, y: Feed(Rows(a, b, y, workers=2)),
    "threads, shuffled, longer than the queue": lambda a, b, y: Feed(
        Rows(a, b, y, size=3, workers=3, max_queue_size=2), shuffle=True
    ),
    "threads, fewer steps": lambda a, b, y: Feed(
        Rows(a, b, y, workers=2),
        steps=1,
        epochs=3,
        promised=[range(24), range(24, 48), range(48, 53)],
    ),
    "endless threads": lambda a, b, y: Feed(
        Endless(a, b, y, workers=2), steps=BATCHES
    ),
    "threads, dicts and weights": lambda a, b, y: Feed(
        Rows(a, b, y, form="dicts and weights", workers=2)
    ),
    "PyDataset with processes": lambda a, b, y: Feed(
        Rows(a, b, y, size=4, workers=1, use_multiprocessing=True),
        shuffle=True,
    ),
    "tf.data": lambda a, b, y: Feed(tf_rows(a, b, y).batch(SIZE)),
    "tf.data, mapped and prefetched": lambda a, b, y: Feed(
        tf_rows(a, b, y)
        .batch(SIZE)
        .map(lambda x, y: (x, y + 0), num_parallel_calls=2)
        .prefetch(2)
    ),
    "tf.data, shuffled": lambda a, b, y: Feed(
        tf_rows(a, b, y).shuffle(ROWS, seed=3).batch(SIZE)
    ),
    "tf.data of unknown size": lambda a, b, y: Feed(tf_generated(a, b, y)),
    "tf.data, filtered": lambda a, b, y: Feed(
        tf_rows(a, b, y).filter(lambda x, y: True).batch(SIZE)
    ),
    "tf.data of ragged batches": lambda a, b, y: Feed(
        tf_generated(a, b, y, sizes=RAGGED)
    ),
    "endless tf.data": lambda a, b, y: Feed(
        tf_rows(a, b, y).batch(SIZE).repeat(), steps=BATCHES
    ),
    "tf.data, fewer steps": lambda a, b, y: Feed(
        tf_rows(a, b, y).batch(SIZE),
        steps=1,
        epochs=3,
        promised=[range(24), range(24, 48), range(48, 53)],
    ),
    "tf.data, remainder dropped": lambda a, b, y: Feed(
        tf_rows(a, b, y).batch(SIZE, drop_remainder=True),
        promised=[range(48)] * 2,
    ),
    "tf.data with weights": lambda a, b, y: Feed(
        tf_rows(a, b, y)
        .batch(SIZE)
        .map(lambda x, y: (x, y, 1.0 + y[:, 0] ** 2))
    ),
    "torch": lambda a, b, y: Feed(loader(TorchRows(a, b, y))),
    "torch, shuffled": lambda a, b, y: Feed(
        loader(
            TorchRows(a, b, y),
            shuffle=True,
            generator=torch.Generator().manual_seed(3),
        )
    ),
    "torch, remainder dropped": lambda a, b, y: Feed(
        loader(TorchRows(a, b, y), drop_last=True),
        promised=[range(48)] * 2,
    ),
    "torch of unknown size": lambda a, b, y: Feed(loader(TorchStream(a, b, y))),
}


def without_workers(feed):
    """What Keras reads itself: with workers it reads some rows twice."""
    if isinstance(feed.x, keras.utils.PyDataset):
        feed.x.workers = 0
        feed.x.use_multiprocessing = False
    return feed


def make_model():
    inputs = [keras.Input((6,), name="a"), keras.Input((2,), name="b")]
    x = layers.Dense(8, "relu")(layers.Concatenate()(inputs))
    model = keras.Model(inputs, layers.Dense(1, name="y")(x))
    model.compile(models.sgd(), "mse", metrics=["mae"])
    return model


@pytest.fixture(scope="module")
def pair():
    """A plain model and a parallel one, from the same state each time."""
    made = {}

    def state(model):
        return model.weights + model.optimizer.variables

    def get(devices):
        for key in ("plain", devices):
            if key not in made:
                model = helpers.seeded(make_model)
                if key == devices:
                    model = keras_parallel.data_parallel(model, devices)
                # Keras looks at a batch before the first training: it would
                # shuffle once more in one of the two.
                a, b, y = rows()
                model.train_on_batch([a[:SIZE], b[:SIZE]], y[:SIZE])
                made[key] = model, [v.numpy() for v in state(model)]
            model, initial = made[key]
            for variable, value in zip(state(model), initial, strict=True):
                variable.assign(value)
        return made["plain"][0], made[devices][0]

    return get


def rows():
    a, y = models.regression(ROWS, np.random.default_rng(1))
    return a, models.features(ROWS, np.random.default_rng(2), 2), y


@pytest.mark.parametrize(("kind", "devices"), selection.in_turn(DATA, DEVICES))
def test_equals_one_device(kind, devices, pair):
    results = []
    for model, change in zip(pair(devices), (without_workers, lambda f: f)):
        keras.utils.set_random_seed(4)
        history = change(DATA[kind](*rows())).fit(model).history
        state = helpers.state_of(model)
        evaluated = change(DATA[kind](*rows())).evaluate(model)
        predicted = change(DATA[kind](*rows())).predict(model)
        results.append([*history.values(), state, evaluated, predicted])
    helpers.assert_close(*results)


# What `fit` alone takes. Each makes the arguments from the arrays.

OPTIONS = {
    "validation_split": lambda a, b, y: {
        "x": [a, b],
        "y": y,
        "batch_size": SIZE,
        "validation_split": 0.3,
    },
    "validation_data": lambda a, b, y: {
        "x": [a, b],
        "y": y,
        "batch_size": SIZE,
        "validation_data": ([a[:11], b[:11]], y[:11], np.arange(11.0)),
        "validation_batch_size": 3,
    },
    "validation_data of tf.data": lambda a, b, y: {
        "x": tf_rows(a, b, y).batch(SIZE),
        "validation_data": tf_generated(a, b, y),
        "shuffle": False,
    },
    "validation_data of torch": lambda a, b, y: {
        "x": loader(TorchRows(a, b, y)),
        "validation_data": loader(TorchRows(a, b, y)),
        "shuffle": False,
    },
    "validation_data of threads": lambda a, b, y: {
        "x": Rows(a, b, y, size=4, workers=2, max_queue_size=3),
        "validation_data": Rows(a, b, y, workers=2),
        "shuffle": True,
    },
    "validation_steps of generators": lambda a, b, y: {
        "x": again_and_again(a, b, y),
        "steps_per_epoch": BATCHES,
        "validation_data": again_and_again(a, b, y),
        "validation_steps": 2,
        "shuffle": False,
    },
    "validation_freq": lambda a, b, y: {
        "x": tf_rows(a, b, y).batch(SIZE),
        "validation_data": tf_rows(a, b, y).batch(SIZE),
        "validation_freq": [2],
        "shuffle": False,
    },
    "initial_epoch": lambda a, b, y: {
        "x": tf_rows(a, b, y).batch(SIZE),
        "initial_epoch": 1,
        "epochs": 3,
        "shuffle": False,
    },
}


@pytest.mark.parametrize("devices", selection.every(2, [2, 8]))
@pytest.mark.parametrize("option", list(OPTIONS))
def test_options_of_fit(option, devices, pair):
    results = []
    for model, plain in zip(pair(devices), (True, False)):
        keras.utils.set_random_seed(4)
        options = {"epochs": 2, "verbose": 0} | OPTIONS[option](*rows())
        for name in ("x", "validation_data"):
            if plain and isinstance(options.get(name), keras.utils.PyDataset):
                options[name].workers = 0
        fitted = model.fit(**options)
        results.append(
            [fitted.epoch, *fitted.history.values(), helpers.state_of(model)]
        )
    helpers.assert_close(*results)


CLASS_WEIGHTED = {
    "NumPy": lambda a, b, y: arrays([a, b], y),
    "tf.data": lambda a, b, y: Feed(tf_rows(a, b, y).batch(SIZE)),
    "threads": lambda a, b, y: Feed(Rows(a, b, y, workers=2)),
}


@pytest.mark.parametrize("kind", list(CLASS_WEIGHTED))
def test_class_weight(kind, pair):
    results = []
    for model, change in zip(pair(2), (without_workers, lambda f: f)):
        a, b, y = rows()
        classes = (y > 0).astype("float32")
        keras.utils.set_random_seed(4)
        fitted = change(CLASS_WEIGHTED[kind](a, b, classes)).fit(
            model, class_weight={0: 1.0, 1: 3.0}
        )
        results.append([*fitted.history.values(), helpers.state_of(model)])
    helpers.assert_close(*results)


@pytest.mark.parametrize(
    ("dtype", "devices"), [("uint8", 8), ("uint8", 1), ("bfloat16", 2)]
)
def test_images_of_few_bits(dtype, devices):
    """Pictures come as bytes, or as halves of floats."""

    def make_model():
        model = keras.Sequential(
            [
                keras.Input((4, 4, 1), dtype=dtype),
                layers.Rescaling(1 / 255),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        model.compile(models.sgd(), "mse")
        return model

    pictures = np.random.default_rng(1).integers(0, 255, (13, 4, 4, 1))
    dataset = (
        tf.data.Dataset.from_tensor_slices(pictures)
        .batch(8)
        .map(lambda x: (tf.cast(x, dtype), tf.reduce_mean(x, (1, 2)) / 255))
    )
    results = []
    for model in helpers.both(make_model, devices):
        fitted = model.fit(dataset, shuffle=False, epochs=2, verbose=0)
        predicted = model.predict(dataset, verbose=0)
        results.append([fitted.history["loss"], predicted, model.get_weights()])
    helpers.assert_close(*results)


# The census


class Census(keras.metrics.Metric):
    """How often each row came, by the id that is its target."""

    def __init__(self):
        super().__init__(name="census")
        self.counts = self.add_weight(shape=(ROWS,), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        ids = keras.ops.cast(y_true[:, 0], "int32")
        self.counts.assign_add(
            keras.ops.sum(keras.ops.one_hot(ids, ROWS), axis=0)
        )

    def result(self):
        return keras.ops.max(self.counts)


class Epochs(keras.callbacks.Callback):
    """Notes the census of each epoch."""

    def __init__(self, census):
        super().__init__()
        self.census = census
        self.counts = []

    def on_epoch_end(self, epoch, logs=None):
        # The loss is a difference of ids: rows and targets stay paired.
        assert logs["loss"] == 0
        self.counts.append(self.census.counts.numpy())


@pytest.fixture(scope="module")
def counting():
    """A parallel model that gives the id of each row, and its census."""
    made = {}

    def make():
        a, b = keras.Input((6,), name="a"), keras.Input((2,), name="b")
        ids = layers.Cropping1D((0, 5))(layers.Reshape((6, 1))(a))
        model = keras.Model([a, b], layers.Flatten()(ids))
        census = Census()
        model.compile(models.sgd(), "mse", metrics=[census])
        return model, census

    def get(devices):
        if devices not in made:
            model, census = make()
            made[devices] = (
                keras_parallel.data_parallel(model, devices),
                census,
            )
        return made[devices]

    return get


def id_rows():
    ids = np.arange(ROWS, dtype="float32")[:, None]
    return np.repeat(ids, 6, 1), np.repeat(ids, 2, 1), ids


def counts_of(ids):
    return np.bincount(list(ids), minlength=ROWS)


def each_on_another_device():
    """Than above. Processes take seconds to start, and are met there only."""
    for param in selection.in_turn(DATA, DEVICES, start=1):
        kind, devices = param.values
        needed = not param.marks and "processes" not in kind
        yield selection.case(kind, devices, needed=needed)


@pytest.mark.parametrize(("kind", "devices"), list(each_on_another_device()))
def test_census(kind, devices, counting):
    """After each epoch each row was seen once, or as the data promises."""
    model, census = counting(devices)
    epochs = Epochs(census)
    feed = DATA[kind](*id_rows())
    feed.fit(model, callbacks=[epochs])
    promised = feed.promised or [range(ROWS)] * feed.epochs
    np.testing.assert_array_equal(epochs.counts, list(map(counts_of, promised)))

    feed = DATA[kind](*id_rows())
    feed.evaluate(model)
    np.testing.assert_array_equal(census.counts, counts_of(promised[0]))

    ids = DATA[kind](*id_rows()).predict(model)[:, 0].astype(int)
    np.testing.assert_array_equal(counts_of(ids), counts_of(promised[0]))
    if "shuffled" not in kind:
        assert list(ids) == list(promised[0])


def test_a_dataset_changes_at_the_beginning_of_an_epoch_as_without_workers():
    """Also where it is read further than an epoch: two batches of three."""
    results = []
    for workers in (0, 2):
        model = helpers.seeded(make_model)
        dataset = Watched(*rows(), workers=workers)
        if workers:
            model = keras_parallel.data_parallel(model, 2)
        history = Feed(dataset, steps=2, epochs=3).fit(model).history
        results.append([*history.values(), helpers.state_of(model)])
        results[-1].append([int(call == "begin") for call in dataset.calls])
        assert dataset.calls.count("begin") == dataset.epoch >= 3
    helpers.assert_close(*results)


def test_threads_prepare_ahead_and_no_further_than_the_queue():
    from keras_parallel.strategies import _feeding
    from keras_parallel.strategies import _workers

    asked = []

    class Asked(Rows):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    dataset = Asked(*rows(), size=2, workers=2, max_queue_size=4)
    with _workers.Threads(dataset) as threads:
        prefetched = _feeding.Prefetched(dataset, threads)
        assert prefetched.num_batches == len(prefetched) == 27
        _ = prefetched[0]
        prefetched._drop()
        assert max(asked) <= 4
        # It goes on where it was, and serves whatever else it is asked for.
        for index in (1, 2, 20, 5, 6, 7, 26):
            (a, _), _ = prefetched[index]
            np.testing.assert_array_equal(a, rows()[0][2 * index :][:2])
    assert asked.count(1) <= 2


def test_the_order_of_keras_is_foreseen():
    """Or nothing would be prepared ahead of a shuffled epoch."""
    from keras_parallel.strategies import _feeding

    foreseen = []

    class Seen(_feeding.Prefetched):
        def _order_from(self, index):
            foreseen.append(list(super()._order_from(index)))
            return foreseen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_feeding, "Prefetched", Seen)
        model = keras_parallel.data_parallel(helpers.seeded(make_model), 2)
        for shuffle in (True, False):
            feed = Feed(Rows(*rows(), size=4, workers=2), shuffle=shuffle)
            feed.fit(model)
    assert {len(order) for order in foreseen} == {14}
    assert [order == sorted(order) for order in foreseen] == (
        [False] * 3 + [True] * 2
    )


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_a_generator_that_fills_one_buffer_again(devices):
    """All batches of an execution are read before the first is used."""

    def batches():
        buffer = np.empty((8, 2), "float32")
        for i in range(6):
            buffer[:] = i
            yield (buffer,)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(steps_per_execution=3)
    model.set_weights([np.ones((2, 1)), np.zeros(1)])
    parallel = keras_parallel.data_parallel(model, devices)
    found = parallel.predict(batches(), verbose=0)
    assert np.unique(found).tolist() == [2.0 * i for i in range(1, 6)]
