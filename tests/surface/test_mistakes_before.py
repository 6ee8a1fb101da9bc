"""Mistakes before a model is trained: devices, models, processes, commands."""

import gc
import os
import subprocess
import sys

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from keras import layers

import keras_parallel as kp
from keras_parallel import _errors
from keras_parallel import cli
from tests import helpers
from tests import models

X, Y = models.regression(8, np.random.default_rng(0))


def make_model():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1)], name="m")
    model.compile(models.sgd(), "mse")
    return model


def refused(do, kind=_errors.KerasParallelError):
    with pytest.raises(kind) as caught:
        do()
    helpers.assert_teaches(caught.value)
    return str(caught.value)


def devices_of(model):
    return [d.name for d in model._keras_parallel.replicas.devices]


# Devices

DEVICES = {
    "none": (0, "at least 1", "`devices=1`"),
    "less than none": (-1, "at least 1", "`devices=1`"),
    "True": (True, "devices=True", "`devices=2`"),
    "a float": (2.0, "an integer", "of type float"),
    "no NumPy device": (np.int64(0), "at least 1", "`devices=1`"),
    "a name without a list": ("gpu:0", "a list", "`devices=['gpu:0']`"),
    "a word": ("all", "a list", "devices='all'"),
    "bytes": (b"gpu:0", "a list", "of type bytes"),
    "a set": ({"gpu:0", "gpu:1"}, "a list", "of type set"),
    "a dict": ({"gpu:0": 1}, "a list", "of type dict"),
    "a generator": (iter(["gpu:0"]), "a list", "iterator"),
    "an array": (np.array(["gpu:0"]), "a list", "of type ndarray"),
    "no names": ([], "At least one device", "`devices=None`"),
    "a name twice": (["gpu:0", "/GPU:0"], "once", "`devices=['gpu:0']`"),
    "two kinds": (["gpu:0", "cpu:0"], "one kind", "`devices=['gpu:0']`"),
    "an index beyond": (["gpu:99"], "gpu:99", "use_virtual_devices(100)"),
    "a kind that is not there": (["tpu:0"], "tpu:0", "`devices=['gpu:0']`"),
    "a CPU that is not there": (["cpu:7"], "cpu:7", "`devices=['gpu:0']`"),
    "more than there are": (99, "has 8", "`devices=8`"),
    "a misspelt kind": (["gpuu:0"], "'gpuu'", "'gpu', 'tpu', 'cpu'"),
    "no colon": (["GPU0"], "'GPU0'", "`devices=['gpu:0', 'gpu:1']`"),
    "a space": (["gpu:0 "], "'gpu:0 '", "'gpu:1'"),
    "two in one name": (["gpu:0,gpu:1"], "kind and its index", "'gpu:1'"),
    "a list in the list": ([["gpu:0"]], "['gpu:0']", "'gpu:1'"),
    "None in the list": ([None], "Received: None", "'gpu:1'"),
    "numbers in the list": ([0, 1], "Received: 0", "'gpu:1'"),
    "devices of JAX": (jax.devices()[:2], "CpuDevice(id=0)", "'gpu:1'"),
    "devices of TensorFlow": (
        tf.config.list_logical_devices(),
        "LogicalDevice",
        "'gpu:1'",
    ),
}


@pytest.mark.parametrize("name", DEVICES)
def test_wrong_devices(name):
    devices, *said = DEVICES[name]
    model = make_model()
    attributes = set(vars(model))
    message = refused(
        lambda: kp.data_parallel(model, devices), _errors.DeviceError
    )
    for text in said:
        assert text in message
    assert set(vars(model)) == attributes


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (0, "gpus=0"),
        ("0,1", "gpus='0,1'"),
        ([0, 0], "`gpus=['gpu:0']`"),
        ([-1], "gpu:-1"),
        ([True], "Received: True"),
        ([99], "gpu:99"),
        (9, "Expected 9 GPUs"),
        (1.5, "gpus=1.5"),
    ],
)
def test_wrong_gpus(gpus, said):
    assert said in refused(lambda: kp.multi_gpu_model(make_model(), gpus))


@pytest.mark.parametrize(
    ("make", "argument", "expected"),
    [
        (kp.data_parallel, np.int64(2), ["gpu:0", "gpu:1"]),
        (kp.data_parallel, ("gpu:1", "gpu:3"), ["gpu:1", "gpu:3"]),
        (kp.data_parallel, list(np.array(["/GPU:1"])), ["gpu:1"]),
        (kp.multi_gpu_model, list(np.arange(2)), ["gpu:0", "gpu:1"]),
        (kp.multi_gpu_model, range(2), ["gpu:0", "gpu:1"]),
        (kp.multi_gpu_model, ["gpu:2"], ["gpu:2"]),
    ],
)
def test_other_ways_to_say_it_are_fine(make, argument, expected):
    assert devices_of(make(make_model(), argument)) == expected


