"""What users of the alternating trainer meet: logs, callbacks, files."""

import gc
import json
import pathlib

import jax
import keras
import numpy as np
import psutil
import pytest
from keras import layers

import keras_parallel as kp
from keras_parallel.engines import active_engine
from tests.alternating import Parts
from tests.alternating import adam
from tests.alternating import data
from tests.alternating import propose

OPTIONS = {"batch_size": 8, "verbose": 0, "shuffle": False}


@pytest.fixture
def parts():
    return Parts(lambda model: kp.data_parallel(model, 2))


# Logs


def test_names_of_logs_and_history(parts, capsys):
    trainer = parts.trainer()
    history = trainer.fit(
        *data(16), batch_size=8, epochs=2, validation_data=data(8), verbose=2
    )
    of_phases = {
        *("rpn_loss", "rpn_objectness_loss", "rpn_boxes_loss"),
        *("rpn_boxes_mae", "detector_loss", "detector_accuracy"),
    }
    assert {*history.history} == of_phases | {f"val_{n}" for n in of_phases}
    assert {len(values) for values in history.history.values()} == {2}
    assert isinstance(history, keras.callbacks.History)
    assert history.epoch == [0, 1] and history.params["steps"] == 2
    printed = capsys.readouterr().out
    assert printed.count("rpn_boxes_mae:") == 4  # With `val_`, in two epochs.
    found = trainer.evaluate(*data(8), batch_size=8, verbose=0)
    assert found.keys() == of_phases


def test_two_phases_that_would_log_one_name():
    inputs = keras.Input((3,))
    x = layers.Dense(2, name="shared")(inputs)
    one = keras.Model(inputs, {"b": layers.Dense(1)(x), "c": x})
    other = keras.Model(inputs, layers.Dense(1)(x))
    one.compile("sgd", {"b": "mse", "c": "mse"})
    other.compile("sgd", "mse")
    trainer = kp.AlternatingTrainer(
        [
            kp.Phase("a", one),
            kp.Phase("a_b", other, lambda batch, _: (batch[0], batch[1]["b"])),
        ],
        model=keras.Model(inputs, [*one.outputs, *other.outputs]),
    )
    x, y = np.ones((4, 3)), {"b": np.ones((4, 1)), "c": np.ones((4, 2))}
    with pytest.raises(kp._errors.InputError, match=r"'a_b_loss'.*works"):
        trainer.fit(x, y, verbose=0)


def test_skipped_batches_are_counted_and_reported(parts, caplog):
    seen = []

    def sometimes(batch, predictions):
        seen.append(batch)
        return propose(batch, predictions) if len(seen) % 3 else None

    phases = [
        kp.Phase("rpn", parts.rpn),
        kp.Phase("detector", parts.detector, make_batch=sometimes),
    ]
    trainer = parts.trainer(phases)
    before = int(parts.rpn.optimizer.iterations)
    trainer.fit(*data(56), epochs=1, **OPTIONS)
    assert trainer.skipped == {"rpn": 0, "detector": 2}
    assert "phase 'detector' skipped 2 of 7 batches" in caplog.text
    assert int(parts.rpn.optimizer.iterations) - before == 7
    assert int(parts.detector.optimizer.iterations) == 5


def test_a_phase_that_skips_all(parts):
    phases = [
        kp.Phase("rpn", parts.rpn),
        kp.Phase("detector", parts.detector, lambda batch, _: None),
    ]
    trainer = parts.trainer(phases)
    history = trainer.fit(*data(16), epochs=2, **OPTIONS).history
    assert len(history["rpn_loss"]) == 2
    assert not any(key.startswith("detector") for key in history)


# Data


class Dataset(keras.utils.PyDataset):
    def __init__(self, count, **options):
        super().__init__(**options)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return data(8, seed=index)


def _of_tensorflow(count):
    tensorflow = pytest.importorskip("tensorflow")
    batches = [data(8, seed=i) for i in range(count)]
    x, y = keras.tree.map_structure(lambda *a: np.concatenate(a), *batches)
    return tensorflow.data.Dataset.from_tensor_slices((x, y)).batch(8)


def _generator(count):
    yield from (data(8, seed=i) for i in range(count))


