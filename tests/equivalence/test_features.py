"""What `compile` can be given, on several devices as on one.

H13 (loss scaling), H14 (schedules), T02, T34 (metrics that were summed), J04
(every built-in metric), J16 (LoRA), T05 (metrics that stay finite).
"""

import inspect
import itertools

import keras
import numpy as np
import pytest
from keras import layers
from keras import optimizers
from keras.optimizers import schedules

import keras_parallel as kp
from tests import helpers
from tests import models
from tests import selection

DEVICES = (1, 2, 8)
ROWS = 53  # A prime: two batches of 24 and one of 5.


def make_model(optimizer, **options):
    inputs = keras.Input((6,))
    hidden = layers.Dense(8, "tanh", name="hidden")(inputs)
    model = keras.Model(inputs, layers.Dense(1, name="score")(hidden))
    model.compile(optimizer, "mse", **options)
    return model


def batches(rows=ROWS):
    x, y = models.regression(rows, np.random.default_rng(3))
    return [(x[i : i + 24], y[i : i + 24]) for i in range(0, rows, 24)]


def assert_steps_equal(make_model, devices, make_batches=batches):
    return kp.testing.assert_trains_like_one_device(
        make_model, make_batches, devices=devices, steps=6
    )


# Optimizers

OPTIMIZERS = {
    "Adadelta": lambda: optimizers.Adadelta(0.5),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "Adagrad": lambda: optimizers.Adagrad(0.05),
    "Adam": lambda: optimizers.Adam(0.01, amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "Adamax": lambda: optimizers.Adamax(0.01),
    "Ftrl": lambda: optimizers.Ftrl(0.05, l1_regularization_strength=1e-3),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "Lion": lambda: optimizers.Lion(1e-3),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(
        models.sgd(), initial_scale=64.0, dynamic_growth_steps=2
    ),
    "MultiOptimizer": lambda: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(
            models.sgd(), {"hidden/.*": optimizers.Adam(0.01)}
        )
    ),
    "Muon": lambda: optimizers.Muon(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "RMSprop": lambda: optimizers.RMSprop(0.01, momentum=0.9, centered=True),
    "SGD": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "ScheduleFreeAdamW": lambda: optimizers.ScheduleFreeAdamW(
        0.01, warmup_steps=3
    ),
}


def test_every_optimizer_of_keras_is_here():
    built_in = {
        name
        for name, value in vars(optimizers).items()
        if inspect.isclass(value) and issubclass(value, optimizers.Optimizer)
    }
    assert set(OPTIMIZERS) == built_in - {"Optimizer"}


@pytest.mark.parametrize(
    ("name", "devices"), selection.in_turn(OPTIMIZERS, DEVICES)
)
def test_optimizers(name, devices):
    assert_steps_equal(lambda: make_model(OPTIMIZERS[name]()), devices)


SETTINGS = {
    "CosineDecay": lambda: models.sgd(schedules.CosineDecay(0.05, 4)),
    "CosineDecayRestarts": lambda: models.sgd(
        schedules.CosineDecayRestarts(0.05, 2)
    ),
    "ExponentialDecay": lambda: optimizers.Adam(
        schedules.ExponentialDecay(0.02, 2, 0.5, staircase=True)
    ),
    "InverseTimeDecay": lambda: models.sgd(
        schedules.InverseTimeDecay(0.05, 1, 0.5)
    ),
    "PiecewiseConstantDecay": lambda: models.sgd(
        schedules.PiecewiseConstantDecay([2, 4], [0.05, 0.02, 0.01])
    ),
    "PolynomialDecay": lambda: models.sgd(
        schedules.PolynomialDecay(0.05, 5, power=2.0)
    ),
    "clipvalue": lambda: models.sgd(clipvalue=0.05),
    "clipnorm": lambda: models.sgd(clipnorm=0.1),
    "global_clipnorm": lambda: models.sgd(global_clipnorm=0.1),
    "weight_decay": lambda: models.sgd(weight_decay=0.1),
    "use_ema": lambda: models.sgd(
        use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "gradient_accumulation_steps": lambda: models.sgd(
        gradient_accumulation_steps=2, global_clipnorm=0.5
    ),
    "loss_scale_factor": lambda: models.sgd(loss_scale_factor=128.0),
}


@pytest.mark.parametrize(
    ("name", "devices"), selection.in_turn(SETTINGS, DEVICES)
)
def test_settings_of_optimizers(name, devices):
    assert_steps_equal(lambda: make_model(SETTINGS[name]()), devices)


def test_weights_decay_only_where_they_are_meant_to():
    def make():
        optimizer = optimizers.AdamW(0.01, weight_decay=0.5)
        model = make_model(optimizer)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return model

    assert_steps_equal(make, 2)


# Precision


def of_policy(name, make):
    def make_with_policy():
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(name)
        try:
            return make()
        finally:
            keras.config.set_dtype_policy(before)

    return make_with_policy


@pytest.mark.parametrize(
    ("policy", "devices"),
    selection.in_turn(["mixed_bfloat16", "mixed_float16"], (2, 8, 1)),
)
def test_mixed_precision(policy, devices):
    """H13: float32 weights; float16 with a loss scale that moves."""
    make = of_policy(policy, lambda: make_model(models.sgd()))
    assert make().optimizer.__class__.__name__ == (
        "LossScaleOptimizer" if policy == "mixed_float16" else "SGD"
    )
    assert_steps_equal(make, devices)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_fault_shows_in_mixed_precision(policy):
    """Its digits are few, and enough: for gradients a fifth too large."""

    def faulty(model, devices):
        parallel = kp.data_parallel(model, devices)
        right = parallel.compute_loss

        def larger(*args, **kwargs):
            loss = right(*args, **kwargs)
            return loss + 0.2 * (loss - keras.ops.stop_gradient(loss))

        parallel.compute_loss = larger
        return parallel

    make = of_policy(policy, lambda: make_model(models.sgd()))
    with pytest.raises(kp._errors.NotEqualError, match="In step 1"):
        kp.testing.assert_trains_like_one_device(
            make, batches, devices=2, steps=6, parallelize=faulty
        )


@pytest.mark.parametrize("devices", selection.every(2, [2, 1, 8]))
def test_a_step_that_overflows_is_left_out_on_every_device(devices):
    """H07: the decision is one for all devices."""

    def make():
        return make_model(
            optimizers.LossScaleOptimizer(
                models.sgd(), initial_scale=2.0**20, dynamic_growth_steps=2
            )
        )

    def run(parallelize):
        model = parallelize(helpers.seeded(of_policy("mixed_float16", make)))
        scales = []
        for x, y in batches() * 3:
            model.train_on_batch(x, y)
            scales.append(float(model.optimizer.dynamic_scale))
        inner = int(model.optimizer.inner_optimizer.iterations)
        return scales, inner, model.get_weights()

    expected = run(lambda m: m)
    actual = run(lambda m: kp.data_parallel(m, devices))
    assert actual[:2] == expected[:2]
    assert 0 < expected[1] < 9, "some steps overflow, and some do not"
    assert len(set(expected[0])) > 2
    # float16 gradients: 3 digits.
    helpers.assert_close(expected[2], actual[2], 2e-3)


# Layers that Keras can change later


def test_lora_made_before():
    def make():
        model = make_model(models.sgd())
        model.get_layer("hidden").enable_lora(2)
        model.compile(models.sgd(), "mse")
        return model

    assert_steps_equal(make, 2)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.parametrize(
    ("mode", "devices"), selection.in_turn(["int8", "int4", "float8"], DEVICES)
)
def test_quantized(mode, devices):
    """Quantized through the parallel model, which is compiled anew for it."""
    x, y = models.regression(ROWS, np.random.default_rng(3))
    results = []
    for parallelize in (lambda m: m, lambda m: kp.data_parallel(m, devices)):
        model = parallelize(helpers.seeded(lambda: make_model(models.sgd())))
        before = model.predict(x, verbose=0)
        model.quantize(mode)
        after = model.predict(x, verbose=0)
        assert (before != after).any()
        result = [after]
        if mode == "float8":  # The others are not for training.
            keras.utils.set_random_seed(4)
            model.compile(models.sgd(1e-3), "mse")
            history = model.fit(x, y, batch_size=24, verbose=0)
            result += [history.history["loss"]]
        results.append(result)
    # A value on the edge of a quantum may fall on either side.
    helpers.assert_close(*results, 1e-5 if mode != "float8" else 0.05)


# Metrics

REGRESSION = [
    "ConcordanceCorrelation",
    "CosineSimilarity",
    "LogCoshError",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "PearsonCorrelation",
    "Poisson",
    "R2Score",
    "RootMeanSquaredError",
]
BINARY = [
    "AUC",
    "BinaryAccuracy",
    "BinaryCrossentropy",
    "FalseNegatives",
    "FalsePositives",
    "Hinge",
    "Precision",
    ("PrecisionAtRecall", {"recall": 0.5}),
    "Recall",
    ("RecallAtPrecision", {"precision": 0.5}),
    ("SensitivityAtSpecificity", {"specificity": 0.5}),
    ("SpecificityAtSensitivity", {"sensitivity": 0.5}),
    "SquaredHinge",
    "TrueNegatives",
    "TruePositives",
    ("BinaryIoU", {"target_class_ids": [0, 1]}),
]
ONE_HOT = [
    "CategoricalAccuracy",
    "CategoricalCrossentropy",
    "CategoricalHinge",
    ("F1Score", {"average": "macro"}),
    ("FBetaScore", {"average": "weighted", "beta": 2.0}),
    "KLDivergence",
    ("OneHotIoU", {"num_classes": 4, "target_class_ids": [1, 2]}),
    ("OneHotMeanIoU", {"num_classes": 4}),
    ("TopKCategoricalAccuracy", {"k": 2}),
    ("AUC", {"multi_label": True, "num_labels": 4, "name": "auc_per_label"}),
]
CLASS_INDEX = [
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossentropy",
    ("SparseTopKCategoricalAccuracy", {"k": 2}),
    ("MeanIoU", {"num_classes": 4, "sparse_y_pred": False}),
    (
        "IoU",
        {"num_classes": 4, "target_class_ids": [0], "sparse_y_pred": False},
    ),
]
# `Accuracy` compares numbers for equality; the rest takes one array, or is a
# base class.
OTHERS = {"Accuracy", "Mean", "MeanMetricWrapper", "Metric", "Sum"}


class WorstError(keras.metrics.Metric):
    """A custom metric whose state is no sum."""

    def __init__(self, name="worst_error", **kwargs):
        super().__init__(name=name, **kwargs)
        self.worst = self.add_variable((), "zeros", name="worst")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = keras.ops.max(keras.ops.abs(y_true - y_pred))
        self.worst.assign(keras.ops.maximum(self.worst, error))

    def result(self):
        return self.worst.value


def share_of_ones(y_true, y_pred):
    """A custom metric that is a function."""
    return keras.ops.mean(keras.ops.round(y_pred), axis=-1)


def exactly(value):
    """A metric of equal numbers: of signs, as `Accuracy` compares those."""

    class SignAccuracy(keras.metrics.Accuracy):
        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(
                keras.ops.sign(y_true), keras.ops.sign(y_pred), sample_weight
            )

    return SignAccuracy(name=value)


KINDS = {
    # Names of metrics, width of the output, its activation, loss, targets.
    "regression": (
        REGRESSION,
        (3, "softplus", "mse"),
        lambda rng: rng.uniform(size=(ROWS, 3)),
    ),
    "binary": (
        BINARY,
        (1, "sigmoid", "binary_crossentropy"),
        lambda rng: rng.integers(0, 2, (ROWS, 1)),
    ),
    "one-hot": (
        ONE_HOT,
        (4, "softmax", "categorical_crossentropy"),
        lambda rng: np.eye(4)[rng.integers(0, 4, ROWS)],
    ),
    "class index": (
        CLASS_INDEX,
        (4, "softmax", "sparse_categorical_crossentropy"),
        lambda rng: rng.integers(0, 4, ROWS),
    ),
}


def metric(entry):
    name, options = entry if isinstance(entry, tuple) else (entry, {})
    # Keras numbers the second of a kind on, also in another model.
    return getattr(keras.metrics, name)(**{"name": name.lower(), **options})


def test_every_metric_of_keras_is_here():
    built_in = {
        name
        for name, value in vars(keras.metrics).items()
        if inspect.isclass(value) and issubclass(value, keras.metrics.Metric)
    }
    listed = {
        entry[0] if isinstance(entry, tuple) else entry
        for names, *_ in KINDS.values()
        for entry in names
    }
    assert listed | OTHERS == built_in


def _kinds_and_devices():
    """Each kind on two or on eight devices, weighted or not."""
    for i, kind in enumerate(KINDS):
        for devices, weighted in itertools.product(DEVICES, (False, True)):
            needed = (devices, weighted) == ((2, False), (8, True))[i % 2]
            yield selection.case(kind, weighted, devices, needed=needed)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")
@pytest.mark.filterwarnings("ignore:You are passing weight as `float`")
@pytest.mark.parametrize(
    ("kind", "weighted", "devices"), list(_kinds_and_devices())
)
def test_metrics(kind, weighted, devices):
    """T02, T34, J04: values of the whole batch, the last uneven one too."""
    names, (width, activation, loss), make_targets = KINDS[kind]
    rng = np.random.default_rng(5)
    x = models.features(ROWS, rng)
    y = make_targets(rng)
    y = y if kind == "class index" else y.astype("float32")
    weight = rng.uniform(0.2, 2.0, ROWS).astype("float32") if weighted else None

    def make():
        inputs = keras.Input((6,))
        outputs = layers.Dense(width, activation=activation)(inputs)
        model = keras.Model(inputs, outputs)
        metrics = [metric(entry) for entry in names]
        if kind == "binary":
            metrics += [WorstError(), share_of_ones]
        if kind == "regression":
            metrics.append(exactly("sign_accuracy"))
        where = "weighted_metrics" if weighted else "metrics"
        model.compile(models.sgd(), loss, **{where: metrics})
        return model

    results = []
    for parallelize in (lambda m: m, lambda m: kp.data_parallel(m, devices)):
        model = parallelize(helpers.seeded(make))
        keras.utils.set_random_seed(4)
        options = {"sample_weight": weight, "batch_size": 24, "verbose": 0}
        history = model.fit(x, y, epochs=2, **options).history
        evaluated = model.evaluate(x, y, return_dict=True, **options)
        assert len(evaluated) > len(names)
        for name in history:
            assert np.isfinite(history[name]).all(), name
        results.append((list(history), history, evaluated))
    (names, *expected), (own_names, *actual) = results
    assert own_names == names
    helpers.assert_close(expected, actual, 2e-5)
