"""The code of pages runs as it stands there."""

import os
import pathlib
import re
import subprocess
import sys

import keras

HOW_TO = pathlib.Path(__file__).parents[2] / "docs" / "how-to"

# Keras's own, where it writes a variable.
KERAS_SAVES = "ignore:__array__ implementation:DeprecationWarning"

BEFORE = """
import keras
import numpy as np
import keras_parallel as kp

x, y = np.ones((100, 16), "float32"), np.ones((100, 1), "float32")
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
parallel = kp.data_parallel(model)
"""


def test_code_of_the_page_on_data(tmp_path):
    code = code_of("data.md")
    scripts = [block for block in code if "__main__" in block]
    # TensorFlow takes a choice of devices before its first tensor only.
    rest = sorted(
        (block for block in code if block not in scripts),
        key=lambda block: "set_visible_devices" not in block,
    )
    assert len(scripts) == 1 and len(rest) == 4
    for text in (*scripts, BEFORE + "\n".join(rest)):
        errors = run(text, tmp_path).stderr
        assert "data parallel on 2 devices" in errors


def test_code_of_the_page_on_alternating_training(tmp_path):
    code = "\n".join(code_of("alternating.md"))
    errors = run(code, tmp_path).stderr
    assert "data parallel on 2 devices" in errors
    assert keras.saving.load_model(tmp_path / "both.keras").count_params()


def test_ways_to_name_a_device(tmp_path):
    """P07 of the reports of users: which of them chooses what."""
    page = (HOW_TO / "device-parallel.md").read_text()
    section = page.partition("### Other ways")[2].partition("\n## ")[0]
    done = run("\n".join(blocks(section)), tmp_path)
    (printed,) = blocks(section, "text")
    assert done.stdout == printed


def code_of(page):
    return blocks((HOW_TO / page).read_text())


def blocks(text, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run(code, folder):
    """Runs `code` on two virtual devices."""
    path = folder / "script.py"
    path.write_text(code)
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-W", KERAS_SAVES),
            *("-m", "keras_parallel.cli"),
            *("run", "--virtual-devices", "2", path),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr
    return done
