"""Phases in turn train as the loop by hand does, on however many devices."""

import itertools

import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from keras_parallel.testing import _state
from tests.alternating import Parts
from tests.alternating import adam
from tests.alternating import data
from tests.alternating import largest
from tests.alternating import momentum
from tests.alternating import part
from tests.alternating import propose
from tests.alternating import state_of

ROWS, BATCH = 28, 8  # The last batch of an epoch has 4 rows.


def batches(rows=ROWS, batch=BATCH):
    x, y = data(rows)
    for start in range(0, rows, batch):
        yield part((x, y), slice(start, start + batch))


def plain(model):
    return model


def staged(model):
    """The backbone on one device, each head on another."""
    placement = {
        layer.name: "gpu:0" if layer.name in ("conv", "norm") else "gpu:1"
        for layer in model.layers
        if not isinstance(layer, layers.InputLayer)
    }
    return kp.device_parallel(model, placement)


WAYS = {
    "one": lambda model: kp.data_parallel(model, 1),
    "two": lambda model: kp.data_parallel(model, 2),
    "four": lambda model: kp.data_parallel(model, 4),
    "sharded": lambda model: kp.data_parallel(model, 2, shard_optimizer=True),
    "staged": staged,
}


def by_hand(parts, epochs):
    """The loop that people write today, in plain Keras.

    Returns:
        For each epoch the means over its rows of what each batch logged.
    """
    means = []
    for _ in range(epochs):
        logs, rows = [], []
        for x, y in batches():
            rpn = parts.rpn.train_on_batch(x, y, return_dict=True)
            found = parts.rpn.predict_on_batch(x)
            made = propose((x, y), {"rpn": found})
            detector = parts.detector.train_on_batch(*made, return_dict=True)
            logs.append((rpn["loss"], detector["loss"], detector["accuracy"]))
            rows.append(len(x))
        means.append(np.average(logs, axis=0, weights=rows))
    return means


def test_a_trainer_does_what_the_loop_by_hand_does():
    hand, parts = Parts(), Parts()
    losses = by_hand(hand, 3)
    trainer = parts.trainer()
    history = trainer.fit(
        *data(ROWS), batch_size=BATCH, epochs=3, shuffle=False, verbose=0
    ).history
    names = ("rpn_loss", "detector_loss", "detector_accuracy")
    found = list(zip(*map(history.get, names)))
    np.testing.assert_allclose(found, losses, rtol=1e-6)
    # Validation is a mean over all rows too.
    evaluated = trainer.evaluate(*data(ROWS), batch_size=BATCH, verbose=0)
    x, y = data(ROWS)
    whole = hand.rpn.evaluate(x, y, batch_size=BATCH, verbose=0)
    np.testing.assert_allclose(evaluated["rpn_loss"], whole[0], rtol=1e-6)
    for one, other in zip(hand.model.variables, parts.model.variables):
        np.testing.assert_array_equal(one, other)
    for ours, theirs in (
        (parts.rpn, hand.rpn),
        (parts.detector, hand.detector),
    ):
        for one, other in zip(
            ours.optimizer.variables, theirs.optimizer.variables
        ):
            np.testing.assert_array_equal(one, other)


def by_hand_in_four_steps(parts, epochs=2):
    def train_rpn():
        for x, y in batches():
            parts.rpn.train_on_batch(x, y)

    def train_detector():
        for x, y in batches():
            found = parts.rpn.predict_on_batch(x)
            parts.detector.train_on_batch(*propose((x, y), {"rpn": found}))

    for _ in range(epochs):
        train_rpn()
    for _ in range(epochs):
        train_detector()
    parts.backbone.trainable = False
    parts.rpn.compile(
        adam(2e-2), {"objectness": "binary_crossentropy", "boxes": "mse"}
    )
    parts.detector.compile(momentum(), "sparse_categorical_crossentropy")
    for _ in range(epochs):
        train_rpn()
    for _ in range(epochs):
        train_detector()
    parts.backbone.trainable = True


def test_the_four_steps_by_hand():
    """With freezing and a new optimizer where Keras is compiled again."""
    hand, parts = Parts(), Parts()
    by_hand_in_four_steps(hand)
    trainer = parts.trainer(parts.four_steps())
    history = trainer.fit(
        *data(ROWS), batch_size=BATCH, shuffle=False, verbose=0
    ).history
    assert len(history["rpn_loss"]) == len(history["rpn_heads_loss"]) == 2
    assert "detector_head_accuracy" in history
    for one, other in zip(hand.model.variables, parts.model.variables):
        np.testing.assert_array_equal(one, other)


