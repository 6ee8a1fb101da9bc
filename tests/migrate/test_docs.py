"""The pages for those who come from elsewhere: each row and block is run."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from keras_parallel.migrate._rewrite import migrate

DOCS = pathlib.Path(__file__).parents[2] / "docs"
KERAS_2 = (DOCS / "from_keras_2.md").read_text()

# What stands above the line of a row.
PRELUDE = """\
import os
import keras
import numpy as np
import tensorflow as tf
from keras import backend as K
from keras.callbacks import EarlyStopping, ModelCheckpoint
from keras.layers import LSTM, Convolution2D, Dense
from keras.models import Model, Sequential
from keras.optimizers import RMSprop, SGD
a = b = keras.Input((3,))
where = Dense(1, name="where")(a)
what = Dense(1, name="what")(a)
heads = Model(a, [where, what])
model = Sequential([Dense(1)])
model.compile("sgd", "mse", metrics=["accuracy"])
history = model.fit(x, y)
adam = keras.optimizers.Adam()
parallel_model = keras.utils.multi_gpu_model(model, gpus=2)
used = os, np, tf.data, K.epsilon
print("here")
"""
MARK = 'print("here")\n'


def rows(heading):
    """The rows of the tables below a heading, as lists of cells."""
    section = KERAS_2.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and not set("".join(cells)) <= set("-"):
            found.append(cells)
    header = found[0]
    return [cells for cells in found if cells[-1] != header[-1]]


def code(cell):
    return "\n".join(re.findall("`([^`]+)`", cell))


WRITTEN = [
    (code(before), code(after))
    for _, before, after in rows("What is written for you")
]
LEFT = [(code(before), note) for before, note in rows("What is left to you")]


def migrate_row(before):
    if before.startswith(("from ", "import ")):
        done = migrate(before + "\n")
        return done.text.strip(), done.notes
    done = migrate(PRELUDE + before + "\n")
    again = migrate(done.text)
    assert again.text == done.text
    return done.text.split(MARK)[1].strip(), done.notes


def test_the_tables_are_read():
    assert len(WRITTEN) > 60
    assert len(LEFT) > 20


@pytest.mark.parametrize(("before", "after"), WRITTEN)
def test_a_row_of_what_is_written(before, after):
    text, notes = migrate_row(before)
    assert text == after
    assert notes == []


@pytest.mark.parametrize(("before", "note"), LEFT)
def test_a_row_of_what_is_left(before, note):
    _, notes = migrate_row(before)
    assert [n for n in notes if note in n.text], notes


SETUP = """\
import keras_parallel as kp
import keras
import numpy as np

x, y = np.ones((48, 3), "float32"), np.ones((48, 1), "float32")


def build_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


dataset = [(x[:8], y[:8]), (x[:5], y[:5])]
half = build_model()
half.compile("adam", "mse")
half.save("half_trained.keras")
"""
KERAS_2_SETUP = """
images, labels = x, y
noise, misleading = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
discriminator = build_model()
parallel_discriminator = kp.multi_gpu_model(discriminator, 2)
parallel_discriminator.compile("sgd", "mse")
discriminator.trainable = False
inputs = keras.Input((2,))
combined = keras.Model(inputs, discriminator(generator(inputs)))
parallel_combined = kp.multi_gpu_model(combined, 2)
parallel_combined.compile("sgd", "mse")
parallel_model = kp.multi_gpu_model(build_model(), 2)
parallel_model.compile("sgd", "mse")
batches = x.reshape(6, 8, 3)
before = discriminator.get_weights()
"""
KERAS_2_CHECK = """
assert any((a != b).any() for a, b in zip(before, discriminator.get_weights()))
"""


@pytest.mark.parametrize(
    ("page", "before", "after"),
    [
        ("from_keras_2", KERAS_2_SETUP, KERAS_2_CHECK),
        pytest.param("from_keras_distribution", "", "", marks=pytest.mark.full),
        ("from_mirrored_strategy", "", ""),
    ],
)
def test_the_code_of_a_page_runs(page, before, after, tmp_path):
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    assert blocks
    script = tmp_path / "page.py"
    script.write_text("\n".join([SETUP, before, *blocks, after]))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "KERAS_PARALLEL_VIRTUAL_DEVICES": "2",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
