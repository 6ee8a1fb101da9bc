"""Whoever reads or writes a slot that is sharded finds the whole slot.

Callbacks, files, other models that share the optimizer, and the model after
an exception.
"""

import copy
import functools
import pickle
import signal

import jax
import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel as kp
from tests import helpers
from tests import models

X, Y = models.regression(53, np.random.default_rng(3))
FIT = {"batch_size": 24, "shuffle": False, "verbose": 0}
EPOCHS, STOPPED = 3, 2

sharded = functools.partial(kp.data_parallel, shard_optimizer=True)


def make_model(optimizer=None):
    inputs = keras.Input((6,))
    hidden = layers.Dense(24, "tanh", name="hidden")(inputs)
    hidden = layers.Dropout(0.3)(hidden)
    model = keras.Model(inputs, layers.Dense(1, name="score")(hidden))
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse")
    return model


def make_steady_model():
    """Without dropout, whose state is in no file of plain Keras."""
    inputs = keras.Input((6,))
    hidden = layers.Dense(24, "tanh", name="hidden")(inputs)
    model = keras.Model(inputs, layers.Dense(1, name="score")(hidden))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def new_model():
    return helpers.seeded(make_model)


@functools.cache
def straight_run(epochs=EPOCHS):
    model = new_model()
    model.fit(X, Y, epochs=epochs, **FIT)
    return helpers.state_of(model)


def slot_of(model):
    """A slot that 2, 3 and 8 devices divide."""
    (slot,) = (
        v for v in model.optimizer.variables if "hidden_kernel_vel" in v.name
    )
    return slot


def lies_on(slot):
    """Where the slot lies, without asking it for its value."""
    return len(vars(slot)["_value"].devices())


def assert_at_home(model):
    """Every variable is one of Keras's that holds a one-device array."""
    home = model._keras_parallel.replicas.home
    for variable in model.variables + model.optimizer.variables:
        value = variable.value
        assert value.devices() == {home} and not value.committed
        assert type(variable) is keras.Variable
        assert variable.value is value


# Variables


def test_a_slot_is_gathered_when_it_is_asked_for():
    parallel = sharded(new_model(), 8)
    parallel.fit(X, Y, epochs=EPOCHS, **FIT)
    slot = slot_of(parallel)
    assert lies_on(slot) == 8
    helpers.assert_close(straight_run(), helpers.state_of(parallel))
    # Files are written through the host.
    assert lies_on(slot) == 8
    assert isinstance(slot, keras.Variable)
    assert_at_home(parallel)
    helpers.assert_close(straight_run(), helpers.state_of(parallel))


@pytest.mark.parametrize(
    "look",
    [
        lambda v: v.value,
        lambda v: v + 1,
        lambda v: v[0],
        repr,
        keras.ops.convert_to_tensor,
        keras.ops.sum,
    ],
)
def test_whatever_asks_for_the_value_gathers_it(look):
    parallel = sharded(new_model(), 3)
    parallel.train_on_batch(X[:24], Y[:24])
    slot = slot_of(parallel)
    expected = slot.numpy()
    assert lies_on(slot) == 3
    look(slot)
    assert lies_on(slot) == 1 and type(slot) is keras.Variable
    np.testing.assert_array_equal(slot.numpy(), expected)


def test_what_does_not_need_the_value_leaves_it():
    parallel = sharded(new_model(), 3)
    parallel.train_on_batch(X[:24], Y[:24])
    slot = slot_of(parallel)
    assert slot.shape == (6, 24) and slot.dtype == "float32"
    assert type(slot).__name__ == "Variable"
    parallel.evaluate(X, Y, verbose=0)
    parallel.predict(X, verbose=0)
    np.asarray(slot), np.array(slot), keras.ops.convert_to_numpy(slot)
    assert lies_on(slot) == 3
    other = np.ones((6, 24), "float32")
    with keras.StatelessScope([(slot, keras.ops.convert_to_tensor(other))]):
        np.testing.assert_array_equal(slot.numpy(), other)
    slot.assign(other)
    assert type(slot) is keras.Variable
    np.testing.assert_array_equal(slot.numpy(), other)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
)
def test_a_copy_of_a_slot_is_a_variable_of_keras(copied):
    parallel = sharded(new_model(), 3)
    parallel.train_on_batch(X[:24], Y[:24])
    slot = slot_of(parallel)
    expected = slot.numpy()
    again = copied(slot)
    assert type(again) is keras.Variable
    np.testing.assert_array_equal(again.numpy(), expected)