SCHEDULES = {"per_batch": lambda parts: None, "four_steps": Parts.four_steps}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_one_epoch_from_the_same_state(way, schedule, tmp_path):
    """Each epoch of one batch begins where one device has come to."""
    one, many = Parts(plain), Parts(WAYS[way])
    phases = SCHEDULES[schedule]
    on_one, on_many = one.trainer(phases(one)), many.trainer(phases(many))
    worst, file = (0.0, ""), tmp_path / "state.weights.h5"
    for epoch, batch in enumerate(itertools.chain(batches(), batches())):
        on_one.save_state(file)
        on_many.load_state(file)
        before = state_of(on_one)
        options = {"initial_epoch": epoch, "epochs": epoch + 1}
        options |= {"shuffle": False, "verbose": 0}
        logs = [
            trainer.fit(*batch, batch_size=BATCH, **options).history
            for trainer in (on_one, on_many)
        ]
        assert logs[0].keys() == logs[1].keys()
        for key in logs[0]:
            np.testing.assert_allclose(*[found[key] for found in logs], 2e-6)
        found = _state.differences_of_step(
            before, state_of(on_one), state_of(on_many)
        )
        worst = max(worst, largest(found))
    assert worst < (1e-6,)


@pytest.mark.parametrize("way", list(WAYS))
def test_twenty_rounds_equal_one_device(way):
    states = []
    for parallelize in (plain, WAYS[way]):
        parts = Parts(parallelize)
        trainer = parts.trainer()
        trainer.fit(
            *data(ROWS), batch_size=BATCH, epochs=5, shuffle=False, verbose=0
        )
        states.append(state_of(trainer))
    assert largest(_state.differences(*states)) < (1e-5,)


def test_what_a_phase_freezes_stays_and_others_do_not_notice():
    parts = Parts()
    phases = [
        kp.Phase("rpn", parts.rpn, freeze=["conv", "norm"]),
        kp.Phase("detector", parts.detector, make_batch=propose),
    ]
    trainer = parts.trainer(phases)
    seen = []

    def watch(batch, predictions):
        seen.append([np.array(v) for v in parts.backbone.variables])
        return propose(batch, predictions)

    phases[1] = kp.Phase("detector", parts.detector, make_batch=watch)
    trainer = parts.trainer(phases)
    before = [np.array(v) for v in parts.backbone.variables]
    trainer.fit(*data(8), batch_size=8, epochs=2, verbose=0)
    # The statistics of its BatchNormalization too.
    for first, found in zip(before, seen[0]):
        np.testing.assert_array_equal(first, found)
    for found, later in zip(seen[0], seen[1]):
        assert np.abs(found - later).max() > 0
    assert all(layer.trainable for layer in parts.backbone.layers)


def gan(parallelize=plain, seed=0):
    keras.utils.set_random_seed(seed)
    noise, sample = keras.Input((3,)), keras.Input((5,))
    generator = keras.Sequential(
        [noise, layers.Dense(8, "relu"), layers.Dense(5)], name="generator"
    )
    discriminator = keras.Sequential(
        [
            sample,
            layers.Dense(8, "relu"),
            layers.BatchNormalization(),
            layers.Dense(1, "sigmoid"),
        ],
        name="discriminator",
    )
    both = keras.Model(noise, discriminator(generator(noise)), name="both")
    discriminator_ = parallelize(discriminator)
    both_ = parallelize(both)
    discriminator_.compile(adam(), "binary_crossentropy")
    both_.compile(adam(), "binary_crossentropy")
    rng = np.random.default_rng(seed)

    def real_and_made(batch, predictions):
        del predictions
        made = generator.predict_on_batch(rng.normal(size=(len(batch), 3)))
        x = np.concatenate([batch, made])
        return x, np.repeat([[1.0], [0.0]], len(batch), axis=0)

    def noise_to_real(batch, predictions):
        del predictions
        return rng.normal(size=(len(batch), 3)), np.ones((len(batch), 1))

    trainer = kp.AlternatingTrainer(
        [
            kp.Phase("discriminator", discriminator_, real_and_made, steps=2),
            kp.Phase("generator", both_, noise_to_real, freeze=[discriminator]),
        ]
    )
    return trainer, generator, discriminator, both


@pytest.mark.parametrize("way", ["plain", "two", "four"])
def test_a_gan(way):
    """Trained by hand on one device, the numbers are the same."""
    trainer, generator, _, both = gan(WAYS.get(way, plain))
    real = np.random.default_rng(1).normal(size=(24, 5))
    trainer.fit(real, batch_size=8, epochs=2, shuffle=False, verbose=0)

    _, hand, discriminator, both_by_hand = gan()
    discriminator.compile(adam(), "binary_crossentropy")
    discriminator.trainable = False
    both_by_hand.compile(adam(), "binary_crossentropy")
    discriminator.trainable = True
    rng = np.random.default_rng(0)
    for start in [0, 8, 16] * 2:
        batch = real[start : start + 8]
        for _ in range(2):
            made = hand.predict_on_batch(rng.normal(size=(8, 3)))
            discriminator.train_on_batch(
                np.concatenate([batch, made]),
                np.repeat([[1.0], [0.0]], 8, axis=0),
            )
        discriminator.trainable = False
        noise = rng.normal(size=(8, 3))
        both_by_hand.train_on_batch(noise, np.ones((8, 1)))
        discriminator.trainable = True
    assert len(generator.trainable_variables) == 4
    for one, other in zip(both_by_hand.variables, both.variables):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["plain", "two"])