@pytest.mark.parametrize(
    "make",
    [Dataset, lambda n: Dataset(n, workers=2), _of_tensorflow, _generator],
    ids=["PyDataset", "workers", "tf.data", "generator"],
)
def test_datasets(make):
    """`make_batch` gets NumPy arrays in the structure of the data."""
    seen = []

    def propose_and_note(batch, predictions):
        seen.append(batch[0])
        for leaf in keras.tree.flatten((batch, predictions["rpn"])):
            assert isinstance(leaf, np.ndarray)
        return propose(batch, predictions)

    parts = Parts()
    phases = [
        kp.Phase("rpn", parts.rpn),
        kp.Phase("detector", parts.detector, propose_and_note),
    ]
    parts.trainer(phases).fit(
        make(3), shuffle=False, steps_per_epoch=3, verbose=0
    )
    np.testing.assert_array_equal(
        np.concatenate(seen), np.concatenate([data(8, i)[0] for i in range(3)])
    )


def test_steps_per_epoch_and_initial_epoch(parts):
    trainer = parts.trainer()
    trainer.fit(
        Dataset(6), steps_per_epoch=3, initial_epoch=1, epochs=3, verbose=0
    )
    assert int(parts.rpn.optimizer.iterations) == 6


@pytest.mark.parametrize(
    ("options", "steps"),
    [({"steps": 3}, 15), ({"every": 2}, 3), ({"every": 9}, 1)],
)
def test_steps_and_every(options, steps):
    """Rounds are counted over epochs."""
    parts = Parts()
    phases = [
        kp.Phase("rpn", parts.rpn),
        kp.Phase("detector", parts.detector, propose, **options),
    ]
    trainer = parts.trainer(phases)
    trainer.fit(Dataset(3), epochs=1, verbose=0)
    trainer.fit(Dataset(2), epochs=1, verbose=0)
    assert int(parts.detector.optimizer.iterations) == steps
    assert int(parts.rpn.optimizer.iterations) == 5


def test_predictions_are_those_of_the_weights_just_updated():
    parts = Parts()
    seen = []

    def note(batch, predictions):
        found = parts.rpn.predict_on_batch(batch[0])
        seen.append((predictions["rpn"], found))
        assert list(predictions) == ["rpn"] and "detector" not in predictions
        with pytest.raises(KeyError, match=r"'rpn'.*Received: 'later'"):
            predictions["later"]
        return propose(batch, predictions)

    phases = [
        kp.Phase("rpn", parts.rpn),
        kp.Phase("detector", parts.detector, note),
    ]
    parts.trainer(phases).fit(*data(16), **OPTIONS)
    for given, found in seen:
        for name in found:
            np.testing.assert_array_equal(given[name], found[name])


@pytest.mark.parametrize("asks", ["first", "last"])
def test_predictions_for_a_later_phase_do_not_see_what_came_between(asks):
    """Whoever asks first, they are those after the phase's own turn."""
    parts, seen = Parts(), []

    def ask(batch, predictions):
        seen.append(predictions["rpn"]["boxes"])
        return propose(batch, predictions)

    def do_not_ask(batch, predictions):
        x, y = batch
        labels = y["objectness"][:, 0].astype("int32")
        return (x, y["boxes"]), labels

    between = ask if asks == "first" else do_not_ask
    phases = [
        kp.Phase("rpn", parts.rpn),
        kp.Phase("between", parts.detector, between),
        kp.Phase("last", parts.detector, ask, optimizer=adam()),
    ]
    parts.trainer(phases).fit(*data(8), **OPTIONS)
    reference, found = Parts(), seen[-1]
    reference.rpn.train_on_batch(*data(8))
    expected = reference.rpn.predict_on_batch(data(8)[0])["boxes"]
    np.testing.assert_array_equal(expected, found)


def test_predictions_as_in_training():
    inputs = keras.Input((3,))
    x = layers.Dense(4, name="shared")(inputs)
    dropped = layers.Dropout(0.5, seed=1)(x)
    one, other = keras.Model(inputs, dropped), keras.Model(inputs, x)
    one.compile("sgd", "mse")
    other.compile("sgd", "mse")
    shares = []

    def note(batch, predictions):
        shares.append(np.mean(predictions["one"] == 0))
        return batch

    for as_in_training in (False, True):
        phases = [
            kp.Phase("one", one, training_predictions=as_in_training),
            kp.Phase("other", other, note),
        ]
        trainer = kp.AlternatingTrainer(phases)
        ones = np.ones((64, 3), "float32")
        trainer.fit(ones, np.ones((64, 4)), batch_size=64, verbose=0)
    assert shares[0] == 0.0 and 0.3 < shares[1] < 0.7


# Callbacks


