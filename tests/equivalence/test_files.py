"""Saved on some devices, resumed on others, equal to a run that never stopped.

G07 to G16, F08, H10, H11: whole models, weights, and the callbacks that write
them. T29: a file is replaced when the new one is whole.
"""

import functools
import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from tests import helpers
from tests import models
from tests import selection

EPOCHS, STOPPED = 4, 2
X, Y = models.regression(29, np.random.default_rng(0))
FIT = {"batch_size": 8, "shuffle": False, "verbose": 0}
DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGE = DOCS / "how-to" / "save-and-resume.md"
PLAIN = 0  # Instead of a number of devices: a model of plain Keras.


def make_model(dropout=0.3):
    inputs = keras.Input((6,))
    shared = layers.Dense(6, "tanh", name="shared")
    hidden = layers.BatchNormalization()(shared(shared(inputs)))
    hidden = layers.Dropout(dropout)(hidden)
    model = keras.Model(inputs, layers.Dense(1, name="score")(hidden))
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 3, 0.8)
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def on(devices, model):
    return model if devices == PLAIN else kp.data_parallel(model, devices)


def new_model(dropout=0.3, seed=0):
    return helpers.seeded(lambda: make_model(dropout), seed)


def other_model(dropout):
    """With other weights and another random state, and slots to load into."""
    model = new_model(dropout, seed=7)
    model.optimizer.build(model.trainable_variables)
    return model


@functools.cache
def straight_run(dropout=0.3):
    model = new_model(dropout)
    model.fit(X, Y, epochs=EPOCHS, **FIT)
    return state_of(model)


def state_of(model):
    """Weights, random state, slots and the position in the schedule."""
    return helpers.state_of(model)


def resume(model, **options):
    model.fit(X, Y, epochs=EPOCHS, initial_epoch=STOPPED, **FIT, **options)
    return state_of(model)


def interrupted(devices, dropout=0.3, **options):
    model = on(devices, new_model(dropout))
    model.fit(X, Y, epochs=STOPPED, **FIT, **options)
    return model


@pytest.mark.parametrize(
    ("devices", "file"),
    selection.in_turn(
        [(8, 1), (1, 8), (2, 3), (3, 2), (8, 8), (PLAIN, 2)],
        ["m.keras", "m.weights.h5"],
    ),
)
def test_resumed_equals_a_run_that_never_stopped(devices, file, tmp_path):
    saved_on, resumed_on = devices
    path = tmp_path / file
    # Files of plain Keras hold no random state.
    dropout = 0.0 if saved_on == PLAIN else 0.3
    model = interrupted(saved_on, dropout)
    (model.save if file == "m.keras" else model.save_weights)(path)
    if file == "m.keras":
        template = keras.models.load_model(path)
    else:
        template = other_model(dropout)
    parallel = on(resumed_on, template)
    parallel.load_weights(path)
    helpers.assert_close(straight_run(dropout), resume(parallel))


