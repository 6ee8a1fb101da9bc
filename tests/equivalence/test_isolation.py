"""Several models in one process, faults at any moment, and cells run again."""

import gc
import signal
import sys
import threading

import jax
import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from keras_parallel.engines._interrupts import Interrupts
from keras_parallel.engines.jax._state import StepState
from tests import helpers
from tests import models

X, Y = models.regression(24, np.random.default_rng(0))
HOME = jax.numpy.zeros(()).devices()


def make_model(width=8):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(width, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(1),
        ]
    )
    model.compile(models.sgd(), "mse", metrics=["mae"])
    return model


def assert_at_home(model):
    variables = model.variables + model.optimizer.variables
    assert all(v.value.devices() == HOME for v in variables)


# Several models


def test_several_models_on_several_lists_of_devices():
    """In turn, and one inside a callback of another; with plain ones."""
    lists = [["gpu:0", "gpu:1"], ["gpu:1", "gpu:4", "gpu:5"], ["gpu:7"], None]
    options = {"shuffle": False, "verbose": 0}

    def train(wrapped):
        trained = []
        for i, devices in enumerate(lists):
            model = helpers.seeded(lambda: make_model(4 + i), i)  # noqa: B023
            if wrapped and devices:
                model = kp.data_parallel(model, devices)
            trained.append(model)

        class TrainTheOthers(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                for model in trained[1:]:
                    model.fit(X, Y, **options)
                    model.predict(X, verbose=0)

        for _ in range(2):
            for model in trained:
                model.train_on_batch(X, Y)
            trained[0].fit(X, Y, callbacks=[TrainTheOthers()], **options)
        return trained

    expected, actual = train(wrapped=False), train(wrapped=True)
    for plain, parallel in zip(expected, actual):
        helpers.assert_close(
            helpers.state_of(plain), helpers.state_of(parallel)
        )
        assert_at_home(parallel)


def test_models_trained_in_threads_of_their_own():
    """As two cells of a server would: neither disturbs the other."""
    lists = [["gpu:0", "gpu:1"], ["gpu:2", "gpu:3"]]
    parallel = [
        kp.data_parallel(helpers.seeded(make_model), devices)
        for devices in lists
    ]
    threads = [
        threading.Thread(
            target=model.fit,
            args=(X, Y),
            kwargs={"shuffle": False, "verbose": 0, "epochs": 3},
        )
        for model in parallel
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    plain = helpers.seeded(make_model)
    plain.fit(X, Y, shuffle=False, verbose=0, epochs=3)
    for model in parallel:
        helpers.assert_close(helpers.state_of(plain), helpers.state_of(model))
        assert_at_home(model)


@pytest.fixture
def many_switches():
    """Threads take turns so often that they meet in each line of a loop."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("many_switches")
def test_one_model_asked_by_several_threads_at_once():
    """As by the threads of a server."""
    asked = kp.data_parallel(helpers.seeded(make_model), 8)
    expected = asked.predict(X, verbose=0)
    found, threads = [], []

    def ask():
        for _ in range(10):
            predicted = asked.predict(X, batch_size=8, verbose=0)
            found.append(np.abs(predicted - expected).max())

    for _ in range(4):
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(found) == 40
    assert max(found) < 1e-5
    assert all(v.value.devices() == HOME for v in asked.variables)


# Ctrl-C


def train_in_batches_of_8(model, method):
    if method == "fit":
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
        return
    for start in (0, 8, 16):
        model.train_on_batch(X[start : start + 8], Y[start : start + 8])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("method", ["fit", "train_on_batch"])
def test_a_signal_between_a_step_and_its_result(method, number, monkeypatch):
    """The state was consumed, and the new one is in no variable yet."""
    plain, parallel = (helpers.seeded(make_model) for _ in range(2))
    parallel = kp.data_parallel(parallel, 2)
    write = StepState.write
    steps = []

    def interrupted(self, groups):
        steps.append(1)
        if len(steps) == 2:
            signal.raise_signal(number)
        write(self, groups)

    class Stop(BaseException):
        """What a handler of the user's may raise, as the one for Ctrl-C."""

    def stop(*_):
        raise Stop

    monkeypatch.setattr(StepState, "write", interrupted)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(Stop):
            train_in_batches_of_8(parallel, method)
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)
    for part in (slice(8), slice(8, 16)):
        plain.train_on_batch(X[part], Y[part])
    helpers.assert_close(helpers.state_of(plain), helpers.state_of(parallel))
    assert_at_home(parallel)
    parallel.fit(X, Y, verbose=0)


def test_ctrl_c_at_any_moment():
    """The weights are those after some whole number of steps."""
    plain = helpers.seeded(make_model)
    parallel = kp.data_parallel(helpers.seeded(make_model), 2)
    parallel.train_on_batch(X, Y)  # Compiles.
    main = threading.main_thread().ident
    rng = np.random.default_rng(0)
    for _ in range(20):
        count = int(parallel.optimizer.iterations)
        timer = threading.Timer(
            rng.uniform(0.05, 0.1),
            lambda: signal.pthread_kill(main, signal.SIGINT),
        )
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            parallel.fit(X, Y, epochs=10**6, shuffle=False, verbose=0)
        timer.join()
        assert_at_home(parallel)
        assert int(parallel.optimizer.iterations) > count
    for _ in range(int(parallel.optimizer.iterations)):
        plain.train_on_batch(X, Y)
    # So many steps amplify rounding; a step more or less shows all the same.
    helpers.assert_close(
        plain.predict(X, verbose=0), parallel.predict(X, verbose=0), 1e-2
    )
    seeds = [
        [v.numpy() for v in m.non_trainable_variables if "seed" in v.path]
        for m in (plain, parallel)
    ]
    np.testing.assert_array_equal(*seeds)


def test_ctrl_c_while_keras_waits_for_logs_is_not_lost():
    """There is a bare `except:` around it."""
    from keras.src.utils.python_utils import pythonify_logs

    class Loss:
        def __float__(self):
            signal.raise_signal(signal.SIGINT)
            return 1.0

    interrupts = Interrupts()
    with interrupts.watched():
        assert pythonify_logs({"loss": Loss()}) == {"loss": 1.0}
        with pytest.raises(KeyboardInterrupt):
            interrupts.__enter__()
        interrupts.__enter__()
        interrupts.__exit__()
    with pytest.raises(KeyboardInterrupt):
        with interrupts.watched():
            pythonify_logs({"loss": Loss()})
    parallel = kp.data_parallel(make_model(), 2)
    callback = keras.callbacks.Callback()
    callback.on_train_batch_end = lambda batch, logs: pythonify_logs(
        {"loss": Loss()}
    )
    with pytest.raises(KeyboardInterrupt):
        parallel.fit(X, Y, batch_size=8, verbose=0, callbacks=[callback])
    assert int(parallel.optimizer.iterations) == 1


def test_a_second_ctrl_c_does_not_wait():
    interrupts = Interrupts()
    with interrupts.watched():
        interrupts.__enter__()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.__exit__()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_handler_set_during_training_is_kept():
    parallel = kp.data_parallel(make_model(), 2)
    before = signal.getsignal(signal.SIGTERM)

    class Listen(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            signal.signal(signal.SIGTERM, handler)

    def handler(*_):
        pass

    try:
        parallel.fit(X, Y, verbose=0, callbacks=[Listen()])
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


# Cells run again

CELLS = {
    "all of it": """
model = make_model()
parallel = kp.data_parallel(model, 4)
parallel.compile("adam", "mse", metrics=["mae"])
train(parallel)
""",
    "wrap again": """
parallel = kp.data_parallel(model, 4)
parallel.compile("adam", "mse", metrics=["mae"])
train(parallel)
model.predict(X, verbose=0)
""",
    "compile again": """
parallel.compile("adam", "mse", metrics=["mae"])
train(parallel)
""",
    "fit again": """
train(parallel)
""",
    "on other devices": """
parallel = kp.data_parallel(model, [f"gpu:{i}" for i in (0, next(device))])
parallel.compile("adam", "mse")
train(parallel)
""",
    "interrupted": """
try:
    parallel.fit(X, Y, verbose=0, callbacks=[Fail()])
except ZeroDivisionError:
    pass
""",
}


class Fail(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise ZeroDivisionError


def train(model):
    model.fit(X, Y, verbose=0, validation_data=(X, Y))
    model.predict(X, verbose=0)


@pytest.mark.parametrize("cell", list(CELLS))
def test_a_cell_run_again_leaks_nothing(cell):
    """Buffers on all devices, and compiled programs."""
    model = make_model()
    notebook = globals() | {
        "model": model,
        "parallel": kp.data_parallel(model, 4),
        "device": iter([1, 2, 1, 2]),
    }
    client = jax.devices()[0].client

    def counts():
        gc.collect()
        return len(jax.live_arrays()), len(client.live_executables())

    def run():
        exec(CELLS[cell], notebook)
        return counts()

    run()
    assert run() == run()


# Arrays that are the same


def test_a_variable_that_was_given_the_array_of_another():
    """`a.assign(b)` leaves two variables with one array."""
    model = helpers.seeded(make_model)
    parallel = kp.data_parallel(model, 2)
    first, *_, last = model.layers
    target = keras.Variable(first.kernel)
    model.target = target
    for batch in (slice(0, 8), slice(8, 16), slice(16, 24)):
        target.assign(first.kernel)
        kept = np.array(target)
        parallel.train_on_batch(X[batch], Y[batch])
        np.testing.assert_array_equal(target, kept)
    assert np.abs(first.kernel - kept).max() > 0
    # Two that the step takes.
    last.bias.assign(last.kernel[0] * 0)
    model.layers[1].gamma.assign(model.layers[1].beta)
    parallel.fit(X, Y, batch_size=8, verbose=0)
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: model.layers[1].gamma.assign(
            model.layers[1].beta
        )
    )
    parallel.fit(X, Y, batch_size=8, verbose=0, callbacks=[callback])
    assert_at_home(parallel)


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_averages_of_weights_that_plain_keras_has_left(devices):
    def trained():
        model = helpers.seeded(make_model)
        model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse")
        model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
        return model

    model = trained()
    # Plain Keras raises where it goes on with one array in two variables.
    expected = trained()
    for v in expected.optimizer.variables:
        v.assign(np.array(v))
    options = {"batch_size": 8, "shuffle": False, "verbose": 0}
    expected.fit(X, Y, **options)
    kp.data_parallel(model, devices).fit(X, Y, **options)
    helpers.assert_close(helpers.state_of(expected), helpers.state_of(model))