def test_callbacks_see_the_model_and_all_learning_rates(parts, tmp_path):
    seen = []

    class See(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            model = self.model
            seen.append(
                [
                    isinstance(model, keras.Model),
                    model.name == "all_parts",
                    model.get_layer("conv") is parts.backbone.get_layer("conv"),
                    len(model.get_weights()) == len(parts.model.get_weights()),
                    "detector_loss" in logs and "val_rpn_loss" in logs,
                ]
            )

    log = tmp_path / "log.csv"
    callbacks = [
        See(),
        keras.callbacks.CSVLogger(str(log)),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.ModelCheckpoint(
            str(tmp_path / "best.keras"),
            monitor="val_detector_loss",
            save_best_only=True,
        ),
    ]
    trainer = parts.trainer()
    trainer.fit(
        *data(16),
        validation_data=data(8),
        epochs=2,
        callbacks=callbacks,
        **OPTIONS,
    )
    assert seen == [[True] * 5] * 2
    rates = [p.optimizer.learning_rate for p in (parts.rpn, parts.detector)]
    np.testing.assert_allclose(np.array(rates), [1e-2 / 4, 1e-2 / 4])
    assert "detector_accuracy" in log.read_text().splitlines()[0]
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    assert loaded.name == "all_parts" and not loaded.compiled


def test_early_stopping_restores_the_best_weights(parts):
    best = keras.callbacks.EarlyStopping(
        monitor="rpn_loss",
        mode="max",
        patience=1,
        restore_best_weights=True,
    )
    weights = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights.append(
            parts.model.get_weights()
        )
    )
    history = parts.trainer().fit(
        *data(16), epochs=9, callbacks=[note, best], **OPTIONS
    )
    assert len(history.epoch) == 2
    for one, other in zip(weights[0], parts.model.get_weights()):
        np.testing.assert_array_equal(one, other)


def test_backup_and_restore(tmp_path):
    """A run that dies goes on as if it had not, optimizers included."""

    def trained(epochs, *callbacks, fails=False):
        parts = Parts(lambda model: kp.data_parallel(model, 2))
        trainer = parts.trainer()

        def fail(epoch, logs):
            if epoch == 2:
                raise RuntimeError("the power went")

        dies = keras.callbacks.LambdaCallback(on_epoch_begin=fail)
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
        callbacks = [backup, dies] if fails else [*callbacks, backup]
        trainer.fit(
            *data(16),
            batch_size=8,
            epochs=epochs,
            verbose=0,
            callbacks=callbacks,
        )
        return parts

    straight = trained(4)
    with pytest.raises(RuntimeError, match="the power went"):
        trained(4, fails=True)
    keras.utils.set_random_seed(99)
    resumed = trained(4)
    for one, other in zip(straight.model.variables, resumed.model.variables):
        np.testing.assert_array_equal(one, other)


def test_an_exception_leaves_all_models_usable(parts):
    def fail(batch, predictions):
        if float(np.sum(batch[0])) and int(parts.rpn.optimizer.iterations) > 1:
            raise RuntimeError("no regions")
        return propose(batch, predictions)

    phases = [
        kp.Phase("rpn", parts.rpn),
        kp.Phase("detector", parts.detector, make_batch=fail),
    ]
    trainer = parts.trainer(phases)
    with pytest.raises(RuntimeError, match="no regions"):
        trainer.fit(*data(24), **OPTIONS)
    assert all(layer.trainable for layer in parts.model.layers)
    x, y = data(8)
    for model in (parts.rpn, parts.detector, parts.model):
        assert np.isfinite(model.get_weights()[0]).all()
    parts.rpn.train_on_batch(x, y)
    assert parts.model.predict_on_batch([x, y["boxes"]])[2].shape == (8, 3)


# Files


def test_one_file_holds_all_and_each_part_is_rebuilt_from_it(parts, tmp_path):
    trainer = parts.trainer()
    trainer.fit(*data(16), epochs=2, **OPTIONS)
    path = tmp_path / "all.keras"
    state = np.random.get_state()[1].copy()
    trainer.save(path)
    np.testing.assert_array_equal(state, np.random.get_state()[1])
    assert [p.name for p in tmp_path.iterdir()] == ["all.keras"]
    loaded = keras.saving.load_model(path)
    assert type(loaded) is type(parts.model)
    x, y = data(8)
    rpn = keras.Model(loaded.inputs[0], loaded.outputs[:2])
    found = rpn.predict_on_batch(x)
    expected = parts.rpn.predict_on_batch(x)
    np.testing.assert_allclose(found[0], expected["objectness"], atol=1e-6)
    np.testing.assert_allclose(found[1], expected["boxes"], atol=1e-6)
    detector = keras.Model(loaded.inputs, loaded.outputs[2])
    np.testing.assert_allclose(
        detector.predict_on_batch([x, y["boxes"]]),
        parts.detector.predict_on_batch([x, y["boxes"]]),
        atol=1e-6,
    )


