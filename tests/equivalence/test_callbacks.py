"""Callbacks do on several devices what they do on one.

T28, T31, H14 and pain 11: stock callbacks stop at the same epoch, set the
same learning rates and write the same files. J05, J07, J28, D01: callbacks of
the user's get a Keras model with current weights, and what they do counts.
"""

import csv
import pathlib

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from tests import helpers
from tests import models
from tests import selection

DEVICES = [1, 2, 8]
EPOCHS = 6


def learnable(rows, seed):
    """What a model learns first, and noise that it learns by heart later."""
    x, noise = models.regression(rows, np.random.default_rng(seed))
    return x, np.tanh(x[:, :1] - x[:, 1:2]) + 0.5 * noise


X, Y = learnable(29, 0)
VALIDATION = learnable(13, 1)


def make_model(optimizer=None, **options):
    inputs = keras.Input((6,), name="features")
    hidden = layers.Dense(8, "tanh", name="hidden")(inputs)
    hidden = layers.BatchNormalization(name="norm")(hidden)
    outputs = layers.Dense(1, name="score")(hidden)
    model = keras.Model(inputs, outputs, name="small")
    options = {"loss": "mse", "metrics": ["mae"], **options}
    model.compile(optimizer or models.sgd(0.05), **options)
    return model


def fitted(devices, make_callback, make_model=make_model, **options):
    """Trains with one callback; 0 devices is plain Keras."""
    model = helpers.seeded(make_model)
    if devices:
        model = kp.data_parallel(model, devices)
    callback = make_callback()
    keras.utils.set_random_seed(3)
    options = {
        "x": X,
        "y": Y,
        "batch_size": 8,
        "epochs": EPOCHS,
        "validation_data": VALIDATION,
        "verbose": 0,
        "callbacks": [callback],
        **options,
    }
    history = model.fit(**options)
    return model, history, callback


def assert_same(make_callback, devices, **options):
    """Returns what one device gave: model, history and callback."""
    expected, actual = (
        fitted(n, make_callback, **options) for n in (0, devices)
    )
    assert actual[1].epoch == expected[1].epoch
    assert list(actual[1].history) == list(expected[1].history)
    # A learning rate of 0.2 shows what each callback does, and amplifies.
    helpers.assert_close(
        *[
            [list(h.history.values()), helpers.state_of(m)]
            for m, h, _ in (expected, actual)
        ],
        1e-4,
    )
    return expected


@pytest.mark.parametrize("devices", DEVICES)
def test_early_stopping(devices):
    """T31: the same epoch, and the weights of the best one."""
    model, history, callback = assert_same(
        lambda: keras.callbacks.EarlyStopping(
            patience=2, restore_best_weights=True
        ),
        devices,
        epochs=30,
    )
    assert 2 < len(history.epoch) < 30
    assert 0 < callback.best_epoch < callback.stopped_epoch
    best = history.history["val_loss"][callback.best_epoch]
    found = model.evaluate(*VALIDATION, batch_size=8, verbose=0)[0]
    np.testing.assert_allclose(found, best, rtol=1e-4)


@pytest.mark.parametrize("devices", DEVICES)
def test_reduce_lr_on_plateau(devices):
    _, history, _ = assert_same(
        lambda: keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1),
        devices,
        epochs=10,
    )
    assert len(set(history.history["learning_rate"])) > 2


@pytest.mark.parametrize("devices", DEVICES)
def test_learning_rate_scheduler(devices):
    """H14."""
    _, history, _ = assert_same(
        lambda: keras.callbacks.LearningRateScheduler(
            lambda epoch, rate: rate * 0.7 if epoch % 2 else rate
        ),
        devices,
    )
    assert len(set(history.history["learning_rate"])) == 4


