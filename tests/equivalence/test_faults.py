"""The equality check goes red on every fault that parallel training has had.

Each fault is planted in a parallel model that is right otherwise, the way a
wrong implementation would have it.
"""

import jax
import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_parallel
from tests import models

DEVICES = 2
ROWS = 8


def make_model(dropout=0.0, optimizer=None):
    inputs = keras.Input((6,))
    x = layers.Dense(8, use_bias=False, kernel_regularizer="l2")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Dropout(dropout)(layers.ReLU()(x))
    frozen = layers.Dense(4, trainable=False, name="frozen")(x)
    heads = [layers.Dense(1, name="a")(frozen), layers.Dense(1, name="b")(x)]
    model = keras.Model(inputs, heads)
    model.compile(
        optimizer or models.sgd(0.05),
        {"a": "mse", "b": "mae"},
        metrics={"a": "mae"},
    )
    return model


def make_batches():
    rng = np.random.default_rng(5)
    for _ in range(4):
        x = models.features(ROWS, rng)
        y = [models.features(ROWS, rng, 1) for _ in range(2)]
        yield x, y, [np.ones(ROWS, "float32")] * 2


def check(parallelize, make_model=make_model):
    keras_parallel.testing.assert_trains_like_one_device(
        make_model, make_batches, devices=DEVICES, parallelize=parallelize
    )


def with_step(change):
    """A `parallelize` whose `train_step` is wrapped by `change`."""

    def parallelize(model, devices):
        parallel = keras_parallel.data_parallel(model, devices)
        cls = type(parallel)  # Made for this model only.
        inner = cls.train_step
        cls.train_step = lambda self, state, data: change(
            self, lambda *args: inner(self, *args), state, data
        )
        return parallel

    return parallelize


def with_batch(change):
    """A `parallelize` that trains on what `change` makes of each batch."""

    def parallelize(model, devices):
        parallel = keras_parallel.data_parallel(model, devices)
        state = parallel._keras_parallel
        preparation = state.batch_preparation

        def with_fault(model, kind):
            prepare = preparation(model, kind)
            return lambda batch: prepare(change(batch))

        state.batch_preparation = with_fault
        return parallel

    return parallelize


def rows(batch, index):
    return jax.tree.map(lambda a: np.asarray(a)[index], batch)


def test_no_fault_is_green():
    check(keras_parallel.data_parallel)
    check(keras_parallel.data_parallel, lambda: make_model(dropout=0.5))


# The faults. Each returns a `parallelize`.


def statistics_local_to_a_replica():
    class LocalStatistics(layers.BatchNormalization):
        def _moments(self, inputs, mask):
            mean, variance = super()._moments(inputs[: ROWS // DEVICES], mask)
            return mean, variance

    def parallelize(model, devices):
        norm = next(
            layer
            for layer in model.layers
            if isinstance(layer, layers.BatchNormalization)
        )
        norm.__class__ = LocalStatistics
        return keras_parallel.data_parallel(model, devices)

    return parallelize


def dropped_row():
    return with_batch(lambda batch: rows(batch, slice(0, ROWS - 1)))


def row_counted_twice():
    return with_batch(lambda batch: rows(batch, [*range(ROWS), 0]))


def metric_summed_over_replicas():
    def change(parallel, inner, state, data):
        logs, state = inner(state, data)
        return logs | {"a_mae": DEVICES * logs["a_mae"]}, state

    return with_step(change)


def loss_divided_by_replicas():
    def parallelize(model, devices):
        parallel = keras_parallel.data_parallel(model, devices)
        compute_loss = parallel.compute_loss
        parallel.__dict__["compute_loss"] = lambda *a, **k: (
            compute_loss(*a, **k) / DEVICES
        )
        return parallel

    return parallelize


def dropout_per_replica():
    class PerReplica(layers.Dropout):
        def call(self, inputs, training=False):
            if not training:
                return inputs
            half = ROWS // DEVICES
            mask = keras.random.dropout(
                ops.ones_like(inputs[:half]),
                self.rate,
                seed=self.seed_generator,
            )
            return inputs * ops.concatenate([mask, mask])

    def parallelize(model, devices):
        for layer in model.layers:
            if isinstance(layer, layers.Dropout):
                layer.__class__ = PerReplica
        return keras_parallel.data_parallel(model, devices)

    return parallelize


def stale_slot():
    def change(parallel, inner, state, data):
        logs, new = inner(state, data)
        slots = [*new[2][:-1], state[2][-1]]
        return logs, (new[0], new[1], slots, new[3])

    return with_step(change)


def frozen_variable_that_moved():
    def change(parallel, inner, state, data):
        logs, new = inner(state, data)
        moved = [
            value + 1e-4 if "frozen/kernel" in variable.path else value
            for variable, value in zip(parallel.non_trainable_variables, new[1])
        ]
        return logs, (new[0], moved, new[2], new[3])

    return with_step(change)


def regularizer_counted_by_each_replica():
    def parallelize(model, devices):
        for variable in model.trainable_variables:
            if variable.regularizer is not None:
                once = variable.regularizer
                variable.regularizer = lambda v, once=once: DEVICES * once(v)
        return keras_parallel.data_parallel(model, devices)

    return parallelize


def batch_permuted_against_its_targets():
    def change(batch):
        x, *rest = batch
        return (np.asarray(x)[::-1], *rest)

    return with_batch(change)


def replica_that_skipped_an_update():
    def change(parallel, inner, state, data):
        x, y, weights = data
        half = ops.cast(ops.arange(ROWS) < ROWS // DEVICES, "float32")
        return inner(state, (x, y, [w * half for w in weights]))

    return with_step(change)


def loss_of_a_head_lost():
    def parallelize(model, devices):
        parallel = keras_parallel.data_parallel(model, devices)
        parallel.compile(
            model.optimizer, ["mse", None], metrics=[["mae"], None]
        )
        return parallel

    return parallelize


FAULTS = [
    statistics_local_to_a_replica,
    dropped_row,
    row_counted_twice,
    metric_summed_over_replicas,
    loss_divided_by_replicas,
    dropout_per_replica,
    stale_slot,
    frozen_variable_that_moved,
    regularizer_counted_by_each_replica,
    batch_permuted_against_its_targets,
    replica_that_skipped_an_update,
    loss_of_a_head_lost,
]


def test_there_are_twelve_faults():
    assert len(FAULTS) == 12


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_fault_is_red(fault):
    dropout = 0.5 if fault is dropout_per_replica else 0.0
    with pytest.raises(AssertionError, match=r"differs by|logs \["):
        check(fault(), lambda: make_model(dropout))
