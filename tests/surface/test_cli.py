"""The command line, as people start it."""

import json
import os
import subprocess
import sys

import pytest


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "keras_parallel.cli", *arguments],
        env={**os.environ, "KERAS_BACKEND": "jax", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_devices():
    done = command("devices", "--virtual-devices", "2")
    assert done.stdout.splitlines() == [
        "gpu:0 (virtual)",
        "gpu:1 (virtual)",
        "cpu:0 (virtual)",
    ]


def test_env_names_versions():
    done = command("env")
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert rows["backend"] == "jax"
    assert {"keras-parallel", "python", "keras", "jax", "devices"} <= set(rows)


def test_run_passes_arguments_and_devices_to_the_script(tmp_path):
    (tmp_path / "beside.py").write_text("VALUE = 7")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, beside, keras\n"
        "import keras_parallel as kp\n"
        "assert __name__ == '__main__'\n"
        "print(sys.argv[1:], beside.VALUE, len(kp.list_devices('gpu')))\n"
    )
    done = command(
        "run", "--virtual-devices", "3", str(script), "--flag", "-x", "1"
    )
    assert done.stdout.strip() == "['--flag', '-x', '1'] 7 3", done.stderr


def test_run_keeps_the_exit_status_and_the_traceback(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(5)")
    assert command("run", str(script)).returncode == 5
    script.write_text("def broken():\n    raise KeyError('here')\nbroken()")
    done = command("run", str(script))
    assert done.returncode == 1
    assert "KeyError: 'here'" in done.stderr


def test_mistakes_are_told():
    done = command("run", "no_such_script.py")
    assert done.returncode == 2
    assert "no_such_script.py" in done.stderr
    assert command("devices", "--virtual-devices", "0").returncode == 2
    assert command().returncode == 2
    done = command("devices", KERAS_BACKEND="numpy")
    assert done.returncode == 2
    assert "Received: the Keras backend 'numpy'" in done.stderr


SCRIPT = """
import sys
import keras
import numpy as np

x, y = np.ones((64, 3), "float32"), np.ones((64, 1), "float32")
model = keras.Sequential([keras.layers.Dense(1)])  # built by its first `fit`
model.compile("sgd", "mse")
try:
    model.fit(x, y, batch_size=16, verbose=0, validation_data=(x, y))
except Exception:
    pass
print("after the first fit")
"""


def test_check_checks_the_first_fit_of_a_script(tmp_path):
    script, report = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(SCRIPT)
    done = command(
        *("check", "--virtual-devices", "2", "--json", str(report)),
        *(str(script), "--flag"),
    )
    assert done.returncode == 0, done.stderr
    assert "Check of 'sequential' on 2 virtual devices" in done.stdout
    assert "`validation_data` was left out." in done.stdout
    assert "after the first fit" not in done.stdout
    found = json.loads(report.read_text())
    assert found["ok"] is True and found["batch_size"] == 16


def test_check_of_a_parallel_model_that_differs(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import keras_parallel as kp\n"
        "kp.use_virtual_devices(2)\n"
        "from keras_parallel.engines.jax import _replicas\n"
        "place = _replicas.JaxReplicas.place_batch\n"
        "_replicas.JaxReplicas.place_batch = lambda self, b: place(\n"
        "    self, (b[0] * 1.5, *b[1:]))\n"
        + SCRIPT.replace("model.fit", "kp.data_parallel(model).fit")
    )
    done = command("check", str(script))
    assert done.returncode == 1, done.stderr
    assert "Equal to one device: NO" in done.stdout


def test_check_of_a_script_that_trains_nothing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('nothing')")
    done = command("check", str(script))
    assert done.returncode == 2
    assert "ended without one" in done.stderr
    script.write_text("def broken():\n    raise KeyError('here')\nbroken()")
    done = command("check", str(script))
    assert done.returncode == 2
    assert "KeyError: 'here'" in done.stderr
    done = command("check", "--json", "no/such/folder.json", str(script))
    assert done.returncode == 2
    assert "`--json report.json`" in done.stderr
    done = command("check", "no_such_script.py")
    assert done.returncode == 2
    assert "`keras-parallel check train.py`" in done.stderr


MODEL = """
import keras, numpy as np, sys, threading
x, y = np.ones((64, 3), "float32"), np.ones((64, 1), "float32")

def compiled(model):
    model.compile("adam", "mse")
    return model

def make():
    return compiled(
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
"""

SAVES = """
model = make()
before = model.get_weights()
try:
    model.fit(x, y, batch_size=16, epochs=3)
finally:
    assert all(map(np.array_equal, before, model.get_weights()))
    assert not model.optimizer.built
    print("unchanged")
    raise KeyError("after the check")
"""

CATCHES = """
while True:
    try:
        make().fit(x, y, batch_size=16, verbose=0)
        print("trained")
    except:
        print("went on")
"""

THREADS = """
def train():
    make().fit(x, y, batch_size=16, verbose=0)
    print("trained")

for _ in range(2):
    threading.Thread(target=train).start()
"""

OWN_FIT = """
class Own(keras.Sequential):
    def fit(self, x, y):
        self.train_on_batch(x, y)
        print("trained")

compiled(Own([keras.layers.Dense(1)])).fit(x, y)
"""


@pytest.mark.parametrize(
    ("script", "status", "out", "error"),
    [
        (SAVES, 0, "unchanged", None),
        (CATCHES, 0, "went on", "went on after the check"),
        (THREADS, 0, "", None),
        (OWN_FIT, 2, None, "Own, whose own `fit` trains by"),
        ("make().fit(x[:0], y[:0])", 2, None, "at least one row"),
    ],
)
def test_check_ends_a_script_in_any_case(tmp_path, script, status, out, error):
    path = tmp_path / "train.py"
    path.write_text(MODEL + script)
    done = command("check", "--virtual-devices", "2", str(path))
    assert done.returncode == status, done.stderr
    assert done.stdout.count("Check of") == (out is not None)
    assert done.stdout.rstrip().endswith(out or "")
    assert "trained" not in done.stdout.replace("not trained", "")
    if error is None:
        assert "Traceback" not in done.stderr
        assert "ended without one" not in done.stderr
    else:
        assert error in done.stderr


def test_check_shows_how_a_script_ended_itself(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys\nsys.exit('bad config')")
    done = command("check", str(script))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "bad config"
    script.write_text(
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--lr', required=True)\n"
        "parser.parse_args()\n"
    )
    done = command("check", str(script))
    assert done.returncode == 2
    assert "required: --lr" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_check_finds_a_report_that_cannot_be_written_before(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('ran')")
    for path in (tmp_path, tmp_path / "no" / "folder.json"):
        done = command("check", "--json", str(path), str(script))
        assert done.returncode == 2
        assert "`--json` takes the path of a file" in done.stderr
        assert "ran" not in done.stdout
