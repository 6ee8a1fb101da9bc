"""The code of the how-to on data runs as it stands there."""

import os
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "how-to" / "data.md"

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
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    scripts = [block for block in code if "__main__" in block]
    # TensorFlow takes a choice of devices before its first tensor only.
    rest = sorted(
        (block for block in code if block not in scripts),
        key=lambda block: "set_visible_devices" not in block,
    )
    assert len(scripts) == 1 and len(rest) == 4
    for text in (*scripts, BEFORE + "\n".join(rest)):
        path = tmp_path / "script.py"
        path.write_text(text)
        done = subprocess.run(
            [
                *(sys.executable, "-W", "error", "-m", "keras_parallel.cli"),
                *("run", "--virtual-devices", "2", path),
            ],
            capture_output=True,
            text=True,
            timeout=200,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        assert done.returncode == 0, done.stderr
        assert "data parallel on 2 devices" in done.stderr