@pytest.mark.parametrize("kind", ["gpus", 3, "gpu:0"])
def test_a_wrong_kind_of_devices(kind):
    assert "`device_type`" in refused(lambda: kp.list_devices(kind))


# Models

MODELS = {
    "a class": (keras.Sequential, "Sequential(...)"),
    "the class of arrays": (np.ndarray, "keras.Sequential"),
    "an array": (X, "ndarray of shape (8, 6)"),
    "a layer": (layers.Dense(1), "keras.Sequential([Dense(...)])"),
    "the class of a layer": (layers.Dense, "keras.Sequential"),
    "layers": ([layers.Dense(1)], "keras.Sequential(layers)"),
    "a function": (len, "keras.Sequential"),
    "a compiled function": (jax.jit(lambda x: x), "keras.Sequential"),
    "None": (None, "model=None"),
    "a number, the arguments swapped": (2, "model=2"),
    "a path": ("m.keras", "keras.saving.load_model('m.keras')"),
    "a module of PyTorch": (torch.nn.Linear(1, 2), "of type Linear"),
    "a module of TensorFlow": (tf.Module(), "of type Module"),
    "a configuration": ({"name": "m"}, "dict with the keys ['name']"),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_no_model(name):
    thing, said = MODELS[name]
    message = refused(
        lambda: kp.data_parallel(thing), _errors.RefusedModelError
    )
    assert said in message
    assert len(message) < 300


def test_wrapping_twice():
    model = make_model()
    parallel = kp.data_parallel(model, 2)
    assert "parallel already" in refused(lambda: kp.data_parallel(parallel, 4))
    parallel.fit(X, Y, verbose=0)
    assert devices_of(kp.data_parallel(model, 4))[-1] == "gpu:3"


def test_wrapping_a_copy_of_a_parallel_model_is_fine():
    parallel = kp.data_parallel(make_model(), 2)
    copied = kp.data_parallel(keras.models.clone_model(parallel), 4)
    copied.compile("sgd", "mse")
    copied.fit(X, Y, verbose=0)


def test_a_model_that_nobody_else_holds():
    parallel = kp.data_parallel(make_model(), 2)
    gc.collect()
    parallel.fit(X, Y, verbose=0)


def test_the_scope_of_a_device_changes_nothing():
    plain, parallel = make_model(), None
    with keras.device("cpu:3"):
        parallel = kp.data_parallel(make_model(), 2)
        parallel.set_weights(plain.get_weights())
        parallel.fit(X, Y, verbose=0)
        parallel.train_on_batch(X, Y)
    parallel.fit(X, Y, verbose=0)
    for _ in range(3):
        plain.train_on_batch(X, Y)
    helpers.assert_close(helpers.state_of(plain), helpers.state_of(parallel))
    assert len({d for v in parallel.variables for d in v.value.devices()}) == 1


def test_variables_of_flax_are_refused(monkeypatch):
    monkeypatch.setattr(keras.config, "is_nnx_enabled", lambda: True)
    assert "KERAS_NNX_ENABLED" in refused(
        lambda: kp.data_parallel(make_model(), 2), RuntimeError
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda m, path: m.save_weights(path / "m.weights.h5"),
        lambda m, path: m.load_weights(path / "m.weights.h5"),
        lambda m, path: m.save(path / "m"),
        lambda m, path: m.count_params(),
        lambda m, path: m.output,
    ],
)
def test_a_model_that_is_not_built_says_what_keras_says(call, tmp_path):
    messages = []
    for make in (lambda m: m, lambda m: kp.data_parallel(m, 2)):
        model = make(keras.Sequential([layers.Dense(1)], name="m"))
        with pytest.raises((ValueError, AttributeError)) as caught:
            call(model, tmp_path)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_model_without_super_init_says_what_keras_says():
    class Forgetful(keras.Model):
        def __init__(self):
            self.dense = layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    messages = []
    for make in (lambda m: m, lambda m: kp.data_parallel(m, 2)):
        with pytest.raises((ValueError, AttributeError)) as caught:
            make(Forgetful()).compile("sgd", "mse")
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_model_that_is_not_built_can_be_used():
    parallel = kp.data_parallel(keras.Sequential([layers.Dense(1)]), 2)
    parallel.summary(print_fn=lambda line, **_: None)
    assert parallel.predict(X, verbose=0).shape == (8, 1)


# The process


def run_python(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, *(arguments or ("-c", code))],
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


def assert_told(done, *said):
    """Told at the end, whatever the backend prints before."""
    assert done.returncode not in (0, None)
    last = done.stderr.strip().splitlines()[-1]
    helpers.assert_teaches(last)
    for text in said:
        assert text in last


