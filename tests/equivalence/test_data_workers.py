"""Processes that prepare batches: never forked, never waited for in vain.

Reports by users: J26 (a `PyDataset` with processes hangs once JAX has started),
D05 (workers stay on the CPU), T20, G34.
"""

import logging
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
import traceback

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel
from keras_parallel._errors import DataWorkerError
from keras_parallel.engines import active_engine
from keras_parallel.strategies import _feeding
from keras_parallel.strategies import _workers
from tests import helpers
from tests import models
from tests.datasets import Failing
from tests.datasets import Rows
from tests.datasets import Surroundings
from tests.datasets import Watched

PROCESSES = {"workers": 1, "use_multiprocessing": True}


def make_model():
    inputs = [keras.Input((6,), name="a"), keras.Input((2,), name="b")]
    x = layers.Dense(4, "relu")(layers.Concatenate()(inputs))
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(models.sgd(), "mse")
    return model


@pytest.fixture(scope="module")
def parallel():
    return keras_parallel.data_parallel(make_model(), 2)


def rows():
    a, y = models.regression(53, np.random.default_rng(1))
    return a, models.features(53, np.random.default_rng(2), 2), y


def no_process_is_left():
    # Each that has ended is waited for by this call.
    return multiprocessing.active_children() == []


def test_processes_see_the_dataset_as_it_is_at_the_beginning_of_an_epoch(
    monkeypatch,
):
    """And Keras, which would fork them, does not come to it."""

    def fork():
        raise AssertionError("a process was forked")

    monkeypatch.setattr(os, "fork", fork)
    results = []
    for options in ({"workers": 0}, PROCESSES):
        model = helpers.seeded(make_model)
        if options["workers"]:
            model = keras_parallel.data_parallel(model, 2)
        keras.utils.set_random_seed(4)
        dataset = Watched(*rows(), size=7, **options)
        # Further than an epoch: some batches are prepared of the one before.
        fitted = model.fit(dataset, epochs=4, steps_per_epoch=2, verbose=0)
        results.append([fitted.history["loss"], model.get_weights()])
    helpers.assert_close(*results)
    assert no_process_is_left()


class Local:
    """Makes a class that no other process can import."""

    def __new__(cls, **options):
        class Inside(Rows):
            pass

        return Inside(*rows(), **options)


# What the user did, and what the message says beside the rule.
BEFORE_TRAINING = {
    "a lock in it": (
        lambda: Failing(*rows(), how="lock", **PROCESSES),
        ["Received: Failing, for which pickle raised TypeError: cannot pickle"],
    ),
    "a class in a function": (
        lambda: Local(**PROCESSES),
        ["Received: Inside", "at the top level of a module"],
    ),
    "a module that is missing there": (
        lambda: Failing(*rows(), how="load", **PROCESSES),
        ["Received: Failing", "ImportError: no module named 'pictures'"],
    ),
}


@pytest.mark.parametrize("case", list(BEFORE_TRAINING))
def test_what_cannot_be_sent_is_refused_before_training(case, parallel):
    make, expected = BEFORE_TRAINING[case]
    before = parallel.get_weights()
    with pytest.raises(DataWorkerError) as caught:
        parallel.fit(make(), verbose=0)
    for text in [*expected, "workers=1, use_multiprocessing=False"]:
        assert text in str(caught.value)
    helpers.assert_close(before, parallel.get_weights(), 0)
    assert no_process_is_left()


WHILE_TRAINING = {
    "raise": (LookupError, "no such picture"),
    "raise at the end of a file": (EOFError, "no data left in file"),
    "raise what cannot travel": (RuntimeError, "Untold: no such picture"),
    "die": (
        DataWorkerError,
        "ended with exit code 3 while it prepared batch 1",
    ),
    "be killed": (
        DataWorkerError,
        "ended with signal SIGKILL while it prepared",
    ),
}


@pytest.mark.parametrize("how", list(WHILE_TRAINING))
def test_what_goes_wrong_in_a_process_is_an_error_here(how, parallel):
    kind, text = WHILE_TRAINING[how]
    dataset = Failing(*rows(), how=how, **PROCESSES)
    with pytest.raises(kind, match=text) as caught:
        parallel.evaluate(dataset, verbose=0)
    shown = "".join(traceback.format_exception(caught.value))
    if "raise" in how:
        # Where it happened there.
        assert "In a process that prepares batches:" in shown
        assert "datasets.py" in shown and "in __getitem__" in shown
    assert no_process_is_left()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_no_process_outlives_an_exception_in_training(error, parallel):
    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            assert not no_process_is_left()
            raise error

    # Large enough to be half sent when the processes are ended.
    a, b, y = (np.repeat(array, 500, axis=0) for array in rows())
    dataset = Rows(a, b, y, size=8192, **PROCESSES)
    with pytest.raises(error):
        parallel.fit(dataset, verbose=0, callbacks=[Fail()])
    assert no_process_is_left()