@pytest.mark.parametrize("devices", DEVICES)
def test_terminate_on_nan(devices):
    """In the step in which it happens, not at the end of the epoch."""
    x = X.copy()
    x[17] = np.nan
    steps = []
    for n in (0, devices):
        model, history, _ = fitted(
            n, keras.callbacks.TerminateOnNaN, x=x, shuffle=False
        )
        assert history.epoch == [0]
        steps.append(int(model.optimizer.iterations))
    assert steps == [3, 3]


@pytest.mark.parametrize("devices", DEVICES)
def test_csv_logger(devices, tmp_path):
    rows = []
    for n in (0, devices):
        path = tmp_path / f"{n}.csv"
        fitted(n, lambda: keras.callbacks.CSVLogger(path))  # noqa: B023
        with open(path, newline="") as file:
            rows.append(list(csv.reader(file)))
    assert len(rows[0]) == EPOCHS + 1
    assert rows[0][0] == rows[1][0]
    helpers.assert_close(
        *[[np.array(r, float) for r in table[1:]] for table in rows], 1e-4
    )


@pytest.mark.parametrize("devices", DEVICES)
def test_swap_ema_weights(devices):
    assert_same(
        lambda: keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        devices,
        make_model=lambda: make_model(
            models.sgd(use_ema=True, ema_momentum=0.9)
        ),
    )