def test_virtual_devices_too_late():
    message = refused(lambda: kp.use_virtual_devices(3), RuntimeError)
    assert "before JAX starts" in message


@pytest.mark.parametrize("value", ["abc", "0", "-2", "2.5", "eight"])
def test_a_wrong_number_in_the_environment(value, monkeypatch):
    from keras_parallel import engines

    monkeypatch.setenv("KERAS_PARALLEL_VIRTUAL_DEVICES", value)
    assert repr(value) in refused(engines.apply_environment)


def test_a_backend_without_an_engine():
    code = (
        "import keras_parallel as kp, keras\n"
        "kp.data_parallel(keras.Sequential([keras.layers.Dense(1)]))"
    )
    assert_told(
        run_python(code, KERAS_BACKEND="numpy"),
        "Received: the Keras backend 'numpy'",
        "`KERAS_BACKEND=jax`",
    )


# The command


def command(*arguments, **environment):
    module = ("-m", "keras_parallel.cli", *arguments)
    return run_python(None, *module, **environment)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: command"),
        (["train", "x.py"], "invalid choice: 'train'"),
        (["run"], "required: script"),
        (["run", "no_such.py"], "'no_such.py', a path of no file"),
        (["devices", "--virtual-devices", "0"], "Received: '0'"),
        (["devices", "--virtual-devices", "abc"], "Received: 'abc'"),
        (["devices", "too", "many"], "unrecognized arguments: too many"),
    ],
)
def test_wrong_commands(arguments, said, capsys):
    try:
        status = cli.main(arguments)
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert said in capsys.readouterr().err


def test_a_wrong_command_is_all_that_is_told(tmp_path):
    """Not which backend would have been used, nor a traceback."""
    done = command("run", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    helpers.assert_teaches(done.stderr)
    assert f"'{tmp_path}', a folder" in done.stderr
    assert f"{tmp_path}/train.py" in done.stderr


def test_a_wrong_environment_of_a_command_is_told_without_a_traceback():
    done = command(
        "devices", KERAS_BACKEND="jax", KERAS_PARALLEL_VIRTUAL_DEVICES="abc"
    )
    assert_told(done, "Received: 'abc'")
    assert "Traceback" not in done.stderr


def test_a_script_with_a_syntax_error_is_shown(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("def broken(:\n    pass\n")
    done = command("run", str(script), KERAS_BACKEND="jax")
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr
    assert f'{script}", line 1' in done.stderr


def test_no_device_at_all():
    done = command("devices", KERAS_BACKEND="jax", JAX_PLATFORMS="cuda")
    assert_told(done, "JAX_PLATFORMS='cuda'", "`JAX_PLATFORMS=cpu`")
    assert "Traceback" not in done.stderr


# The equality check

MODEL = make_model()
OPTIMIZER = models.sgd()
SHARED = layers.Dense(4)


def with_one_optimizer():
    model = make_model()
    model.compile(OPTIMIZER, "mse")
    return model


def with_one_layer():
    model = keras.Sequential([keras.Input((6,)), SHARED, layers.Dense(1)])
    model.compile(models.sgd(), "mse")
    return model


def never_called():
    raise AssertionError("one device has trained")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"make_model": lambda: MODEL}, "shares everything"),
        ({"make_model": with_one_optimizer}, "shares the optimizer"),
        ({"make_model": with_one_layer}, "shares the variable"),
        ({"make_batches": lambda: [X]}, "y=None"),
        ({"make_batches": lambda: (X, Y)}, "y=None"),
        ({"make_batches": lambda: [(X, Y[:3])]}, "y of 3 rows"),
        ({"make_batches": lambda: [(X, Y, None, 1)]}, "tuple of 4"),
        ({"make_batches": lambda: [(X, Y.tolist())]}, "numpy.array(y)"),
        ({"make_batches": lambda: None}, "returned None"),
        ({"make_batches": lambda: iter([])}, "none"),
        ({"devices": 99, "make_model": never_called}, "devices=99"),
        ({"devices": [1, 99], "make_model": never_called}, "devices=99"),
    ],
)
def test_mistakes_in_the_equality_check(arguments, said):
    arguments = {
        "make_model": make_model,
        "make_batches": lambda: [(X, Y)],
        "devices": 2,
        "steps": 2,
    } | arguments
    message = refused(
        lambda: kp.testing.assert_trains_like_one_device(
            arguments.pop("make_model"),
            arguments.pop("make_batches"),
            **arguments,
        ),
        ValueError,
    )
    assert said in message


def test_batches_without_end_are_taken_as_needed(capsys):
    def endless():
        while True:
            yield X, Y

    kp.testing.assert_trains_like_one_device(
        make_model, endless, devices=2, steps=3
    )
    assert "3 steps" in capsys.readouterr().out
