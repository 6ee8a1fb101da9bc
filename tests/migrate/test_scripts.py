"""Scripts in the style of the Keras 2 examples: migrated, then run."""

import ast
import io
import os
import pathlib
import subprocess
import sys
import tokenize

import pytest

from keras_parallel.migrate._rewrite import migrate

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
ALL = sorted(path.name for path in SCRIPTS.glob("*.py"))
FULL = pytest.mark.full

# Line and words of each note. Scripts that are not here have none.
NOTES = {
    "device_scopes.py": [
        (11, "`tf.device('/gpu:0')`: no effect on JAX"),
        (14, "`tf.device('/gpu:1')`: no effect on JAX"),
        (17, "`tf.device('/cpu:0')`: no effect on JAX"),
    ],
    "gan.py": [(37, "`discriminator.trainable = False` after")],
    "gone.py": [
        (4, "`from keras.layers import *`"),
        (6, "ImageDataGenerator`: gone"),
        (7, "Tokenizer`: gone"),
        (10, "`tf.Session`: TensorFlow"),
        (11, "`set_session(...)`"),
        (12, "`K.set_learning_phase`: gone"),
        (13, "`tf.distribute.MirroredStrategy`"),
        (14, "`Dense(weights=...)`"),
        (15, "`compile(sample_weight_mode=...)`"),
        (16, "`predict_classes(...)`"),
        (17, "`K.concatenate` is passed on"),
        (18, "`merge(...)`: gone"),
    ],
    "sequence_generator.py": [(29, "`workers=4` is removed")],
    "session_config.py": [(16, "`allow_growth` is removed")],
    "stateful.py": [(26, "`model.reset_states()`: gone")],
}

# What a person writes for the notes above.
BY_HAND = {
    "gan.py": [
        (
            "    d_loss = parallel",
            "    discriminator.trainable = True\n    d_loss = parallel",
        ),
        (
            "    g_loss = parallel",
            "    discriminator.trainable = False\n    g_loss = parallel",
        ),
    ],
    "stateful.py": [
        (
            "    model.reset_states()",
            "    for layer in model.layers:\n"
            '        if getattr(layer, "stateful", False):\n'
            "            layer.reset_state()",
        )
    ],
}

# Script -> devices, and what it prints at the end.
EXPECTED = [
    ("mlp.py", 2, "learned: True epochs: 6"),
    pytest.param(
        "siamese.py",
        2,
        "logged: ['accuracy', 'loss']\nlearned: True",
        marks=FULL,
    ),
    pytest.param(
        "lstm.py",
        2,
        "falls: True\nlogged: ['acc', 'loss', 'val_acc', 'val_loss']\n(7, 1)",
        marks=FULL,
    ),
    pytest.param(
        "two_outputs.py",
        2,
        "logged: ['aux_output_acc', 'aux_output_loss', 'loss', "
        "'main_output_loss']\nfalls: True",
        marks=FULL,
    ),
    ("gan.py", 2, "the discriminator learned: True"),
    pytest.param(
        "class_generator.py",
        2,
        "steps: 16\nepochs: 4 rows: 64\ntemplate: True",
        marks=FULL,
    ),
    pytest.param(
        "transfer.py",
        2,
        "frozen first: True\nthen trained: True True",
        marks=FULL,
    ),
    (
        "callbacks.py",
        2,
        "acc and val_acc: 5 5\nthe file is the model: True\nfiles: 9",
    ),
    (
        "detector.py",
        2,
        "logged: ['box_loss', 'loss', 'what_acc', 'what_loss', 'where_loss']",
    ),
    pytest.param("stateful.py", 2, "rows: (64, 1)", marks=FULL),
    pytest.param("cnn.py", 4, "learned: True", marks=FULL),
    pytest.param(
        "autoencoder.py",
        2,
        "(120, 8, 8, 1)\nfalls by a tenth: True",
        marks=FULL,
    ),
    pytest.param(
        "sequence_generator.py",
        2,
        "rows: (33, 1)\nsame loss: True",
        marks=FULL,
    ),
    pytest.param("text_cnn.py", 2, "falls: True\nkeras: keras", marks=FULL),
    pytest.param("resnet.py", 2, "rate: 1.0e-04", marks=FULL),
    pytest.param("session_config.py", 2, "rows: 30 [0]", marks=FULL),
    pytest.param("device_scopes.py", 2, "falls: True", marks=FULL),
    pytest.param("xception.py", 8, "steps: 1", marks=FULL),
]


def migrated(script):
    return migrate((SCRIPTS / script).read_text())


def run(text, devices, folder):
    script = folder / "script.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "KERAS_PARALLEL_VIRTUAL_DEVICES": str(devices),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("script", "devices", "printed"),
    EXPECTED,
    ids=[getattr(case, "values", case)[0] for case in EXPECTED],
)
def test_a_migrated_script_runs(script, devices, printed, tmp_path):
    text = migrated(script).text
    for before, after in BY_HAND.get(script, []):
        assert before in text
        text = text.replace(before, after)
    done = run(text, devices, tmp_path)
    # Keras draws its progress bars there as well.
    lines = [
        line for line in done.stdout.splitlines() if line and "\x1b" not in line
    ]
    assert "\n".join(lines).endswith(printed)
    if script != "device_scopes.py":
        assert "data parallel on" in done.stderr


@pytest.mark.full
def test_a_gan_that_is_left_as_it_was_does_not_learn(tmp_path):
    """The reason for its note."""
    done = run(migrated("gan.py").text, 2, tmp_path)
    assert "the discriminator learned: False" in done.stdout


@pytest.mark.parametrize("script", ALL)
def test_notes_and_a_second_time(script):
    first = migrated(script)
    expected = NOTES.get(script, [])
    assert [note.line for note in first.notes] == [n for n, _ in expected]
    for note, (_, words) in zip(first.notes, expected):
        assert words in note.text
    second = migrate(first.text)
    assert second.text == first.text


def test_no_note_stays_where_its_advice_was_followed():
    text = migrated("gan.py").text
    for before, after in BY_HAND["gan.py"]:
        text = text.replace(before, after)
    assert migrate(text).notes == []


@pytest.mark.parametrize("script", ALL)
def test_comments_stay(script):
    before = (SCRIPTS / script).read_text()
    after = migrated(script).text
    assert comments(before) == comments(after)


def comments(text):
    return [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]


@pytest.mark.parametrize("script", ALL)
def test_keras_parallel_is_imported_before_keras(script):
    """It picks the backend, which Keras does when it is imported."""
    names = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.parse(migrated(script).text).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    firsts = [name.split(".")[0] for name in names]
    if "keras_parallel" in firsts:
        assert firsts.index("keras_parallel") < firsts.index("keras")
    assert "multi_gpu_model" not in names


def test_there_are_enough_scripts():
    tried = {getattr(case, "values", case)[0] for case in EXPECTED}
    assert tried | {"gone.py"} == set(ALL)
    assert len(tried) >= 15
