"""The public names, and what importing costs. A new name breaks these."""

import inspect
import json
import os
import subprocess
import sys

import pytest

import keras_parallel
from keras_parallel import cli


def run_python(code, **environment):
    """Runs `code` in a new process and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_public_names():
    assert keras_parallel.__all__ == [
        "AlternatingTrainer",
        "Phase",
        "check",
        "data_parallel",
        "device_parallel",
        "device_scope",
        "list_devices",
        "multi_gpu_model",
        "plan",
        "testing",
        "trace",
        "use_virtual_devices",
    ]
    for name in keras_parallel.__all__:
        assert getattr(keras_parallel, name).__doc__
    assert set(keras_parallel.__all__) == {
        *keras_parallel._PUBLIC,
        *keras_parallel._PUBLIC_MODULES,
    }
    with pytest.raises(AttributeError, match="Did you mean 'data_parallel'"):
        _ = keras_parallel.data_paralel


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        (
            "check",
            [
                *("model", "x", "y"),
                *("sample_weight", "batch_size", "steps", "callbacks"),
            ],
        ),
        ("data_parallel", ["model", "devices", "shard_optimizer"]),
        (
            "multi_gpu_model",
            ["model", "gpus", "cpu_merge", "cpu_relocation"],
        ),
        ("list_devices", ["device_type"]),
        ("plan", ["model", "batch_size"]),
        ("trace", ["path"]),
        ("use_virtual_devices", ["n"]),
    ],
)
def test_signatures(name, parameters):
    signature = inspect.signature(getattr(keras_parallel, name))
    assert list(signature.parameters) == parameters


def test_options_of_the_command_line():
    actions = {
        name: sorted(
            option
            for action in sub._actions
            for option in action.option_strings or [action.dest]
        )
        for name, sub in cli._parser()
        ._subparsers._group_actions[0]
        .choices.items()
    }
    common = ["--help", "--virtual-devices", "-h"]
    assert actions == {
        "devices": common,
        "run": [*common, "args", "script"],
        "check": [*common[:1], "--json", *common[1:], "args", "script"],
        "migrate": ["--help", "--write", "-h", "scripts"],
        "env": common,
    }


def test_public_docstrings_are_complete():
    names = ("check", "data_parallel", "multi_gpu_model", "plan", "trace")
    for name in names:
        text = getattr(keras_parallel, name).__doc__
        for section in ("Args:", "Returns:", "Raises:"):
            assert section in text


def test_importing_loads_neither_keras_nor_a_backend():
    code = (
        "import sys, keras_parallel, json;"
        "print(json.dumps([m for m in ('keras', 'jax', 'tensorflow', 'torch',"
        " 'numpy') if m in sys.modules]))"
    )
    assert json.loads(run_python(code, KERAS_BACKEND="jax")) == []


def test_importing_keras_parallel_first_picks_an_installed_backend(tmp_path):
    code = "import keras_parallel, keras; print(keras.config.backend())"
    assert run_python(code, HOME=str(tmp_path)).strip() == "jax"


def test_an_explicit_backend_is_never_overridden(tmp_path):
    code = "import keras_parallel, os; print(os.environ.get('KERAS_BACKEND'))"
    assert run_python(code, KERAS_BACKEND="numpy").strip() == "numpy"
    settings = tmp_path / "keras.json"
    settings.write_text('{"backend": "numpy"}')
    assert run_python(code, KERAS_HOME=str(tmp_path)).strip() == "None"
    settings.write_text('{"backend": "tensorflow"}')
    assert run_python(code, KERAS_HOME=str(tmp_path)).strip() == "None"


def test_the_file_that_keras_writes_by_itself_is_no_choice(tmp_path):
    for code in (
        "import keras; print(keras.config.backend())",
        "import keras_parallel, keras; print(keras.config.backend())",
    ):
        last = run_python(
            code, KERAS_HOME=str(tmp_path), TF_CPP_MIN_LOG_LEVEL="3"
        )
    assert (tmp_path / "keras.json").exists()
    assert last.strip() == "jax"


def test_a_tensorflow_that_is_not_installed_is_no_choice(tmp_path):
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'tensorflow' else "
        "find(n, *a)\n"
        "import keras_parallel, os; print(os.environ.get('KERAS_BACKEND'))"
    )
    (tmp_path / "keras.json").write_text('{"backend": "tensorflow"}')
    assert run_python(code, KERAS_HOME=str(tmp_path)).strip() == "jax"


def test_a_backend_without_an_engine_is_an_error_that_says_so():
    """J22: a clear message, not an AttributeError."""
    code = (
        "import keras_parallel as kp\n"
        "try: kp.list_devices()\n"
        "except RuntimeError as error: print(error)"
    )
    message = run_python(code, KERAS_BACKEND="numpy")
    assert "Received: the Keras backend 'numpy'" in message
    assert "KERAS_BACKEND=jax" in message


def test_virtual_devices_from_the_environment():
    code = "import keras_parallel as kp; print(kp.list_devices('gpu'))"
    printed = run_python(
        code, KERAS_BACKEND="jax", KERAS_PARALLEL_VIRTUAL_DEVICES="2"
    )
    assert printed.strip() == "['gpu:0' (virtual), 'gpu:1' (virtual)]"


@pytest.mark.parametrize("n", [0, -1, True, 2.0, "2", None])
def test_a_bad_number_of_virtual_devices_is_refused(n):
    with pytest.raises(ValueError, match=r"Received: n="):
        keras_parallel.use_virtual_devices(n)


def test_virtual_devices_called_too_late():
    keras_parallel.list_devices()  # Starts JAX.
    with pytest.raises(RuntimeError) as caught:
        keras_parallel.use_virtual_devices(3)
    message = str(caught.value)
    assert "restart the kernel" in message
    assert "use_virtual_devices(3)" in message


def test_the_devices_of_a_host_without_any_accelerator():
    code = "import keras_parallel as kp; print(kp.list_devices())"
    assert run_python(code, KERAS_BACKEND="jax").strip() == "['cpu:0']"


def test_one_device_is_enough_for_the_classic_call():
    """G38: CPU devices are accepted."""
    code = """
import keras_parallel as kp, keras, numpy as np
model = keras.Sequential([keras.layers.Dense(1)])
for gpus in (None, 1):
    parallel = kp.multi_gpu_model(model, gpus)
    parallel.compile("sgd", "mse")
    parallel.fit(np.ones((5, 2)), np.ones((5, 1)), verbose=0)
    print(parallel.predict(np.ones((5, 2)), verbose=0).shape)
"""
    assert run_python(code, KERAS_BACKEND="jax").split() == ["(5,", "1)"] * 2


def test_too_few_gpus_for_the_classic_call():
    """G37, G38: what was expected, what is there, and what to do."""
    code = """
import keras_parallel as kp, keras
model = keras.Sequential([keras.layers.Dense(1)])
try: kp.multi_gpu_model(model, gpus=8)
except ValueError as error: print(error)
"""
    message = run_python(code, KERAS_BACKEND="jax")
    assert "Expected 8 GPUs, but this host has 1 of kind 'cpu'" in message
    assert "['cpu:0']" in message
    assert "--virtual-devices 8" in message