# Callbacks


def test_slots_assigned_by_a_callback_count():
    """Read and assigned before each step, and at the end of the epoch."""
    plain, parallel = new_model(), sharded(new_model(), 3)
    for model in (plain, parallel):
        model.train_on_batch(X[:24], Y[:24])
    seen = {plain: [], parallel: []}

    def halve(model):
        slot = slot_of(model)
        seen[model].append(slot.numpy())
        slot.assign(slot / 2)
        seen[model].append(np.asarray(slot.value))
        model.optimizer.variables[-1].assign(np.ones((1,)))

    callback = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda step, logs: halve(parallel),
        on_epoch_end=lambda epoch, logs: halve(parallel),
    )
    parallel.fit(X, Y, callbacks=[callback], **FIT)
    # Callbacks of one device meet the values of an epoch before.
    for i in (0, 24, 48):
        halve(plain)
        plain.train_on_batch(X[i : i + 24], Y[i : i + 24])
    halve(plain)
    assert len(seen[plain]) == 8
    helpers.assert_close(seen[plain], seen[parallel])
    helpers.assert_close(helpers.state_of(plain), helpers.state_of(parallel))


def test_averages_of_weights_become_the_weights():
    """At the end of `fit`, where weights are assigned what is sharded."""
    plain, template = (
        helpers.seeded(
            lambda: make_model(models.sgd(use_ema=True, ema_momentum=0.8))
        )
        for _ in range(2)
    )
    parallel = sharded(template, 8)
    for model in (plain, parallel):
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        model.fit(X, Y, epochs=2, callbacks=[swap], **FIT)
    state = helpers.state_of(plain)
    helpers.assert_close(state, helpers.state_of(parallel))
    assert_at_home(parallel)
    # On one device these fail: weights and averages are the same arrays.
    for model in (parallel, kp.data_parallel(template, 3)):
        model.predict(X, verbose=0)
        helpers.assert_close(state, helpers.state_of(model))
        model.fit(X, Y, **FIT)
        model.predict(X, verbose=0)
        state = helpers.state_of(model)
        assert np.isfinite(state[0]).all()


class Stop(keras.callbacks.Callback):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == 2:
            self.how()


def fail():
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("how", "error"),
    [
        (fail, ZeroDivisionError),
        (lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt),
    ],
)
def test_after_an_exception_the_model_goes_on_alone(how, error):
    plain = new_model()
    template = new_model()
    parallel = sharded(template, 3)
    with pytest.raises(error):
        parallel.fit(X, Y, callbacks=[Stop(how)], **FIT)
    for i in (0, 24, 48):
        plain.train_on_batch(X[i : i + 24], Y[i : i + 24])
    template.train_on_batch(X[48:], Y[48:])
    helpers.assert_close(helpers.state_of(plain), helpers.state_of(template))
    assert_at_home(parallel)


# Files


@pytest.mark.parametrize(
    ("saved_on", "resume"),
    [
        (8, lambda m: m),
        (2, lambda m: sharded(m, 3)),
        (3, lambda m: kp.data_parallel(m, 2)),
    ],
    ids=["plain", "sharded", "whole"],
)
@pytest.mark.parametrize("file", ["m.keras", "m.weights.h5"])
def test_resumed_equals_a_run_that_never_stopped(
    saved_on, resume, file, tmp_path
):
    path = tmp_path / file
    parallel = sharded(helpers.seeded(make_steady_model), saved_on)
    parallel.fit(X, Y, epochs=STOPPED, **FIT)
    (parallel.save if file == "m.keras" else parallel.save_weights)(path)
    assert lies_on(slot_of(parallel)) == saved_on
    if file == "m.keras":
        resumed = resume(keras.models.load_model(path))
    else:
        template = helpers.seeded(make_steady_model, 7)
        template.optimizer.build(template.trainable_variables)
        resumed = resume(template)
        resumed.load_weights(path)
    expected = helpers.seeded(make_steady_model)
    expected.fit(X, Y, epochs=EPOCHS, **FIT)
    for model in (parallel, resumed):
        model.fit(X, Y, epochs=EPOCHS, initial_epoch=STOPPED, **FIT)
        helpers.assert_close(
            helpers.state_of(expected), helpers.state_of(model)
        )


