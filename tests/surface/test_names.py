"""Losses and metrics are found by the names of the user's outputs."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from tests import models

LOSS = {
    "main_output": models.jaccard_distance_loss,
    "aux_output": "binary_crossentropy",
}


def compiled(make_model, **arguments):
    parallel = kp.data_parallel(make_model(), 2)
    parallel.compile("sgd", **arguments)
    return parallel


@pytest.mark.parametrize("outputs_as", [list, dict])
def test_history_keys_are_those_of_one_device(outputs_as):
    """G01, G02, O01, O02, O04: keyed as before, logged keys unchanged.

    The two heads have different shapes, so a metric at the wrong one fails.
    """
    x, y = models.two_targets(24, np.random.default_rng(0))
    plain = models.two_headed(outputs_as)
    parallel = kp.multi_gpu_model(models.two_headed(outputs_as), gpus=8)
    histories = [
        model.fit(x, y, batch_size=8, verbose=0, validation_data=(x, y)).history
        for model in (plain, parallel)
    ]
    assert list(histories[0]) == list(histories[1])
    assert "main_output_jaccard_distance_loss" in histories[1]
    assert "val_aux_output_acc" in histories[1]
    assert parallel.output_names == plain.output_names


@pytest.mark.parametrize("argument", ["loss", "metrics", "loss_weights"])
def test_old_names_of_outputs_are_explained(argument):
    values = {"loss": "mse", "metrics": "mae", "loss_weights": 1.0}
    old = {
        "concatenate_1": values[argument],
        "concatenate_2": values[argument],
    }
    with pytest.raises(ValueError) as caught:
        compiled(models.two_headed, **{"loss": LOSS, argument: old})
    message = str(caught.value)
    assert "'concatenate_1' meant 'main_output'" in message
    assert "'concatenate_2' meant 'aux_output'" in message
    assert "Received: " in message


def test_one_old_name_among_new_ones_is_explained():
    with pytest.raises(ValueError, match="'concatenate_2' meant 'aux_output'"):
        compiled(
            models.two_headed,
            loss={"main_output": "mse", "concatenate_2": "mse"},
        )
    with pytest.raises(ValueError, match="'concatenate_1' meant 'main_output'"):
        compiled(models.two_headed, loss={"concatenate_1": "mse"})


def test_an_old_name_for_a_single_output_is_explained():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1, name="out")])
    parallel = kp.data_parallel(model, 2)
    with pytest.raises(ValueError) as caught:
        parallel.compile("sgd", loss={"concatenate_1": "mse"})
    assert "'concatenate_1' meant 'out'" in str(caught.value)
    assert "`model.compile(loss=...)`" in str(caught.value)


def test_an_output_that_is_called_concatenate_is_fine():
    def make_model():
        inputs = keras.Input((6,))
        first = layers.Concatenate(name="concatenate_1")([inputs, inputs])
        return keras.Model(inputs, [first, layers.Dense(1, name="b")(inputs)])

    compiled(make_model, loss={"concatenate_1": "mse", "b": "mse"})


def test_a_failed_compile_leaves_the_model_as_it_was():
    parallel = kp.data_parallel(models.two_headed(), 2)
    optimizer = parallel.optimizer
    with pytest.raises(ValueError):
        parallel.compile("sgd", loss={"concatenate_1": "mse"})
    assert parallel.optimizer is optimizer
    x, y = models.two_targets(8, np.random.default_rng(0))
    parallel.fit(x, y, verbose=0)


TARGETS = models.two_targets(24, np.random.default_rng(0))
WEIGHTS = {
    "main_output": np.linspace(0, 1, 24),
    "aux_output": np.linspace(1, 2, 24),
}


def history(model, y, sample_weight=None, **arguments):
    keras.utils.set_random_seed(0)
    model.compile("sgd", **arguments)
    fitted = model.fit(
        TARGETS[0],
        y,
        sample_weight=sample_weight,
        batch_size=8,
        verbose=0,
        shuffle=False,
    )
    return fitted.history


def same_model():
    keras.utils.set_random_seed(3)
    model = models.two_headed()
    return keras.Model(model.input, model.outputs)  # Not compiled.


def test_sample_weights_by_the_name_of_the_output():
    """O07, O08: Keras refuses the dictionary for a list of outputs."""
    expected = history(
        same_model(),
        list(TARGETS[1].values()),
        list(WEIGHTS.values()),
        loss=list(LOSS.values()),
    )
    actual = history(
        kp.data_parallel(same_model(), 2), TARGETS[1], WEIGHTS, loss=LOSS
    )
    assert list(actual) == list(expected)
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5)


@pytest.mark.parametrize("given", ["all targets", "its own target"])
def test_a_head_left_out_of_the_losses(given):
    """Keras wants `None` for it and a target; the name says enough."""
    expected = history(
        same_model(), list(TARGETS[1].values()), loss=["mse", None]
    )
    targets = dict(TARGETS[1])
    if given == "its own target":
        del targets["aux_output"]
    actual = history(
        kp.data_parallel(same_model(), 2), targets, loss={"main_output": "mse"}
    )
    np.testing.assert_allclose(actual["loss"], expected["loss"], rtol=1e-5)
    kp.data_parallel(same_model(), 2).compile("sgd", {"main_output": "mse"})


def test_targets_reach_methods_of_the_users_as_they_were_passed():
    seen = []

    class Own(keras.Model):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            seen.append(type(y))
            return super().compute_metrics(x, y, y_pred, sample_weight)

    inner = same_model()
    parallel = kp.data_parallel(Own(inner.input, inner.outputs), 2)
    history(parallel, TARGETS[1], loss=LOSS)
    assert set(seen) == {dict}


def test_a_sequential_model_takes_its_target_by_name():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, name="out")])
    parallel = kp.data_parallel(model, 2)
    y = {"out": TARGETS[1]["main_output"]}
    assert history(parallel, y, loss={"out": "mse"})["loss"][0] > 0


@pytest.mark.filterwarnings("ignore:The structure of `inputs`")
def test_one_output_by_its_name_from_a_generator():
    """G01: the smallest case of the report."""
    inputs = keras.Input((6,), name="input")
    model = keras.Model(inputs, layers.Dense(3, name="output")(inputs))
    parallel = kp.data_parallel(model, 2)
    parallel.compile("sgd", {"output": "mse"}, metrics={"output": "mae"})

    def data():
        while True:
            yield {"input": TARGETS[0]}, {"output": TARGETS[1]["main_output"]}

    fitted = parallel.fit(data(), steps_per_epoch=2, shuffle=False, verbose=0)
    assert set(fitted.history) == {"loss", "mae"}
    y = {"output": TARGETS[1]["main_output"]}
    parallel.evaluate(TARGETS[0], y, verbose=0)
    parallel.train_on_batch(TARGETS[0], y)
    parallel.test_on_batch({"input": TARGETS[0]}, y)
