"""`shard_optimizer=True`: equal numbers, and a part of each slot per device."""

import functools
import math
import re

import jax
import keras
import numpy as np
import pytest
from keras import layers
from keras import optimizers

import keras_parallel as kp
from tests import helpers
from tests import models
from tests import selection
from tests.equivalence.test_features import of_policy

ROWS = 53  # A prime: two batches of 24 and one of 5.
X, Y = models.regression(ROWS, np.random.default_rng(3))
FIT = {"batch_size": 24, "shuffle": False, "verbose": 0}

sharded = functools.partial(kp.data_parallel, shard_optimizer=True)


def make_model(optimizer=None, **options):
    """24 units divide by 2, 3 and 8 devices; 6 features and 1 score do not."""
    inputs = keras.Input((6,))
    hidden = layers.Dense(24, use_bias=False, name="hidden")(inputs)
    hidden = layers.BatchNormalization()(hidden)
    hidden = layers.Dropout(0.3)(layers.Activation("tanh")(hidden))
    model = keras.Model(inputs, layers.Dense(1, name="score")(hidden))
    model.compile(optimizer or optimizers.Adam(0.01), "mse", **options)
    return model


def batches():
    return [(X[i : i + 24], Y[i : i + 24]) for i in range(0, ROWS, 24)]


def check(make_model, devices, parallelize=sharded, steps=3):
    kp.testing.assert_trains_like_one_device(
        make_model,
        batches,
        devices=devices,
        steps=steps,
        parallelize=parallelize,
    )


CASES = {
    "Adam": lambda: optimizers.Adam(0.01, amsgrad=True),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "Muon": lambda: optimizers.Muon(0.01),
    "MultiOptimizer": lambda: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(
            models.sgd(), {"hidden/.*": optimizers.AdamW(0.01)}
        )
    ),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(
        models.sgd(), initial_scale=64.0, dynamic_growth_steps=2
    ),
    "averages": lambda: models.sgd(
        use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "accumulation": lambda: models.sgd(
        gradient_accumulation_steps=2, clipnorm=0.5
    ),
    "global_clipnorm": lambda: models.sgd(global_clipnorm=0.1),
}


@pytest.mark.parametrize(
    ("case", "devices"), selection.in_turn(CASES, (2, 8, 3))
)
def test_optimizers(case, devices):
    check(lambda: make_model(CASES[case]()), devices)


@pytest.mark.parametrize(
    ("policy", "devices"), [("mixed_bfloat16", 8), ("mixed_float16", 3)]
)
def test_mixed_precision(policy, devices):
    check(of_policy(policy, lambda: make_model(models.sgd())), devices)


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (2, {}),
        (3, {"steps_per_execution": 2}),
        (3, {"run_eagerly": True}),
        # Operations one by one, too.
        selection.case(8, {"jit_compile": False}, needed=False),
    ],
)
def test_fit(devices, options):
    """Nobody looks at a slot between the steps, nor between the methods."""
    results = []
    for parallelize in (lambda m: m, lambda m: sharded(m, devices)):
        model = parallelize(helpers.seeded(lambda: make_model(**options)))
        history = model.fit(X, Y, epochs=2, **FIT).history
        for x, y in batches():
            model.train_on_batch(x, y)
        history |= model.fit(X, Y, validation_data=(X, Y), **FIT).history
        results.append((history, helpers.state_of(model)))
    helpers.assert_close(*results)


def bytes_on_each(variables):
    """Device -> what it really holds of `variables`."""
    held = {}
    for variable in variables:
        for shard in variable.value.addressable_shards:
            held.setdefault(shard.device, []).append(shard.data.nbytes)
    return {device: sum(sizes) for device, sizes in held.items()}


@pytest.mark.parametrize("devices", [3, 8])
def test_each_device_holds_its_part_of_the_slots(devices):
    parallel = sharded(make_model(), devices)
    replicas = parallel._keras_parallel.replicas
    held = []

    def look(batch, logs):
        slots = parallel.optimizer.variables
        held.append([bytes_on_each(slots), bytes_on_each(parallel.weights)])

    look = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    parallel.fit(X, Y, callbacks=[look], **FIT)
    slots = parallel.optimizer.variables
    planned = kp.plan(parallel, batch_size=24).shares[0].optimizer
    # Two slots each of: a kernel, gamma and beta of 24 units, a kernel.
    split = 2 * 4 * (6 * 24 + 24 + 24 + 24)
    # Two of a bias; iterations, learning rate.
    whole = 2 * 4 + 2 * 4
    assert planned == split // devices + whole
    weights = sum(4 * np.size(v) for v in parallel.weights)
    assert len(held) == 3
    for of_slots, of_weights in held:
        assert len(of_slots) == len(of_weights) == devices
        assert set(of_slots.values()) == {planned}
        assert set(of_weights.values()) == {weights}
    assert bytes_on_each(slots) == {replicas.home: split + whole}


