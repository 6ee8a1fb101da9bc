"""`keras_parallel.check`: what it names, and what it leaves as it was."""

import json
import random
import sys
import time

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from keras_parallel.inspection._untouched import untouched
from keras_parallel.strategies import _keras
from tests.helpers import assert_teaches


def dense(*units, inputs=16, optimizer="sgd"):
    model = keras.Sequential(
        [keras.Input((inputs,)), *(layers.Dense(u) for u in units)]
    )
    model.compile(optimizer, "mse")
    return model


def data(rows, inputs=16, outputs=4):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, inputs)).astype("float32")
    return x, rng.normal(size=(rows, outputs)).astype("float32")


def slow(batches, seconds):
    for batch in batches:
        time.sleep(seconds)
        yield batch


def batches_of(rows):
    return [data(n) for n in rows]


class Saver(keras.callbacks.Callback):
    """Waits for the device and for a disk after each batch."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.get_weights()
        time.sleep(0.05)


# Planted bottlenecks: the effects are large, so that a busy machine names them
# too.


def slow_input():
    parallel = kp.data_parallel(dense(4), 2)
    return kp.check(parallel, slow(batches_of([16] * 9), 0.1)), "input"


def slow_callback():
    parallel = kp.data_parallel(dense(4), 2)
    return kp.check(parallel, *data(96), callbacks=[Saver()]), "callbacks"


def tiny_batch():
    parallel = kp.data_parallel(dense(4, 4), 2)
    report = kp.check(parallel, *data(64), batch_size=4, steps=16)
    return report, "tiny steps"


def other_shapes():
    parallel = kp.data_parallel(dense(4), 2)
    return kp.check(parallel, iter(batches_of([8, 10, 12, 14, 16]))), (
        "recompilation"
    )


def uneven_batches():
    parallel = kp.data_parallel(dense(4), 4)
    return kp.check(parallel, *data(150), batch_size=30), "uneven batches"


def large_layer():
    parallel = kp.data_parallel(dense(2048, 4, inputs=1024), 2)
    report = kp.check(parallel, *data(16, 1024), batch_size=4, steps=4)
    return report, "large layer"


PLANTED = {
    f.__name__: f
    for f in (
        slow_input,
        slow_callback,
        tiny_batch,
        other_shapes,
        uneven_batches,
        large_layer,
    )
}


@pytest.mark.parametrize("name", list(PLANTED))
def test_planted_bottlenecks_are_named(name):
    report, expected = PLANTED[name]()
    print(report)
    assert report.bottleneck.name == expected
    assert report.ok
    sentence = report.bottleneck.sentence
    assert sentence[1:] in " ".join(str(report).split())
    for words in {
        "slow_callback": ("`Saver`",),
        "other_shapes": ("5 shapes of batch in 5 steps",),
        "uneven_batches": ("30 rows", "4 devices", "batch_size of 32"),
        "large_layer": ("'sequential", "/dense", "8.4 MB"),
    }.get(name, ()):
        assert words in sentence


def featureful(seed=0):
    """Batch statistics, dropout, slots, a metric, two inputs, a schedule."""
    keras.utils.set_random_seed(seed)
    one, other = keras.Input((16,)), keras.Input((16,))
    hidden = layers.Concatenate()(
        [layers.Dense(8)(one), layers.Dense(8)(other)]
    )
    hidden = layers.BatchNormalization()(hidden)
    outputs = layers.Dense(4)(layers.Dropout(0.5)(hidden))
    model = keras.Model([one, other], outputs)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)
    model.compile(keras.optimizers.Adam(schedule), "mse", metrics=["mae"])
    return model


def two_inputs(rows):
    x, y = data(rows)
    return [x, x[::-1]], y


def everything_of(model):
    """All that a check must leave as it was."""
    variables = [
        *model.variables,
        *model.metrics_variables,
        *model.optimizer.variables,
    ]
    return {
        "values": [v.numpy().tobytes() for v in variables],
        "variables": [id(v) for v in variables],
        "optimizer": (id(model.optimizer), model.optimizer.built),
        "metrics": [id(m) for m in model.metrics],
        "functions": [
            id(getattr(model, f"{kind}_function"))
            for kind in ("train", "test", "predict")
        ],
        "flags": (model.stop_training, getattr(model, "history", None)),
        "compiled": (model.compiled, id(model._compile_config)),
        "seeds": keras.random.SeedGenerator(1).state.numpy().tobytes(),
        "python": random.getstate(),
        "numpy": repr(np.random.get_state()),
    }


class Noting(keras.callbacks.Callback):
    def __init__(self, fail_at=None):
        super().__init__()
        self.seen = []
        self.ended = False
        self._fail_at = fail_at

    def on_train_batch_end(self, batch, logs=None):
        if batch == self._fail_at:
            raise KeyError("planted")
        self.seen.append(batch)
        np.random.normal()
        self.model.stop_training = False

    def on_epoch_end(self, epoch, logs=None):
        self.ended = True


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(trained, parallel, fails):
    model = featureful()
    if parallel:
        model = kp.data_parallel(model, 2)
    if trained:
        model.fit(*two_inputs(32), batch_size=16, verbose=0)
    before = everything_of(model)
    noting = Noting(fail_at=1 if fails else None)

    def run():
        return kp.check(
            model, *two_inputs(64), batch_size=16, steps=3, callbacks=[noting]
        )

    if fails:
        with pytest.raises(KeyError, match="planted"):
            run()
    else:
        report = run()
        assert report.ok
        assert len(report.devices) == (2 if parallel else 8)
    assert everything_of(model) == before
    assert noting.seen == [] and not noting.ended
    # It trains as if nothing had happened.
    other = featureful()
    if trained:
        other = kp.data_parallel(other, 2) if parallel else other
        other.fit(*two_inputs(32), batch_size=16, verbose=0)
    elif parallel:
        other = kp.data_parallel(other, 2)
    for m in (model, other):
        keras.utils.set_random_seed(1)
        m.fit(*two_inputs(32), batch_size=16, verbose=0)
    for a, b in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("parallel", [False, True])
def test_training_inside_leaves_the_arrays_to_the_user(parallel):
    model = featureful()
    model = kp.data_parallel(model, 2) if parallel else model
    model.fit(*two_inputs(32), batch_size=16, verbose=0)
    before = everything_of(model)
    values = [v.value for v in model.variables]
    with untouched(model):
        model.fit(*two_inputs(32), batch_size=16, verbose=0)
        assert everything_of(model) != before
    assert everything_of(model) == before
    for value, variable in zip(values, model.variables):
        assert variable.value is value


def test_a_wrong_model_is_told_with_what_is_wrong_and_where(monkeypatch):
    parallel = kp.data_parallel(dense(4), 2)
    place = type(parallel._keras_parallel.replicas).place_batch

    def place_others(self, batch):
        # Once: what lies on devices is no array of NumPy any more.
        return place(
            self,
            keras.tree.map_structure(
                lambda a: (
                    a * np.float32(1.001)
                    if isinstance(a, np.ndarray) and a.shape[-1] == 4
                    else a
                ),
                batch,
            ),
        )

    monkeypatch.setattr(
        type(parallel._keras_parallel.replicas), "place_batch", place_others
    )
    report = kp.check(parallel, *data(64), batch_size=32)
    assert not report.ok and not report.equal
    assert "Equal to one device: NO" in str(report)
    wrong = {d.among: d for d in report.differences if not d.ok}
    assert wrong["log"].name == "loss"
    assert 1e-4 < wrong["log"].difference < 1e-2
    assert wrong["weight"].name.endswith(("kernel", "bias"))
    assert f"WRONG: {wrong['weight'].name}, step" in str(report)
    json.dumps(report.to_dict(), allow_nan=False)


def test_the_report_says_what_was_compiled():
    parallel = kp.data_parallel(dense(8, 4), 4)
    report = kp.check(parallel, *data(64), batch_size=8, steps=3)
    (reduced,) = report.program.collectives
    weights = sum(4 * v.size for v in map(np.asarray, parallel.get_weights()))
    # The gradients, and the loss.
    assert weights <= reduced.bytes <= 1.02 * weights + 16
    assert reduced.kind == "all-reduce"
    assert report.program.flops > 0
    assert report.program.compile_seconds > 0
    assert (report.steps, report.batch_size, report.rows_each) == (3, 8, 2)
    assert report.compilations == 1
    time = report.time
    parts = [getattr(time, p) for p in ("input", "callbacks", "host")]
    assert sum(parts) + time.compute + time.communication == pytest.approx(
        time.total
    )
    assert 0 < time.compute < time.total
    assert report.efficiency == pytest.approx(report.speed_up / 4)
    text = str(report)
    assert "virtual: they share the cores" in text.replace("\n", " ")
    assert max(map(len, text.splitlines())) <= 100
    as_json = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert as_json["ok"] is True
    assert as_json["program"]["collectives"][0]["bytes"] == reduced.bytes
    assert as_json["bottleneck"]["name"] == report.bottleneck.name


class Dataset(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return data(8)


class Own(keras.Model):
    """A step of its own, and a method that only this class has."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4)

    def call(self, x):
        return self.dense(x)

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return {"loss": logs["loss"], "twice": 2 * logs["loss"]}, state


