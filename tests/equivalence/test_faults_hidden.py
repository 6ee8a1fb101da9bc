"""Faults that hid behind a yardstick, a scale or a NaN are found.

All but one plant `centered`: it is right on one device, and on several each
device takes the mean of its own rows, as a wrong partitioning would.
"""

import jax
import keras
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning
from keras import layers
from keras import ops

import keras_parallel as kp
from tests import models

ROWS = 32


def _centered(x):
    return x - x.mean(0, keepdims=True)


def _of_own_rows(mesh, arguments, result):
    del result
    (sharding,) = (a.sharding for a in arguments)
    return mesh, _centered, sharding, (sharding,)


_partitioned = custom_partitioning(_centered)
_partitioned.def_partition(_of_own_rows, sharding_rule="i j -> i j")


@jax.custom_vjp
def centered(x):
    return _partitioned(x)


centered.defvjp(lambda x: (_partitioned(x), None), lambda _, g: (g,))


class Function(layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


def pooled_over_rows(x):
    """XLA partitions windows that overlap along the rows wrongly."""
    return ops.max_pool(x[None], 3, 1, padding="same")[0]


def mixed_with_the_row_before(x):
    return centered(x - 0.5 * ops.roll(x, 1, 0))


def mixed_with_a_far_row(x):
    return x + 0.1 * centered(x[::-1])


ORDERED = (pooled_over_rows, mixed_with_the_row_before, mixed_with_a_far_row)


def model_of(*inner, metrics=(), optimizer=None):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="relu"),
            *inner,
            layers.Dense(1),
        ]
    )
    model.compile(optimizer or models.sgd(), "mse", metrics=list(metrics))
    return model


def data(scale=1.0):
    rng = np.random.default_rng(5)
    x, y = models.regression(ROWS, rng)
    return x, scale * y


def check(make_model, **options):
    x, y = data(**options)
    return kp.testing.assert_trains_like_one_device(
        make_model, lambda: [(x, y)], devices=2, steps=3
    )


def check_model(model, *arrays):
    return kp.check(
        kp.data_parallel(model, 2), *arrays, batch_size=ROWS, steps=2
    )


@pytest.mark.parametrize("function", ORDERED, ids=lambda f: f.__name__)
def test_where_the_order_of_rows_matters(function):
    with pytest.raises(AssertionError, match=r"differs by"):
        check(lambda: model_of(Function(function)))


def test_right_code_where_the_order_of_rows_matters():
    def mixed(x):
        return x - 0.5 * ops.roll(x, 1, 0)

    (report,) = check(lambda: model_of(Function(mixed)))
    assert not report.noise
    assert "permuted" not in report.yardstick_of


class Spread(keras.metrics.Mean):
    """Between 0 and 1, beside a loss of 1e8."""

    def update_state(self, y, y_pred, sample_weight=None):
        del sample_weight
        super().update_state(ops.abs(centered(y - y_pred)) / 1e5)


class Small(layers.Layer):
    """A small state beside a large one, which moves or stays."""

    def __init__(self, moves):
        super().__init__()
        self.moves = moves

    def build(self, shape):
        del shape
        self.big, self.small = (
            self.add_weight(
                (), keras.initializers.Constant(value), trainable=False
            )
            for value in (1e7, 0.0)
        )

    def call(self, x):
        if self.moves:
            self.big.assign_add(1e4)
        self.small.assign(ops.mean(ops.abs(centered(x))))
        return x


@pytest.mark.parametrize("moves", [False, True])
def test_a_small_state_beside_a_large_one(moves):
    with pytest.raises(AssertionError, match=r"'small\w*/|small.* differs by"):
        check(lambda: model_of(Small(moves)))


def test_a_small_metric_beside_a_large_loss():
    with pytest.raises(AssertionError, match=r"'spread' differs by"):
        check(
            lambda: model_of(
                metrics=[Spread(name="spread")],
                optimizer=keras.optimizers.SGD(1e-3),
            ),
            scale=1e5,
        )


def test_a_metric_where_only_its_rows_have_an_order():
    class Ordered(keras.metrics.Mean):
        def update_state(self, y, y_pred, sample_weight=None):
            del sample_weight
            apart = y - ops.roll(y_pred, 1, 0)
            super().update_state(ops.abs(centered(apart)))

    with pytest.raises(AssertionError, match=r"'ordered' differs by"):
        check(lambda: model_of(metrics=[Ordered(name="ordered")]))


def test_a_loss_that_is_not_finite_shows_nothing():
    x, y = data()
    x, y = np.tile(x, (2, 1)), np.tile(y, (2, 1))
    x[ROWS, 0] = np.nan  # In the second step.
    report = check_model(model_of(), x, y)
    assert not (report.ok or report.equal or report.compared)
    assert all(d.ok for d in report.differences)
    assert "Equal to one device: NOT COMPARED" in str(report)
    assert "'loss' is not finite on one device from step 2 on" in str(report)
    with pytest.raises(ValueError, match="not finite"):
        kp.testing.assert_trains_like_one_device(
            model_of, lambda: [(x[ROWS:], y[ROWS:])], devices=2, steps=1
        )


def test_the_check_of_a_model_where_the_order_of_rows_matters():
    report = check_model(model_of(Function(pooled_over_rows)), *data())
    wrong = {d.among for d in report.differences if not d.ok}
    assert "weight" in wrong
    assert not (report.ok or report.equal) and report.compared
    assert "Equal to one device: NO (" in str(report)
    # What is wrong was compared.
    names = {d.name for d in report.differences if not d.ok}
    assert not any(note.startswith(tuple(names)) for note in report.noise)