def test_a_file_that_keras_cannot_load_replaces_none(tmp_path):
    """Keras loses a model that is shared by two nested models."""
    inputs = keras.Input((3,))
    backbone = keras.Model(inputs, layers.Dense(4)(inputs))
    heads = []
    for units in (1, 2):
        head = keras.Model(inputs, layers.Dense(units)(backbone(inputs)))
        head.compile("sgd", "mse")
        heads.append(head)
    nested = keras.Model(inputs, [head(inputs) for head in heads])
    phases = [kp.Phase(str(i), head) for i, head in enumerate(heads)]
    path = tmp_path / "all.keras"
    path.write_text("precious")
    trainer = kp.AlternatingTrainer(phases, model=nested)
    with pytest.raises(kp._errors.InputError, match="of their outputs"):
        trainer.save(path)
    assert path.read_text() == "precious"
    flat = keras.Model(inputs, [*heads[0].outputs, *heads[1].outputs])
    kp.AlternatingTrainer(phases, model=flat).save(path)
    assert len(keras.saving.load_model(path).weights) == 6


def test_a_model_that_lacks_a_part_is_not_saved(tmp_path):
    parts = Parts()
    with pytest.warns(UserWarning, match="'detector' trains 2 variables"):
        trainer = kp.AlternatingTrainer(parts.phases(), model=parts.rpn)
    with pytest.raises(kp._errors.InputError, match="classes/kernel"):
        trainer.save(tmp_path / "part.keras")
    # The state has all of it.
    trainer.fit(*data(8), **OPTIONS)
    trainer.save_state(tmp_path / "state.weights.h5")
    other = Parts(seed=5)
    with pytest.warns(UserWarning, match="'detector' trains"):
        resumed = kp.AlternatingTrainer(other.phases(), model=other.rpn)
    resumed.load_state(tmp_path / "state.weights.h5")
    for one, same in zip(parts.model.variables, other.model.variables):
        np.testing.assert_array_equal(one, same)


@pytest.mark.parametrize("method", ["save_state", "load_state"])
def test_a_path_that_is_none_for_a_state(parts, method, tmp_path):
    trainer = parts.trainer()
    with pytest.raises(kp._errors.InputError, match=r"'.weights.h5'.*works"):
        getattr(trainer, method)(tmp_path / "state.pkl")


# Compilations and memory


def test_no_round_compiles_anew_and_memory_stays(parts):
    trainer = parts.trainer()
    trainer.fit(Dataset(20), verbose=0)
    gc.collect()
    arrays, process = len(jax.live_arrays()), psutil.Process()
    memory = process.memory_info().rss
    with active_engine().compilations() as compiled:
        trainer.fit(Dataset(180), verbose=0)
    gc.collect()
    assert [c for c in compiled if "step" in c.name] == []
    assert len(jax.live_arrays()) <= arrays
    assert process.memory_info().rss <= 1.01 * memory


def test_freezing_between_phases_compiles_each_model_once(parts):
    trainer = parts.trainer(parts.four_steps(epochs=1))
    with active_engine().compilations() as compiled:
        trainer.fit(Dataset(3), verbose=0)
        again = len([c for c in compiled if "train_step" in c.name])
        trainer.fit(Dataset(3), verbose=0)
    steps = [c.name for c in compiled if "train_step" in c.name]
    assert len(steps) == again == 4, steps


# Errors


def phase(**options):
    return lambda parts: kp.Phase("rpn", parts.rpn, **options)