def test_callbacks_that_write_files(tmp_path):
    parallel = sharded(new_model(), 3)
    homes = []

    def note(epoch, logs):
        tree = parallel.get_state_tree()
        homes.extend(len(array.devices()) for array in jax.tree.leaves(tree))

    callbacks = [
        keras.callbacks.BackupAndRestore(tmp_path / "backup"),
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras"),
        keras.callbacks.LambdaCallback(on_epoch_end=note),
    ]

    def stop(epoch, logs):
        if epoch == STOPPED:
            raise ZeroDivisionError

    options = {"epochs": EPOCHS, **FIT}
    crash = keras.callbacks.LambdaCallback(on_epoch_begin=stop)
    with pytest.raises(ZeroDivisionError):
        parallel.fit(X, Y, callbacks=[*callbacks, crash], **options)
    assert set(homes) == {1}
    loaded = keras.models.load_model(tmp_path / f"{STOPPED}.keras")
    helpers.assert_close(helpers.state_of(parallel), helpers.state_of(loaded))
    again = sharded(helpers.seeded(make_model, 7), 2)
    again.fit(X, Y, callbacks=callbacks[:1], **options)
    helpers.assert_close(straight_run(), helpers.state_of(again))


def test_weights_exported_after_training_need_one_device(tmp_path):
    parallel = sharded(new_model(), 3)
    parallel.fit(X, Y, **FIT)
    expected = parallel.predict(X, verbose=0)
    call = jax.jit(
        lambda x: parallel.stateless_call(
            [v.value for v in parallel.trainable_variables],
            [v.value for v in parallel.non_trainable_variables],
            x,
        )[0]
    )
    result = call(X)
    assert len(result.devices()) == 1
    helpers.assert_close(expected, result)


# Models that share the optimizer


def test_models_that_share_an_optimizer_take_turns():
    """Other devices, not sharded, and the plain model."""
    plain, template = new_model(), new_model()
    sharing = [
        sharded(template, 3),
        template,
        sharded(template, 2),
        kp.data_parallel(template, 4),
        sharded(template, ["gpu:5", "gpu:3"]),
        kp.data_parallel(template, 3),
    ]
    for model in sharing:
        model.fit(X, Y, **FIT)
        plain.fit(X, Y, **FIT)
    helpers.assert_close(helpers.state_of(plain), helpers.state_of(template))


def test_one_inside_a_step_of_another():
    plain, template = new_model(), new_model()
    inner = sharded(template, 2)
    x, y = X[:24], Y[:24]

    def train(model):
        return keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda step, logs: model.train_on_batch(x, y)
        )

    sharded(template, 3).fit(X, Y, callbacks=[train(inner)], **FIT)
    for i in (0, 24, 48):
        plain.train_on_batch(X[i : i + 24], Y[i : i + 24])
        plain.train_on_batch(x, y)
    helpers.assert_close(helpers.state_of(plain), helpers.state_of(template))


def test_training_again_and_again_leaks_nothing():
    parallel = sharded(new_model(), 3)

    def train():
        for _ in range(3):
            parallel.train_on_batch(X[:24], Y[:24])
        parallel.fit(X[:24], Y[:24], verbose=0)
        slot_of(parallel).assign(slot_of(parallel) / 2)
        return len(jax.live_arrays())

    train()
    after_first = train()
    for _ in range(3):
        last = train()
    assert last <= after_first


# The call


def test_a_copy_of_the_model_keeps_it():
    parallel = sharded(new_model(), 3)
    parallel.fit(X, Y, **FIT)
    copied = copy.deepcopy(parallel)
    assert lies_on(slot_of(parallel)) == 3
    assert lies_on(slot_of(copied)) == 1
    copied.fit(X, Y, **FIT)
    assert lies_on(slot_of(copied)) == 3


@pytest.mark.parametrize("value", [1, "yes", None, [True]])
def test_neither_true_nor_false(value):
    with pytest.raises(kp._errors.InputError) as caught:
        kp.data_parallel(new_model(), 2, shard_optimizer=value)
    helpers.assert_teaches(caught.value)


def test_on_one_device_it_changes_nothing():
    parallel = sharded(new_model(), 1)
    parallel.fit(X, Y, epochs=EPOCHS, **FIT)
    helpers.assert_close(straight_run(), helpers.state_of(parallel), 1e-6)
    assert lies_on(slot_of(parallel)) == 1
    assert_at_home(parallel)


def test_off_by_default():
    parallel = kp.data_parallel(new_model(), 3)
    seen = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: seen.append(
            slot_of(parallel).value.is_fully_replicated
        )
    )
    parallel.fit(X, Y, callbacks=[look], **FIT)
    assert seen == [True] * 3