def test_code_of_the_page_on_resuming(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    model = new_model()
    parallel = kp.data_parallel(model, 8)
    parallel.fit(X, Y, epochs=10, **FIT)
    code = code.replace("initial_epoch=10", "initial_epoch=10, **FIT")
    names = globals() | {"model": model, "parallel": parallel, "x": X, "y": Y}
    exec(code, names)
    expected = new_model()
    expected.fit(X, Y, epochs=20, **FIT)
    helpers.assert_close(state_of(expected), state_of(names["parallel"]))


@pytest.mark.parametrize("saved_on", [1, 2, 8])
def test_resumed_by_plain_keras(saved_on, tmp_path):
    path = tmp_path / "m.keras"
    parallel = interrupted(saved_on, dropout=0.0)
    parallel.save(path)
    loaded = keras.models.load_model(path)
    helpers.assert_close(straight_run(0.0), resume(loaded))
    # The model that was passed in goes on too, and so does the parallel one.
    helpers.assert_close(straight_run(0.0), resume(parallel))


@pytest.mark.parametrize("format", ["m.keras", "m.h5", "folder"])
def test_the_file_is_one_of_plain_keras(format, tmp_path):
    """G13: no class of ours, and a shared layer is one layer again."""
    path = tmp_path / format
    parallel = interrupted(2)
    options = {"zipped": False} if format == "folder" else {}
    parallel.save(path, **options)
    if format == "m.keras":
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            text = b"".join(map(archive.read, archive.namelist()))
            assert json.loads(archive.read("config.json"))["module"] in (
                "keras",
                "keras.src.models.functional",
            )
    else:
        files = path.rglob("*") if path.is_dir() else [path]
        text = b"".join(f.read_bytes() for f in files if f.is_file())
    assert b"keras_parallel" not in text
    # Keras cannot read the losses of its own legacy format.
    loaded = keras.models.load_model(path, compile=format != "m.h5")
    assert type(loaded).__name__ == "Functional"
    assert len(loaded.weights) == len(parallel.weights)
    helpers.assert_close(
        parallel.predict(X, verbose=0), loaded.predict(X, verbose=0)
    )


def test_weights_for_a_new_training_leave_the_random_state(tmp_path):
    """Without an optimizer, as in plain Keras: nothing is resumed."""
    interrupted(2).save_weights(tmp_path / "m.weights.h5")
    compiled = new_model(seed=7)
    model = keras.Model(compiled.inputs, compiled.outputs)
    weights = {id(v) for v in model.weights}
    seeds = [v for v in model.variables if id(v) not in weights]
    before = helpers.arrays(seeds)
    assert before
    kp.data_parallel(model, 2).load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(before, helpers.arrays(seeds))


def test_a_tied_embedding_is_stored_once(tmp_path):
    """A10: and it is one variable again when it is loaded."""
    inputs = keras.Input((5,), dtype="int32")
    embedding = layers.ReversibleEmbedding(11, 4, name="embedding")
    model = keras.Model(inputs, embedding(embedding(inputs), reverse=True))
    model.compile(models.sgd(), "mse")
    tokens = np.arange(40).reshape(8, 5) % 11
    targets = np.ones((8, 5, 11), "float32")
    parallel = kp.data_parallel(model, 2)
    parallel.fit(tokens, targets, verbose=0)
    parallel.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert len(loaded.weights) == len(parallel.weights) == 1
    helpers.assert_close(loaded.get_weights(), parallel.get_weights(), 0)
    losses = [m.train_on_batch(tokens, targets) for m in (loaded, parallel)]
    helpers.assert_close(*losses)


@pytest.mark.filterwarnings("ignore:The `native_serialization` parameter")
def test_exported_serves_what_predict_gives(tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    parallel = interrupted(2)
    parallel.export(tmp_path / "served", verbose=False)
    served = tensorflow.saved_model.load(tmp_path / "served")
    helpers.assert_close(
        parallel.predict(X, verbose=0), served.serve(X).numpy()
    )
    helpers.assert_close(straight_run(), resume(parallel))


# Callbacks that write


def written_by(make_callback, devices, tmp_path):
    folder = tmp_path / str(devices)
    folder.mkdir()
    model = on(devices, new_model())
    model.fit(
        X,
        Y,
        epochs=EPOCHS,
        validation_data=(X[:11], Y[:11]),
        callbacks=[make_callback(folder)],
        **FIT,
    )
    return {p.name: p for p in sorted(folder.iterdir())}


CHECKPOINTS = {
    "whole": lambda folder: keras.callbacks.ModelCheckpoint(
        folder / "{epoch}-{val_loss:.4f}.keras"
    ),
    "weights only": lambda folder: keras.callbacks.ModelCheckpoint(
        folder / "{epoch}.weights.h5", save_weights_only=True
    ),
    "best only": lambda folder: keras.callbacks.ModelCheckpoint(
        folder / "{epoch}.keras", monitor="mae", save_best_only=True
    ),
    "worst only, one file": lambda folder: keras.callbacks.ModelCheckpoint(
        folder / "worst.keras", "mae", save_best_only=True, mode="max"
    ),
    "each third batch": lambda folder: keras.callbacks.ModelCheckpoint(
        folder / "{epoch}-{batch}.keras", save_freq=3
    ),
}


@pytest.mark.parametrize(
    ("kind", "devices"), selection.in_turn(CHECKPOINTS, [2, 8, 1])
)
def test_model_checkpoint(kind, devices, tmp_path):
    """G10: the files, of the same epochs, with the same weights."""
    expected = written_by(CHECKPOINTS[kind], PLAIN, tmp_path)
    actual = written_by(CHECKPOINTS[kind], devices, tmp_path)
    assert list(actual) == list(expected)
    for name in expected:
        both = []
        for path in (expected[name], actual[name]):
            if name.endswith(".keras"):
                both.append(keras.models.load_model(path))
            else:
                both.append(other_model(0.3))
                both[-1].load_weights(path)
        helpers.assert_close(
            *[[m.get_weights(), m.optimizer.variables] for m in both]
        )


@pytest.mark.parametrize(
    ("saved_on", "resumed_on"), [(8, 2), (2, 8), (1, 3), (3, PLAIN)]
)
def test_backup_and_restore(saved_on, resumed_on, tmp_path):
    """F08: an exception in the middle of an epoch, and the script run again."""
    dropout = 0.0 if resumed_on == PLAIN else 0.3

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.params["epoch"] == STOPPED and batch == 1:
                raise ZeroDivisionError

        def on_epoch_begin(self, epoch, logs=None):
            self.params["epoch"] = epoch

    def fit(model, *callbacks):
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        return model.fit(
            X, Y, epochs=EPOCHS, callbacks=[backup, *callbacks], **FIT
        )

    with pytest.raises(ZeroDivisionError):
        fit(on(saved_on, new_model(dropout)), Fail())
    resumed = on(resumed_on, new_model(dropout, seed=7))
    history = fit(resumed)
    assert history.epoch == list(range(STOPPED, EPOCHS))
    helpers.assert_close(straight_run(dropout), state_of(resumed))
    assert not (tmp_path / "backup").exists()


# How it is resumed -> saved on, resumed on, dropout. A model that is made anew
# from its configuration draws anew.
ORBAX_CASES = {"load_weights": (8, 3, 0.3), "load_model": (2, PLAIN, 0.0)}
ORBAX = """
import sys
import keras_parallel as kp
import keras
import numpy as np
from tests.equivalence import test_files as t

for how, (saved_on, resumed_on, dropout) in t.ORBAX_CASES.items():
    folder = f"{sys.argv[1]}/{how}"
    callbacks = [keras.callbacks.OrbaxCheckpoint(folder)]
    if sys.argv[2] == "save":
        t.interrupted(saved_on, dropout, callbacks=callbacks)
        continue
    if how == "load_weights":
        model = t.on(resumed_on, t.new_model(dropout))
        model.optimizer.build(model.trainable_variables)
        model.load_weights(folder)
    else:
        model = t.on(resumed_on, keras.models.load_model(folder))
    np.savez(folder + ".npz", *t.resume(model, callbacks=callbacks))
"""


def test_orbax_checkpoint(tmp_path):
    """In another process with other devices, as on another host."""
    run_python(ORBAX, str(tmp_path), "save", virtual=8)
    run_python(ORBAX, str(tmp_path), "resume", virtual=3)
    for how, (_, _, dropout) in ORBAX_CASES.items():
        with np.load(tmp_path / f"{how}.npz") as file:
            state = [file[name] for name in file.files]
        assert len(state) == len(straight_run(dropout))
        # The seeds of Dropout(0) are drawn and not used.
        expected = [
            value
            for value in zip(straight_run(dropout), state)
            if dropout or value[0].dtype != np.uint32
        ]
        helpers.assert_close(*zip(*expected))


def run_python(code, *arguments, virtual=1, status=0):
    environment = os.environ | {
        "KERAS_PARALLEL_VIRTUAL_DEVICES": str(virtual),
        "KERAS_BACKEND": "jax",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stderr
    return done.stdout


# Whole files only

KILLED = """
import os, signal, sys
import keras_parallel as kp
import keras

class Dense(keras.layers.Dense):
    saves = 0

    def save_own_variables(self, store):
        super().save_own_variables(store)
        Dense.saves += 1
        if Dense.saves > 1:
            os.kill(os.getpid(), signal.SIGKILL)

path = sys.argv[1]
inputs = keras.Input((6,))
hidden = keras.layers.Dense(4)(inputs)
model = keras.Model(inputs, Dense(1)(hidden))
model.compile("sgd", "mse")
parallel = kp.data_parallel(model, 2)
save = parallel.save if path.endswith(".keras") else parallel.save_weights
save(path)
parallel.set_weights([w + 1 for w in parallel.get_weights()])
save(path)
"""


@pytest.mark.parametrize("file", ["m.keras", "m.weights.h5"])
def test_killed_in_the_middle_of_writing(file, tmp_path):
    path = tmp_path / file
    run_python(KILLED, str(path), virtual=2, status=-signal.SIGKILL)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, layers.Dense(1)(layers.Dense(4)(inputs)))
    model.load_weights(path)
    # The biases are 0, and 1 in what was being written.
    assert (model.get_weights()[1] == 0).all()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_while_writing_leaves_the_file_that_was_there(
    error, tmp_path, monkeypatch
):
    parallel = interrupted(2)
    for save, path in (
        (parallel.save, tmp_path / "m.keras"),
        (parallel.save_weights, tmp_path / "m.weights.h5"),
    ):
        save(path)
        before = path.read_bytes()
        with monkeypatch.context() as patch:

            def fail(*args, **kwargs):
                raise error

            patch.setattr(layers.Dense, "save_own_variables", fail)
            with pytest.raises(error):
                save(path)
        assert path.read_bytes() == before
        save(path)
    assert sorted(os.listdir(tmp_path)) == ["m.keras", "m.weights.h5"]


def test_what_is_kept_of_the_file_that_is_replaced(tmp_path):
    parallel = interrupted(2)
    target, link = tmp_path / "a.keras", tmp_path / "b.keras"
    parallel.save(target)
    link.symlink_to(target)
    target.chmod(0o640)
    before = target.stat().st_ino
    parallel.save(link)
    assert link.is_symlink()
    assert target.stat().st_ino != before
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_long_name(tmp_path):
    parallel = interrupted(2)
    path = tmp_path / f"{'m' * 240}.keras"
    parallel.save(path)
    parallel.save(path)
    assert list(tmp_path.iterdir()) == [path]


def test_keras_asks_before_it_overwrites(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "builtins.input", lambda text: asked.append(text) or "n"
    )
    parallel = interrupted(2)
    path = tmp_path / "m.keras"
    parallel.save(path, overwrite=False)
    before = path.read_bytes()
    parallel.save(path, overwrite=False)
    assert len(asked) == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("save", "m.txt"),
        ("save", "nowhere/m.keras"),
        ("save_weights", "m.h5"),
        ("save_weights", "nowhere/m.weights.h5"),
        ("load_weights", "nothing.weights.h5"),
    ],
)
def test_errors_about_paths_are_those_of_keras(method, path, tmp_path):
    messages = []
    for model in (new_model(), kp.data_parallel(new_model(), 2)):
        with pytest.raises((ValueError, OSError)) as caught:
            getattr(model, method)(tmp_path / path)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_save_of_the_users_own_is_called_as_it_was_written(tmp_path):
    saved = []

    class Own(keras.Model):
        def save(self, filepath, *args, **kwargs):
            saved.append(filepath)
            return "saved"

    inputs = keras.Input((6,))
    parallel = kp.data_parallel(Own(inputs, layers.Dense(1)(inputs)), 2)
    assert parallel.save(tmp_path / "m.keras") == "saved"
    model = new_model()
    model.save = saved.append
    kp.data_parallel(model, 2).save(tmp_path / "n.keras")
    assert saved == [tmp_path / "m.keras", tmp_path / "n.keras"]