def test_a_loop_of_train_on_batch_gathers_nothing(monkeypatch):
    from keras_parallel.engines.jax import _apart

    parallel = sharded(make_model(), 4)
    x, y = batches()[0]
    parallel.train_on_batch(x, y)
    moved = []
    device_put = jax.device_put

    def watched(values, *args, **kwargs):
        moved.extend(a for a in jax.tree.leaves(values) if np.size(a) > x.size)
        return device_put(values, *args, **kwargs)

    monkeypatch.setattr(jax, "device_put", watched)
    monkeypatch.setattr(_apart, "gathered", lambda *args: moved.append(args))
    for _ in range(3):
        parallel.train_on_batch(x, y)
        parallel.test_on_batch(x, y)
    parallel.fit(x, y, verbose=0)
    assert moved == []


def test_one_compilation_for_each_shape_of_a_batch():
    parallel = sharded(make_model(), 8)
    with helpers.compilations() as counts:
        for _ in range(2):
            parallel.fit(X, Y, epochs=2, **FIT)
            parallel.train_on_batch(*batches()[0])
            helpers.state_of(parallel)
    assert counts["train_step"] == 2


def collectives_of_a_step(parallel):
    """Kind of collective -> sizes of its results, from the compiled step."""
    x, y = batches()[0]
    parallel.train_on_batch(x, y)
    place = parallel._keras_parallel.batch_preparation(parallel, "train")
    found = {}

    def lower(batch, logs):
        state = parallel._keras_parallel.states["train"].read()
        step = jax.jit(parallel.train_step)
        text = step.lower(state, place((x, y, None))).compile().as_text()
        pattern = r"= (\S+|\(.*?\)) (all-\w+|reduce-scatter)(?:-start)?\("
        for shapes, kind in re.findall(pattern, text):
            for dims in re.findall(r"\[([\d,]*)\]", shapes):
                size = math.prod(int(n) for n in dims.split(",") if n)
                found.setdefault(kind, []).append(size)

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lower)
    parallel.fit(x, y, callbacks=[callback], **FIT)
    return {kind: sorted(sizes) for kind, sizes in found.items()}


def test_a_step_exchanges_gradients_and_new_weights_only():
    """No slot crosses, and nothing else does that did not before."""
    before = collectives_of_a_step(kp.data_parallel(make_model(), 4))
    after = collectives_of_a_step(sharded(make_model(), 4))
    assert set(before) == {"all-reduce"}
    # A kernel, gamma, beta, a kernel; a bias of 1 entry is whole anyway.
    gathered = [24, 24, 24, 6 * 24]
    assert after == before | {"all-gather": gathered}
    plan = kp.plan(sharded(make_model(), 4), batch_size=24)
    (new_weights,) = [c for c in plan.collectives if c.kind == "all-gather"]
    assert new_weights.count == len(gathered)
    assert new_weights.bytes == sum(gathered)  # 4 bytes, of 4 devices each.
    assert "but for 4 that do not divide, 16 B" in str(plan)


# Faults. Each returns a `parallelize`.


def with_slots(change):
    """A `parallelize` whose step returns what `change` makes of the slots."""

    def parallelize(model, devices):
        parallel = sharded(model, devices)
        cls = type(parallel)  # Made for this model only.
        inner = cls.train_step

        def train_step(self, state, data):
            logs, new = inner(self, state, data)
            slots = [change(o, n, devices) for o, n in zip(state[2], new[2])]
            return logs, (new[0], new[1], slots, new[3])

        cls.train_step = train_step
        return parallel

    return parallelize


def part_that_is_not_updated(old, new, devices):
    rows = new.shape[0] // devices if new.ndim else 0
    return new.at[:rows].set(old[:rows]) if rows else new


def parts_in_another_order(old, new, devices):
    rows = new.shape[0] // devices if new.ndim else 0
    return keras.ops.roll(new, rows, 0) if rows else new


def slot_summed_over_devices(old, new, devices):
    return new * devices if new.ndim else new


@pytest.mark.parametrize(
    "fault",
    [
        part_that_is_not_updated,
        parts_in_another_order,
        slot_summed_over_devices,
    ],
)
def test_fault_is_red(fault):
    with pytest.raises(kp._errors.NotEqualError, match="In step 1"):
        check(make_model, 3, with_slots(fault), steps=1)


def test_weights_that_are_not_exchanged_are_red():
    """Each device updates its part, and the others keep the old one."""

    def parallelize(model, devices):
        parallel = sharded(model, devices)
        cls = type(parallel)
        inner = cls.train_step

        def train_step(self, state, data):
            logs, new = inner(self, state, data)
            kept = [
                n.at[: len(n) // devices].set(o[: len(n) // devices])
                for o, n in zip(state[0], new[0])
            ]
            return logs, (kept, *new[1:])

        cls.train_step = train_step
        return parallel

    with pytest.raises(kp._errors.NotEqualError, match="In step 1"):
        check(make_model, 3, parallelize, steps=1)