def events_in(folder):
    """Tag -> [(step, value)] of every scalar and histogram in `folder`."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    import tensorflow as tf

    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*.tfevents.*")):
        run = str(path.parent.relative_to(folder))
        events = accumulator.EventAccumulator(
            str(path), size_guidance={accumulator.TENSORS: 0}
        )
        events.Reload()
        for tag in events.Tags()["tensors"]:
            found[run, tag] = [
                (event.step, tf.make_ndarray(event.tensor_proto))
                for event in events.Tensors(tag)
            ]
    return found


@pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")
@pytest.mark.parametrize("devices", DEVICES)
def test_tensorboard(devices, tmp_path):
    """G02: the same tags and values, of epochs, batches and weights."""
    written = []
    for n in (0, devices):
        folder = tmp_path / str(n)
        fitted(
            n,
            lambda: keras.callbacks.TensorBoard(
                folder,  # noqa: B023
                histogram_freq=2,
                update_freq=2,
            ),
        )
        written.append(events_in(folder))
    expected, actual = written
    assert list(actual) == list(expected)
    assert ("train", "epoch_loss") in expected
    assert ("validation", "evaluation_mae_vs_iterations") in expected
    assert any("kernel" in tag for _, tag in expected)
    for name in expected:
        if name[1].endswith("/histogram"):
            # A value on the edge of a bin may fall on either side.
            expected[name], actual[name] = (
                [(step, _mean_of_bins(bins)) for step, bins in w[name]]
                for w in written
            )
        steps, values = zip(*expected[name])
        own_steps, own_values = zip(*actual[name])
        assert own_steps == steps, name
        if np.asarray(values[0]).dtype.kind == "f":
            helpers.assert_close(values, own_values, 1e-3)


def _mean_of_bins(bins):
    left, right, counts = np.asarray(bins).T
    return np.sum((left + right) / 2 * counts) / counts.sum()


@pytest.mark.parametrize("devices", DEVICES)
def test_lambda_callback(devices):
    calls = []

    def fit(n):
        calls.append([])
        names = [
            f"on_{what}_{when}"
            for what in ("epoch", "train_batch", "train")
            for when in ("begin", "end")
        ]
        return fitted(
            n,
            lambda: keras.callbacks.LambdaCallback(
                **{name: _recorded(name, calls[-1]) for name in names}
            ),
            epochs=2,
        )

    fit(0)
    fit(devices)
    expected, actual = calls
    assert [c[:3] for c in actual] == [c[:3] for c in expected]
    assert len(expected) == 2 + 2 * (2 + 2 * 4)
    helpers.assert_close([c[3] for c in expected], [c[3] for c in actual], 1e-4)


def _recorded(name, calls):
    def hook(index, logs=None):
        logs = logs or {}
        calls.append((name, index, list(logs), list(logs.values())))

    if name in ("on_train_begin", "on_train_end"):
        return lambda logs=None: hook(None, logs)
    return hook


# Callbacks of the user's


HOOKS = [
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_batch_end",
    "on_test_end",
    "on_epoch_end",
]


def calling(hook, action):
    """A callback that does something to the model in one hook."""
    callback = keras.callbacks.Callback()
    setattr(callback, hook, lambda *_, **__: action(callback.model))
    return callback


def trained_by_hand(hook, action):
    """What one device gives if every hook is obeyed: no `fit` of Keras.

    On JAX the `fit` of Keras loses what a callback assigns within an epoch.
    """
    model = helpers.seeded(make_model)
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, len(X), 8)]

    def at(name):
        if name == hook:
            action(model)

    at("on_train_begin")
    for _ in range(2):
        at("on_epoch_begin")
        for x, y in batches:
            at("on_train_batch_begin")
            model.train_on_batch(x, y)
            at("on_train_batch_end")
        at("on_test_begin")
        for _ in range(2):  # 13 rows of validation.
            at("on_test_batch_end")
        at("on_test_end")
        at("on_epoch_end")
    return helpers.state_of(model)


def halve(model):
    kernel = model.get_layer("score").kernel
    kernel.assign(kernel * 0.5)


def set_all(model):
    model.set_weights([0.9 * w for w in model.get_weights()])


def slow_down(model):
    model.optimizer.learning_rate = model.optimizer.learning_rate * 0.8


ACTIONS = {"assign": halve, "set_weights": set_all, "learning rate": slow_down}


@pytest.mark.parametrize(("hook", "action"), selection.in_turn(HOOKS, ACTIONS))
def test_what_a_callback_changes_takes_effect(hook, action):
    """J28: in every hook."""
    devices = DEVICES[(HOOKS.index(hook) + list(ACTIONS).index(action)) % 3]
    model, _, _ = fitted(
        devices,
        lambda: calling(hook, ACTIONS[action]),
        epochs=2,
        shuffle=False,
    )
    expected = trained_by_hand(hook, ACTIONS[action])
    helpers.assert_close(expected, helpers.state_of(model), 1e-4)
    unchanged = trained_by_hand("no hook", ACTIONS[action])
    assert np.abs(expected[0] - unchanged[0]).max() > 1e-3


@pytest.mark.parametrize("hook", HOOKS)
def test_what_a_callback_sees_is_current(hook):
    """D01, J07: a Keras model, whose weights are those of the last step."""
    seen, expected = [], []

    def look(model):
        return [
            model.get_weights(),
            model.predict(X[:5], verbose=0),
            model.test_on_batch(X[:5], Y[:5], return_dict=True)["loss"]
            if "test" not in hook and "batch" not in hook
            else model(X[:5]),
            int(model.optimizer.iterations),
        ]

    def action(model):
        assert isinstance(model, keras.Model)
        assert model.name == "small"
        seen.append(look(model))

    model, _, _ = fitted(
        2,
        lambda: calling(hook, action),
        epochs=2,
        shuffle=False,
    )
    by_hand = trained_by_hand(hook, lambda model: expected.append(look(model)))
    assert len(seen) == len(expected)
    helpers.assert_close(expected, seen, 1e-4)
    helpers.assert_close(by_hand, helpers.state_of(model), 1e-4)


def test_a_callback_that_stops_training_within_an_epoch():
    histories = [
        fitted(
            n,
            lambda: calling(
                "on_train_batch_end",
                lambda model: setattr(
                    model, "stop_training", int(model.optimizer.iterations) > 5
                ),
            ),
            shuffle=False,
        )
        for n in (0, 2)
    ]
    # In plain Keras the callback would read the count of the last epoch.
    assert int(histories[1][0].optimizer.iterations) == 6
    assert histories[1][1].epoch == [0, 1]