MISTAKES = {
    "no name": (lambda p: kp.Phase("", p.rpn), "begin with"),
    "no model": (lambda p: kp.Phase("rpn", "rpn.keras"), "compiled"),
    "not compiled": (lambda p: kp.Phase("rpn", p.model), "not compiled"),
    "no function": (phase(make_batch=3), "function of the batch"),
    "no steps": (phase(steps=0), "at least 1"),
    "every": (phase(every=1.5), "at least 1"),
    "epochs": (phase(epochs=True), "at least 1"),
    "a name": (phase(freeze="conv"), "list of layers"),
    "no layer": (phase(freeze=["convv"]), "near names are \\['conv'"),
    "another": (phase(freeze=[layers.Dense(1)]), "found in it"),
    "no phases": (lambda p: kp.AlternatingTrainer([]), "at least one"),
    "no list": (lambda p: kp.AlternatingTrainer(p.rpn), "list of"),
    "one name": (
        lambda p: p.trainer([kp.Phase("a", p.rpn), kp.Phase("a", p.detector)]),
        "name of its own",
    ),
    "second": (
        lambda p: p.trainer([kp.Phase("a", p.rpn), kp.Phase("b", p.rpn)]),
        "second phase on the same model is given one",
    ),
    "shared optimizer": (
        lambda p: p.trainer(
            [
                kp.Phase("a", p.rpn),
                kp.Phase("b", p.detector, optimizer=p.rpn.optimizer),
            ]
        ),
        "of its own",
    ),
    "no optimizer": (
        lambda p: p.trainer([kp.Phase("a", p.rpn, optimizer="adamm")]),
        "name of one",
    ),
    "no model of all": (
        lambda p: kp.AlternatingTrainer(p.phases()),
        "holds the weights of all",
    ),
    "model": (
        lambda p: kp.AlternatingTrainer(p.phases(), model=3),
        "all parts",
    ),
    "too many epochs": (
        lambda p: p.trainer(p.four_steps()).fit(*data(8), epochs=9),
        "end after 8",
    ),
}


@pytest.mark.parametrize("name", list(MISTAKES))
def test_mistakes(parts, name):
    make, says = MISTAKES[name]
    with pytest.raises(kp._errors.KerasParallelError, match=says) as caught:
        make(parts)
    text = str(caught.value)
    assert "Received: " in text and "A call that works: " in text


BATCHES = {
    "a list": (lambda x, y: [x, y], "a tuple"),
    "an array": (lambda x, y: x[0], "a tuple"),
    "rows": (lambda x, y: (x, y[:3]), "8 in `x`, 3 in `y`"),
    "words": (lambda x, y: (x, "no"), "'no'"),
    "none": (lambda x, y: (None, None), "without an array"),
    "no rows": (lambda x, y: ((x[0][:0], x[1][:0]), y[:0]), "return `None`"),
    "ragged": (
        lambda x, y: (x, np.array([[1], [2, 3]] * 4, dtype=object)),
        "object",
    ),
    "an input less": (lambda x, y: (x[0], y), r"takes inputs of \[\(None, 6\)"),
    "a width": (lambda x, y: ((x[0], x[1][:, :2]), y), r"\(8, 2\)"),
}


@pytest.mark.parametrize("name", list(BATCHES))
@pytest.mark.parametrize("devices", [None, 2])
def test_batches_that_are_none(name, devices):
    make, says = BATCHES[name]
    parallelize = (
        (lambda model: model)
        if devices is None
        else (lambda model: kp.data_parallel(model, devices))
    )
    parts = Parts(parallelize)
    phases = [
        kp.Phase("rpn", parts.rpn),
        kp.Phase("detector", parts.detector, lambda b, p: make(*propose(b, p))),
    ]
    with pytest.raises(kp._errors.InputError, match=says) as caught:
        parts.trainer(phases).fit(*data(8), **OPTIONS)
    assert "phase 'detector'" in str(caught.value)
    assert "Received: " in str(caught.value)


def test_models_that_share_no_layer_warn():
    models = []
    for _ in range(2):
        model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
        model.compile("sgd", "mse")
        models.append(model)
    inputs = keras.Input((3,))
    both = keras.Model(inputs, [model(inputs) for model in models])
    phases = [kp.Phase(str(i), model) for i, model in enumerate(models)]
    with pytest.warns(UserWarning, match="shares no layer") as caught:
        kp.AlternatingTrainer(phases, model=both)
    assert pathlib.Path(caught[0].filename) == pathlib.Path(__file__)


def test_a_state_says_where_it_is(parts, tmp_path):
    import h5py

    trainer = parts.trainer()
    trainer.fit(*data(16), epochs=2, **OPTIONS)
    path = tmp_path / "state.weights.h5"
    trainer.save_state(path)
    found = []
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                found.append(np.asarray(item))
                if name.endswith("/position") and isinstance(item, h5py.Dataset)
                else None
            )
        )
    position = json.loads(bytes(found[0]).decode())
    assert (position["epoch"], position["round"]) == (2, 4)
