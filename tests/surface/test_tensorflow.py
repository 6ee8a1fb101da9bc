"""A TensorFlow that only feeds data takes no GPU, and is not imported by us."""

import json
import os
import subprocess
import sys

import pytest

# A TensorFlow with two GPUs, as far as the choice of devices goes.
FAKE = """
class config:
    visible = {"GPU": ["gpu 0", "gpu 1"], "TPU": []}
    started = False
    calls = []

    def list_physical_devices(kind):
        return {"GPU": ["gpu 0", "gpu 1"], "TPU": []}[kind]

    def get_visible_devices(kind):
        return config.visible[kind]

    def set_visible_devices(devices, kind):
        if config.started:
            raise RuntimeError("cannot be modified after being initialized")
        config.calls.append(kind)
        config.visible[kind] = devices

def result():
    print(config.visible["GPU"], config.calls)
"""

OTHER_HOOK = """
import importlib.util, sys
class Other:
    asked = 0
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "tensorflow" and not cls.asked:
            cls.asked += 1
            return importlib.util.find_spec(name)
sys.meta_path.insert(0, Other)
"""

HIDDEN = "[] ['GPU']"
UNTOUCHED = "['gpu 0', 'gpu 1'] []"

# How it is imported, the environment, and what becomes of its GPUs.
CASES = {
    "after keras_parallel": (
        "import keras_parallel; import tensorflow as tf",
        {"KERAS_BACKEND": "jax"},
        HIDDEN,
    ),
    "before keras_parallel": (
        "import tensorflow as tf; import keras_parallel",
        {"KERAS_BACKEND": "jax"},
        HIDDEN,
    ),
    "a part of it first": (
        "import keras_parallel, tensorflow.part; import tensorflow as tf",
        {"KERAS_BACKEND": "jax"},
        HIDDEN,
    ),
    "looked for first": (
        "import keras_parallel, importlib.util as u; u.find_spec('tensorflow')"
        "; import tensorflow as tf",
        {"KERAS_BACKEND": "jax"},
        HIDDEN,
    ),
    "keras_parallel imported again": (
        "import importlib, keras_parallel; importlib.reload(keras_parallel)\n"
        "import tensorflow as tf",
        {"KERAS_BACKEND": "jax"},
        HIDDEN,
    ),
    "beside another hook that asks all finders": (
        OTHER_HOOK + "import keras_parallel; import tensorflow as tf\n"
        "assert Other.asked",
        {"KERAS_BACKEND": "jax"},
        HIDDEN,
    ),
    "a backend that nobody chose": (
        "import keras_parallel; import tensorflow as tf",
        {"KERAS_HOME": "/nonexistent"},
        HIDDEN,
    ),
    "chosen before": (
        "import tensorflow as tf\n"
        "tf.config.set_visible_devices(['gpu 1'], 'GPU')\n"
        "import keras_parallel",
        {"KERAS_BACKEND": "jax"},
        "['gpu 1'] ['GPU']",
    ),
    "chosen after": (
        "import keras_parallel; import tensorflow as tf\n"
        "tf.config.set_visible_devices(['gpu 1'], 'GPU')\n"
        "import tensorflow as tf",
        {"KERAS_BACKEND": "jax"},
        "['gpu 1'] ['GPU', 'GPU']",
    ),
    "started before": (
        "import tensorflow as tf; tf.config.started = True\n"
        "import keras_parallel",
        {"KERAS_BACKEND": "jax"},
        UNTOUCHED,
    ),
    "it is the backend": (
        "import keras_parallel; import tensorflow as tf",
        {"KERAS_BACKEND": "tensorflow"},
        UNTOUCHED,
    ),
    "it becomes the backend": (
        "import keras_parallel, os\n"
        "os.environ['KERAS_BACKEND'] = 'tensorflow'\n"
        "import tensorflow as tf",
        {"KERAS_BACKEND": "jax"},
        UNTOUCHED,
    ),
    "another backend without an engine": (
        "import keras_parallel; import tensorflow as tf",
        {"KERAS_BACKEND": "numpy"},
        UNTOUCHED,
    ),
}


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def fake(tmp_path):
    package = tmp_path / "tensorflow"
    package.mkdir()
    (package / "__init__.py").write_text(FAKE)
    (package / "part.py").write_text("")
    return str(tmp_path)


@pytest.mark.parametrize("case", list(CASES))
def test_its_gpus_are_hidden_where_it_only_feeds(case, fake):
    code, environment, expected = CASES[case]
    done = run(f"{code}\ntf.result()", PYTHONPATH=fake, **environment)
    assert done.stdout.strip() == expected
    warned = "TensorFlow had started before keras_parallel" in done.stderr
    assert warned is (case == "started before")
    if warned:
        assert "holds memory on 2 devices" in done.stderr
        assert 'tf.config.set_visible_devices([], "GPU")' in done.stderr


def test_a_choice_in_the_file_of_keras_is_seen(fake, tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "tensorflow"}')
    code = "import keras_parallel; import tensorflow as tf; tf.result()"
    home = {"KERAS_HOME": str(tmp_path), "PYTHONPATH": fake}
    assert run(code, **home).stdout.strip() == UNTOUCHED


def test_the_real_one_is_not_started_by_that_and_works():
    code = """
import keras_parallel, tensorflow as tf
assert tf.config.get_visible_devices("GPU") == []
# TensorFlow refuses this once it has started.
cpu, = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
print(list(tf.data.Dataset.range(3).as_numpy_iterator()) == [0, 1, 2])
print(len(tf.config.list_logical_devices("CPU")))
"""
    assert run(code, KERAS_BACKEND="jax").stdout.split() == ["True", "2"]


def test_training_on_arrays_imports_neither_tensorflow_nor_torch():
    code = """
import sys, json
import keras_parallel as kp
kp.use_virtual_devices(2)
import keras, numpy as np
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
parallel = kp.data_parallel(model)
x, y = np.ones((5, 2)), np.ones((5, 1))
parallel.fit(x, y, verbose=0, validation_data=(x, y))
parallel.evaluate(x, y, verbose=0)
parallel.predict(x, verbose=0)

class Ones(keras.utils.PyDataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return x, y

parallel.fit(Ones(workers=2), verbose=0)
print(json.dumps([m for m in ("tensorflow", "torch") if m in sys.modules]))
"""
    assert json.loads(run(code, KERAS_BACKEND="jax").stdout) == []


@pytest.mark.parametrize(
    "code",
    [
        "sys.modules['tensorflow'] = types.ModuleType('tensorflow')\n"
        "import keras_parallel, tensorflow",
        "sys.modules['tensorflow'] = None\n"
        "import keras_parallel\n"
        "try: import tensorflow\n"
        "except ImportError: pass",
        "spec = importlib.util.find_spec('tensorflow')\n"
        "spec.loader = importlib.util.LazyLoader(spec.loader)\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules['tensorflow'] = module\n"
        "spec.loader.exec_module(module)\n"
        "import keras_parallel\n"
        "assert 'tensorflow.python' not in sys.modules",
    ],
    ids=["another module of that name", "forbidden", "lazily declared"],
)
def test_what_is_not_tensorflow_yet_is_left_alone(code):
    done = subprocess.run(
        [sys.executable, "-c", f"import importlib.util, sys, types\n{code}"],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