def own():
    model = Own()
    model.compile("adam", "mse")
    model(data(1)[0])
    return model


def several_steps():
    model = dense(4)
    model.compile("adam", "mse", steps_per_execution=2)
    return model


def eager():
    model = dense(4)
    model.compile("adam", "mse", run_eagerly=True)
    return model


@pytest.mark.parametrize(
    ("make_model", "arguments", "steps"),
    [
        (dense_model := lambda: dense(4), lambda: (Dataset(),), 4),
        (dense_model, lambda: (Dataset(workers=2),), 4),
        (dense_model, lambda: (iter(batches_of([8, 8])),), 5),
        (dense_model, lambda: data(20), 5),
        (own, lambda: data(160), 5),
        (several_steps, lambda: data(160), 5),
        (eager, lambda: data(64), 5),
    ],
)
def test_models_and_data_of_all_kinds(make_model, arguments, steps):
    parallel = kp.data_parallel(make_model(), 2)
    report = kp.check(parallel, *arguments())
    assert report.ok
    assert report.steps == steps
    assert (report.program is None) == (make_model is eager)
    if make_model is eager:
        assert report.bottleneck.name == "eager steps"


class Compiling(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.compile("sgd", "mse")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": None}, "of a `keras.Model`"),
        ({"model": keras.Sequential([layers.Dense(1)])}, "is compiled"),
        ({"steps": 0}, "`steps` is an integer"),
        ({"steps": True}, "`steps` is an integer"),
        ({"batch_size": 1.5}, "`batch_size` is an integer"),
        ({"callbacks": [print]}, "list of Keras callbacks"),
        ({"x": iter(batches_of([8]))}, "inputs and targets"),
        ({"x": iter(()), "y": None}, "at least one batch"),
        ({"x": "x.npy"}, "`x` is an array"),
        (
            {"x": np.ones((0, 16)), "y": np.ones((0, 4))},
            r"at least one row.*x=ndarray of shape \(0, 16\)",
        ),
        ({"callbacks": [Compiling()]}, "as it was compiled"),
    ],
)
def test_mistakes_are_told(change, words):
    x, y = data(8)
    arguments = {"model": dense(4), "x": x, "y": y} | change
    with pytest.raises(ValueError, match=words) as caught:
        kp.check(arguments.pop("model"), **arguments)
    assert_teaches(caught.value)