def test_a_process_takes_no_device(caplog, monkeypatch):
    monkeypatch.setattr(_workers, "_PATIENCE_SECONDS", 0.01)
    caplog.set_level(logging.WARNING, "keras_parallel")
    before = dict(os.environ)
    monkeypatch.setenv("KERAS_PARALLEL_VIRTUAL_DEVICES", "8")
    dataset = Surroundings(*rows(), **PROCESSES)
    engine = active_engine()
    with _feeding.fed("fit", engine, (), {"x": dataset}) as (_, kwargs):
        environment, loaded, started, parent = kwargs["x"][0]
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["KERAS_PARALLEL_VIRTUAL_DEVICES"] == ""
    assert _workers._STARTING not in environment
    assert loaded == started == []
    assert parent == os.getpid()
    monkeypatch.undo()
    assert dict(os.environ) == before
    # One that is long in starting may be training.
    assert 'below `if __name__ == "__main__":`' in caplog.text


SCRIPT = """
import os, sys, time
import keras_parallel as kp
import keras
import numpy as np

class Ones(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if "slow" in sys.argv:
            # In one piece: two processes write to one pipe.
            os.write(1, b"worker %d\\n" % os.getpid())
            time.sleep(6 if index == 0 else 0)
        return np.ones((8, 3)), np.ones((8, 1))

def main():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    parallel = kp.data_parallel(model)
    parallel.fit(Ones(workers=2, use_multiprocessing=True), verbose=0)
    print("trained on", len(kp.list_devices("gpu")))

"""


def script(tmp_path, last_lines):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT + textwrap.dedent(last_lines))
    return path


def environment():
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


def test_a_script_that_trains_when_it_is_imported_is_told_so(tmp_path):
    """It neither hangs nor starts processes that start processes."""
    done = subprocess.run(
        [sys.executable, script(tmp_path, "main()")],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment(),
    )
    assert done.returncode == 1
    assert "trained on" not in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert "prepare batches import your script first. Received: " in last
    assert "ended with exit code 1" in last
    assert 'below `if __name__ == "__main__":`' in last
    # And the processes themselves said where.
    assert "Received: a parallel model was made while the" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_no_process_outlives_a_training_that_is_killed(tmp_path):
    path = script(tmp_path, 'if __name__ == "__main__":\n    main()')
    trainer = subprocess.Popen(
        [sys.executable, path, "slow"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    # One prepares a batch for a while, the other one waits for work.
    workers = set()
    try:
        for line in trainer.stdout:
            workers.add(int(line.split()[1]))
            if len(workers) == 2:
                break
    finally:
        trainer.send_signal(signal.SIGKILL)
        trainer.wait(30)
        trainer.stdout.close()
    end = time.monotonic() + 30
    while any(map(is_running, workers)) and time.monotonic() < end:
        time.sleep(0.2)
    assert len(workers) == 2 and not any(map(is_running, workers))


def is_running(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1]
    except OSError:
        return False
    return not state.startswith(" Z")


def test_a_fit_of_the_users_own_is_fed_too():
    class Own(keras.Model):
        def fit(self, data, *, rounds, **options):
            assert len(data) == 14
            assert data.size == 4
            return super().fit(data, epochs=rounds, **options)

    results = []
    for workers in (0, 2):
        keras.utils.set_random_seed(4)
        inputs = [keras.Input((6,), name="a"), keras.Input((2,), name="b")]
        x = layers.Concatenate()(inputs)
        model = Own(inputs, layers.Dense(1)(x))
        model.compile(models.sgd(), "mse")
        if workers:
            model = keras_parallel.data_parallel(model, 2)
        dataset = Rows(*rows(), size=4, workers=workers, max_queue_size=2)
        keras.utils.set_random_seed(4)
        fitted = model.fit(dataset, rounds=2, verbose=0)
        results.append([fitted.history["loss"], model.get_weights()])
    helpers.assert_close(*results)


# DataLoader


def loader(**options):
    import torch
    from torch.utils.data import DataLoader
    from torch.utils.data import TensorDataset

    a, b, y = map(torch.tensor, rows())
    return DataLoader(
        TensorDataset(torch.cat([a, b], 1), y), batch_size=24, **options
    )


def test_a_loader_that_would_fork_is_refused_before_training():
    model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
    model.compile(models.sgd(), "mse")
    parallel = keras_parallel.data_parallel(model, 2)
    before = parallel.get_weights()
    forking = loader(num_workers=2)
    if multiprocessing.get_start_method() != "fork":
        pytest.skip("processes are not forked here unless asked for")
    for run in (
        lambda: parallel.fit(forking, shuffle=False, verbose=0),
        lambda: parallel.fit(loader(), validation_data=forking, verbose=0),
        lambda: parallel.evaluate(forking, verbose=0),
        lambda: parallel.predict(x=forking, verbose=0),
    ):
        with pytest.raises(DataWorkerError) as caught:
            run()
        message = str(caught.value)
        assert "Received: a torch DataLoader with num_workers=2" in message
        assert 'multiprocessing_context="spawn"' in message
    helpers.assert_close(before, parallel.get_weights(), 0)


def test_a_loader_with_processes_equals_one_device():
    def make_model():
        model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
        model.compile(models.sgd(), "mse")
        return model

    spawning = loader(
        num_workers=1, multiprocessing_context="spawn", persistent_workers=True
    )
    results = []
    plain, parallel = helpers.both(make_model, 2)
    for model, data in ((plain, loader()), (parallel, spawning)):
        fitted = model.fit(data, epochs=2, shuffle=False, verbose=0)
        results.append(
            [
                fitted.history["loss"],
                model.evaluate(data, verbose=0),
                model.predict(data, verbose=0),
                model.get_weights(),
            ]
        )
    helpers.assert_close(*results)