def test_a_model_frozen_after_it_was_compiled_trains_in_its_phase(way):
    """A02, A08: what is trained is captured when a model is compiled."""
    keras.utils.set_random_seed(0)
    sample, noise = keras.Input((5,)), keras.Input((3,))
    discriminator = keras.Sequential([sample, layers.Dense(1)])
    in_turn = WAYS.get(way, plain)(discriminator)
    in_turn.compile("sgd", "mse")
    in_turn.trainable = False
    made = layers.Dense(5, name="made")(noise)
    both = keras.Model(noise, discriminator(made))
    both.compile("sgd", "mse")
    before = [np.array(v) for v in both.variables]
    seen = []

    def to_both(batch, predictions):
        seen.append([np.array(v) for v in both.variables])
        return batch[0][:, :3], batch[1]

    trainer = kp.AlternatingTrainer(
        [
            kp.Phase("discriminator", in_turn),
            kp.Phase("generator", both, make_batch=to_both),
        ]
    )
    x, y = np.ones((4, 5), "float32"), np.ones((4, 1), "float32")
    trainer.fit(x, y, verbose=0)
    moved = [np.abs(a - b).max() > 0 for a, b in zip(before, seen[0])]
    assert moved == ["made" not in v.path for v in both.variables]
    moved = [
        np.abs(a - np.array(v)).max() > 0
        for a, v in zip(seen[0], both.variables)
    ]
    assert moved == ["made" in v.path for v in both.variables]
    assert not discriminator.trainable


def _moved(before, after):
    return [bool(np.abs(a - b).max() > 0) for a, b in zip(before, after)]


@pytest.mark.parametrize("way", ["plain", "two", "staged"])
def test_an_optimizer_that_was_built_for_more_than_a_phase_trains(way):
    """It moves the heads as plain Keras with the backbone frozen does."""

    def averages():
        return keras.optimizers.SGD(
            1e-2, momentum=0.9, use_ema=True, ema_overwrite_frequency=3
        )

    x, y = next(batches())
    hand = Parts(optimizers=(averages, momentum))
    parts = Parts(WAYS.get(way, plain), optimizers=(averages, momentum))
    for model in (hand.rpn, parts.rpn):
        for _ in range(2):
            model.train_on_batch(x, y)
    slots = _by_path(parts.rpn.optimizer)
    known = _by_path(hand.rpn.optimizer)

    # An optimizer for the heads alone, with the slots that they had.
    hand.backbone.trainable = False
    losses = {"objectness": "binary_crossentropy", "boxes": "mse"}
    hand.rpn.compile(averages(), losses)
    hand.rpn.optimizer.build(hand.rpn.trainable_variables)
    for variable in hand.rpn.optimizer.variables:
        variable.assign(known[_unnumbered(variable.path)])

    trainer = kp.AlternatingTrainer(
        [kp.Phase("heads", parts.rpn, freeze=[parts.backbone])]
    )
    for _ in range(2):
        hand.rpn.train_on_batch(x, y)
        trainer._conductor._keras_parallel.train_round((x, y))
    for one, other in zip(hand.rpn.variables, parts.rpn.variables):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-7)
    after = _by_path(parts.rpn.optimizer)
    assert after["iteration"] == 4
    for path, value in _by_path(hand.rpn.optimizer).items():
        np.testing.assert_allclose(after[path], value, rtol=1e-5, atol=1e-7)
    still = [p for p in slots if p.startswith(("conv_", "norm_"))]
    assert len(still) == 8
    for path in still:
        np.testing.assert_array_equal(after[path], slots[path])
    # The model trains on as a whole.
    parts.rpn.train_on_batch(x, y)


def _by_path(optimizer):
    return {_unnumbered(v.path): np.array(v) for v in optimizer.variables}


def _unnumbered(path):
    """The path of a slot without the name of its optimizer."""
    return path.partition("/")[2]


def test_a_run_that_is_resumed_equals_one_that_was_not(tmp_path):
    """Shuffled, with dropout, with a `make_batch` that draws, every 2."""

    def made():
        parts = Parts(WAYS["two"], seed=3)

        def draw(batch, predictions):
            x, labels = propose(batch, predictions)
            return x, labels, np.random.uniform(size=len(labels))

        phases = [
            kp.Phase("rpn", parts.rpn),
            kp.Phase("detector", parts.detector, draw, every=2),
        ]
        return parts.trainer(phases)

    options = {"batch_size": BATCH, "verbose": 0}
    trainer = made()
    trainer.fit(*data(ROWS), epochs=3, **options)
    straight = state_of(trainer)

    trainer = made()
    trainer.fit(*data(ROWS), epochs=1, **options)
    trainer.save_state(tmp_path / "half.weights.h5")
    trainer = made()
    keras.utils.set_random_seed(17)
    trainer.load_state(tmp_path / "half.weights.h5")
    trainer.fit(*data(ROWS), epochs=3, **options)
    found = _state.raw_differences(straight, state_of(trainer))
    assert largest(found) == (0.0, largest(found)[1])
