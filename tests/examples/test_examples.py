"""Every example runs, as its first lines say."""

import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

import keras_parallel as kp

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def run(script, *arguments, devices=8, cwd=None):
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "keras_parallel.cli", "run"),
            *("--virtual-devices", str(devices)),
            str(EXAMPLES / script),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    return done


def test_classic_data_parallel():
    done = run("classic/1_data_parallel.py")
    assert "accuracy of the model that was passed in: 1.000" in done.stdout
    assert "batches of 256 rows: 32 rows each" in done.stderr


def test_classic_data_parallel_with_too_few_devices():
    with pytest.raises(AssertionError, match="Expected 8 GPUs"):
        run("classic/1_data_parallel.py", devices=2)


def test_classic_named_outputs():
    done = run("classic/3_named_outputs.py")
    assert "outputs: ['main_output', 'aux_output']" in done.stdout
    assert "main_output_jaccard_distance_loss" in done.stdout


def test_classic_device_parallel():
    done = run("classic/2_device_parallel.py", devices=2)
    assert "probability of a pair of equal ones: 0." in done.stdout


def test_two_towers(tmp_path):
    options = ("--pairs", "512", "--epochs", "5", "--plot", "trace.png")
    done = run("two_towers.py", *options, devices=2, cwd=tmp_path)
    (line,) = re.findall(r"were not trained on: (.*)", done.stdout)
    assert float(line) >= 0.95
    (line,) = re.findall(r"accuracy of one device: ([\d.]*)", done.stdout)
    assert float(line) >= 0.95
    assert "Plan of 'two_towers' on 3 virtual devices" in done.stdout
    for device in ("gpu:0", "gpu:1", "cpu:0"):
        assert re.search(rf"^{device} .*ms", done.stdout, re.MULTILINE)
    assert (tmp_path / "trace.png").stat().st_size > 5000
    assert (tmp_path / "two_towers.json").exists()


@pytest.mark.filterwarnings("ignore:.*calls in device scopes")
def test_two_towers_train_as_on_one_device():
    script = runpy.run_path(str(EXAMPLES / "two_towers.py"))
    kp.testing.assert_trains_like_one_device(
        lambda: script["compiled"](script["make_model"]()),
        lambda: [script["pairs"](rows, seed=rows) for rows in (16, 16, 7)],
        devices="all",
        steps=3,
        parallelize=lambda model, _: kp.device_parallel(model),
    )


def test_classic_scripts_hold_the_lines_of_the_how_to():
    first = (EXAMPLES / "classic/1_data_parallel.py").read_text()
    second = (EXAMPLES / "classic/2_device_parallel.py").read_text()
    for line in (
        'with device_scope("/gpu:0"):\n    encoded_a = shared_lstm(input_a)',
        'with device_scope("/gpu:1"):\n    encoded_b = shared_lstm(input_b)',
        'with device_scope("/cpu:0"):\n    merged = keras.layers.concatenate('
        "[encoded_a, encoded_b], axis=-1)",
    ):
        assert line in second
    third = (EXAMPLES / "classic/3_named_outputs.py").read_text()
    for line in (
        "parallel_model = multi_gpu_model(model, gpus=8)",
        'parallel_model.compile(loss="categorical_crossentropy", '
        'optimizer="rmsprop")',
        "parallel_model.fit(x, y, epochs=20, batch_size=256)",
    ):
        assert line in first
    for line in (
        "optimizer=RMSprop(learning_rate=0.045, rho=0.9, epsilon=1.0)",
        'loss={"main_output": jaccard_distance_loss, '
        '"aux_output": "binary_crossentropy"}',
        'metrics={"main_output": jaccard_distance_loss, "aux_output": "acc"}',
        'loss_weights={"main_output": 1.0, "aux_output": 0.5}',
    ):
        assert line in third


def test_digits(tmp_path):
    done = run("digits.py", cwd=tmp_path)
    assert (tmp_path / "digits.keras").exists()
    assert "largest difference to one device:" in done.stdout