def test_an_unbuilt_model_is_told_to_be_built():
    model = keras.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="not built") as caught:
        kp.check(model, *data(8))
    assert_teaches(caught.value)


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


class OwnLogger(keras.callbacks.CSVLogger):
    ended = False

    def on_train_end(self, logs=None):
        OwnLogger.ended = True


@pytest.mark.parametrize("relative", [False, True])
def test_files_of_callbacks_stay_what_they_are(tmp_path, monkeypatch, relative):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path.relative_to(tmp_path) if relative else tmp_path
    log = tmp_path / "log.csv"
    log.write_text("epoch,loss\n0,1.0\n")
    callbacks = keras.callbacks
    model = kp.data_parallel(dense(4), 2)
    given = [
        callbacks.CSVLogger(str(folder / "log.csv")),
        OwnLogger(folder / "log.csv", append=True),
        callbacks.BackupAndRestore(folder / "backup", save_freq=1),
        callbacks.ModelCheckpoint(
            folder / "{epoch}-{batch}.keras", save_freq=2
        ),
        callbacks.TensorBoard(folder / "logs", update_freq=1),
    ]
    attributes = [dict(vars(c)) for c in given]
    before = files_of(tmp_path)
    report = kp.check(model, *data(96), batch_size=16, callbacks=given)
    assert files_of(tmp_path) == before
    assert not OwnLogger.ended
    assert [dict(vars(c)) for c in given] == attributes
    assert not any("left out" in note for note in report.notes)
    # Their time counts.
    assert report.time.callbacks > 0
    # The next training starts at its beginning.
    history = model.fit(*data(32), epochs=2, verbose=0, callbacks=given[2:3])
    assert history.epoch == [0, 1]


def test_a_callback_that_cannot_be_moved_is_left_out(tmp_path):
    class Fixed(keras.callbacks.CSVLogger):
        def __copy__(self):
            raise TypeError("there is one of it")

    log = tmp_path / "log.csv"
    log.write_text("kept")
    report = kp.check(
        kp.data_parallel(dense(4), 2), *data(64), callbacks=[Fixed(log)]
    )
    assert log.read_text() == "kept"
    assert any("`Fixed` was left out" in note for note in report.notes)


