"""What `assert_trains_like_one_device` says of bad arguments."""

import keras
import numpy as np
import pytest

import keras_parallel as kp
from tests import models


def make_model():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def make_batches():
    return [models.regression(8, np.random.default_rng(0))]


def uncompiled():
    return keras.Sequential([keras.layers.Dense(1)])


def exploding():
    model = make_model()
    model.compile(keras.optimizers.SGD(1e30), "mse")
    return model


@pytest.mark.parametrize(
    "arguments",
    [
        {"steps": 0},
        {"steps": 1.5},
        {"steps": True},
        {"make_model": make_model()},
        {"make_model": lambda: None},
        {"make_model": uncompiled},
        {"make_model": exploding},
        {"make_batches": make_batches()},
        {"make_batches": list},
    ],
)
def test_bad_arguments_are_refused(arguments):
    arguments = {
        "make_model": make_model,
        "make_batches": make_batches,
        "devices": 2,
        "steps": 4,
    } | arguments
    with pytest.raises(ValueError, match=r"Received: "):
        kp.testing.assert_trains_like_one_device(
            arguments.pop("make_model"),
            arguments.pop("make_batches"),
            **arguments,
        )


def test_models_that_differ_from_call_to_call_are_refused():
    widths = iter(range(1, 9))

    def other_each_time():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(next(widths))]
        )
        model.compile("sgd", "mse")
        return model

    with pytest.raises(ValueError, match="the same model at each call"):
        kp.testing.assert_trains_like_one_device(
            other_each_time, make_batches, devices=2, steps=2
        )


def test_reports_name_the_devices_and_the_yardstick(capsys):
    reports = kp.testing.assert_trains_like_one_device(
        make_model, make_batches, devices=[1, 2], steps=3
    )
    assert [report.devices for report in reports] == [1, 2]
    assert all(report.one_step <= 1e-6 for report in reports)
    assert "yardstick" in capsys.readouterr().out
    named = kp.testing.assert_trains_like_one_device(
        make_model, make_batches, devices=["gpu:1", "gpu:3"], steps=3
    )
    assert named[0].devices == ["gpu:1", "gpu:3"]