def test_callbacks_without_a_hook_of_batches_are_not_blamed():
    given = [
        keras.callbacks.EarlyStopping("loss"),
        keras.callbacks.ReduceLROnPlateau("loss"),
    ]
    report = kp.check(kp.data_parallel(dense(4), 2), *data(96), callbacks=given)
    assert report.time.callbacks == 0
    assert report.bottleneck.name != "callbacks"


@pytest.mark.parametrize("hook", ["on_train_batch_begin", "on_train_batch_end"])
def test_a_hook_of_an_instance_is_measured(hook):
    def wait(batch, logs):
        time.sleep(0.05)

    given = [
        keras.callbacks.EarlyStopping("loss"),
        keras.callbacks.LambdaCallback(**{hook: wait}),
    ]
    report = kp.check(kp.data_parallel(dense(4), 2), *data(96), callbacks=given)
    assert report.time.callbacks > 0.02
    assert report.bottleneck.name == "callbacks"
    assert "most of it in `LambdaCallback`" in report.bottleneck.sentence


class Shapes(keras.utils.PyDataset):
    """Other shapes at each run, as a shuffled dataset has."""

    def __init__(self):
        super().__init__()
        self._rows = iter([8, 8, 8, 16, 16, 8, 8, 8, 24, 24] + [8] * 99)

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return data(next(self._rows))


def test_shapes_are_counted_over_the_steps_that_compile():
    report = kp.check(kp.data_parallel(dense(4), 2), Shapes())
    assert report.compilations == 3
    assert "3 shapes of batch" in report.bottleneck.sentence
    assert "dtype" not in report.bottleneck.sentence


class Stopping(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch == 1


@pytest.mark.parametrize("as_list", [False, True])
def test_a_check_that_a_callback_stops_says_so(as_list):
    given = (
        keras.callbacks.CallbackList([Stopping()]) if as_list else Stopping()
    )
    report = kp.check(
        kp.data_parallel(dense(4), 2),
        *data(96),
        batch_size=np.int64(16),
        callbacks=given,
    )
    assert report.batch_size == 16
    assert "`stop_training`: 2 of 5 steps" in str(report)


class Memory:
    """An object of a class that is nobody's but the user's."""

    def __init__(self):
        self.seen = []
        self.best = np.inf


class Holding(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = np.zeros(8)
        self.memory = Memory()
        self.generator = np.random.default_rng(1)
        self.old_generator = np.random.RandomState(1)
        self.python_generator = random.Random(1)

    def on_train_batch_end(self, batch, logs=None):
        self.losses[batch] = 1 + logs["loss"]
        self.memory.seen.append(batch)
        self.memory.best = 0.0
        self.draw()
        keras.random.normal((1,))

    def draw(self):
        return (
            self.generator.normal(),
            self.old_generator.normal(),
            self.python_generator.random(),
        )


class Shuffled(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.order = np.arange(64)
        self.rng = np.random.default_rng(1)
        self.epochs = 0

    def __len__(self):
        return 4

    def __getitem__(self, index):
        x, y = data(64)
        rows = self.order[16 * index : 16 * index + 16]
        return x[rows], y[rows]

    def on_epoch_end(self):
        self.epochs += 1
        self.rng.shuffle(self.order)


@pytest.mark.parametrize("fresh", [False, True])
def test_what_callbacks_and_datasets_hold_is_put_back(fresh):
    model = kp.data_parallel(dense(4), 2)
    if fresh:
        keras.utils.clear_session()
    assert (_keras.global_seed_generator() is None) or not fresh
    keras.random.normal((1,)) if not fresh else None
    holding, shuffled = Holding(), Shuffled()
    kp.check(model, shuffled, callbacks=holding)
    assert (_keras.global_seed_generator() is None) == fresh
    assert not holding.losses.any()
    assert (holding.memory.seen, holding.memory.best) == ([], np.inf)
    assert holding.draw() == Holding().draw()
    assert shuffled.epochs == 0
    np.testing.assert_array_equal(shuffled.order, np.arange(64))
    assert shuffled.rng.integers(2**60) == Shuffled().rng.integers(2**60)


class Torch:
    """A module that draws as torch does."""

    state = 1

    def get_rng_state(self):
        return self.state

    def set_rng_state(self, state):
        self.state = state


def test_what_torch_draws_next_is_put_back(monkeypatch):
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    with untouched(dense(4)):
        torch.state = 2
    assert torch.state == 1
