"""`kp.plan`: what it takes, what it says, and that nothing runs for it."""

import jax
import keras
import numpy as np
import pytest
from keras import layers

import keras_parallel
from keras_parallel._errors import InputError
from keras_parallel._errors import PlanError
from keras_parallel.engines.fake import FakeEngine
from keras_parallel.strategies import data
from tests.helpers import assert_teaches
from tests.helpers import compilations
from tests.models import Residual


def make_model(**options):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="relu"),
            layers.Dropout(0.5),
            layers.BatchNormalization(),
            layers.Dense(2),
        ],
        name="small",
    )
    arguments = {"optimizer": "adam", "loss": "mse", "metrics": ["mae", "auc"]}
    model.compile(**arguments | options)
    return model


def plan(devices=2, batch_size=16, model=None):
    model = model or make_model()
    parallel = keras_parallel.data_parallel(model, devices)
    return keras_parallel.plan(parallel, batch_size)


@pytest.mark.parametrize(
    "model", [None, make_model, "model", keras.Model, Residual]
)
def test_what_is_not_parallel_has_no_plan(model):
    model = make_model() if model is make_model else model
    with pytest.raises(PlanError) as caught:
        keras_parallel.plan(model)
    assert_teaches(caught.value)
    assert "kp.plan(kp.data_parallel(" in str(caught.value)


def test_a_model_that_is_not_built_has_no_plan():
    parallel = keras_parallel.data_parallel(
        keras.Sequential([layers.Dense(1)]), 2
    )
    with pytest.raises(PlanError, match="not built") as caught:
        keras_parallel.plan(parallel)
    assert_teaches(caught.value)
    parallel.build((None, 3))
    assert keras_parallel.plan(parallel).shares[0].weights == 16


@pytest.mark.parametrize("batch_size", [0, -8, True, 2.0, "32", [32]])
def test_a_batch_size_is_a_number_of_rows(batch_size):
    with pytest.raises(InputError) as caught:
        plan(2, batch_size)
    assert_teaches(caught.value)


def test_the_batch_size_is_that_of_fit_if_none_is_given():
    assert plan(2, None).batch_size == 32
    assert plan(2, np.int64(8)).batch_size == 8


def test_what_each_device_holds():
    given = plan(4)
    assert [share.device.name for share in given.shares] == [
        f"gpu:{i}" for i in range(4)
    ]
    (share,) = {
        (s.rows, s.weights, s.gradients, s.optimizer, s.non_trainable)
        for s in given.shares
    }
    weights = 4 * (6 * 8 + 8 + 2 * 8 + 8 * 2 + 2)
    # Two slots for each weight; the iteration and the learning rate.
    slots = 2 * weights + 8
    # Statistics, a seed, and the states of the loss, "mae" and "auc".
    others = 4 * 2 * 8 + 8 + 8 + 8 + 4 * 200 * 4
    assert share == (4, weights, weights, slots, others)
    assert given.notes == ()


def test_activations_are_those_of_the_rows_of_a_device():
    one, two, whole = (plan(d, r) for d, r in ((1, 16), (2, 16), (3, 16)))
    one, two, whole = (p.shares[0].activations for p in (one, two, whole))
    assert two < one <= 2 * two
    assert whole == one
    rows = 16
    # At least the inputs of the layers that multiply, at most all values.
    assert rows * 4 * (6 + 8) <= one <= rows * 4 * (6 + 8 * 12 + 2)


def test_masks_of_dropout_are_kept_for_each_row():
    kept = []
    for rate in (0.0, 0.5):
        stack = [layers.Dense(100), layers.Dropout(rate), layers.Dense(2)]
        model = keras.Sequential([keras.Input((100,)), *stack])
        kept.append(plan(model=model).shares[0].activations)
    assert 8 * 100 <= kept[1] - kept[0] <= 8 * 100 * 8


def test_a_batch_as_long_as_a_layer_is_wide_is_estimated_as_its_neighbors():
    dense = [layers.Dense(64, dtype="mixed_float16") for _ in range(4)]
    model = keras.Sequential([keras.Input((64,)), *dense])
    below, at, above = (
        plan(2, rows, model).shares[0].activations for rows in (62, 64, 66)
    )
    assert 0 < at - below == above - at


def test_an_uneven_batch_and_one_device_exchange_nothing():
    uneven, alone = plan(3, 16), plan(1, 16)
    assert uneven.collectives == alone.collectives == ()
    assert [share.rows for share in uneven.shares] == [16] * 3
    assert "A batch_size of 18 is shared out." in str(uneven)
    assert "There is one device: nothing crosses." in str(alone)


def test_frozen_layers_have_neither_gradients_nor_statistics():
    model = make_model()
    model.layers[0].trainable = model.layers[2].trainable = False
    model.compile("sgd", "mse")
    given = plan(model=model)
    assert given.shares[0].gradients == 4 * (8 * 2 + 2)
    (gradients,) = (c for c in given.collectives if c.purpose == "gradients")
    assert gradients.bytes == 4 * (8 * 2 + 2)
    assert "statistics" not in str(given)


def test_without_compile_it_says_what_is_not_counted():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(2)])
    given = plan(model=model)
    assert "is not compiled" in given.notes[0]
    assert given.shares[0].optimizer == 0
    assert [c.purpose for c in given.collectives] == ["gradients"]


class Averaged(layers.Layer):
    def call(self, x):
        return x - keras.ops.mean(x, axis=0)


class OwnStep(keras.Model):
    def train_step(self, state, data):
        return super().train_step(state, data)


class Unusual(keras.optimizers.SGD):
    def __init__(self, something):
        super().__init__()


def own_loss(y_true, y_pred):
    return keras.ops.mean(y_true - y_pred, axis=-1)


def test_what_cannot_be_known_is_said():
    inputs = keras.Input((6,))
    model = OwnStep(inputs, Averaged()(layers.Dense(2)(inputs)))
    model.compile(Unusual(1), own_loss, metrics=[keras.metrics.F1Score()])
    said = "\n".join(plan(model=model).notes)
    for expected in (
        "'OwnStep' has `train_step` of its own",
        "Code of your own runs in 'Averaged', 'OwnStep'.",
        "The loss 'own_loss' is your own.",
        "What the optimizer 'Unusual' will hold",
        "What 'f1_score' will hold",
    ):
        assert expected in said
    model.compile("sgd", "mse", run_eagerly=True)
    said = "\n".join(plan(model=model).notes)
    assert "not compiled as one program" in said


def test_shapes_that_are_not_known_are_said():
    model = keras.Sequential([keras.Input((None, 3)), layers.LSTM(2)])
    model.compile("sgd", "mse")
    given = plan(model=model)
    assert given.shares[0].activations is None
    assert "activations are not estimated" in str(given)


def test_a_subclassed_model_is_traced_once_it_is_built():
    model = Residual()
    model.build((None, 6))
    model.compile("sgd", "mse")
    given = plan(model=model)
    assert given.shares[0].activations > 0
    assert "statistics of 'batch_normalization" in str(given)
    assert given.notes == (
        "Code of your own runs in 'Residual'. Where it brings rows of a batch "
        "together, as a mean over the batch does, more crosses than is listed.",
    )


def test_nothing_runs_for_a_plan():
    keras.utils.set_random_seed(3)
    model = make_model()
    parallel = keras_parallel.data_parallel(model, 2)
    state = [np.array(v.value) for v in model.variables]
    before = {id(array) for array in jax.live_arrays()}
    with compilations() as compiled:
        given = keras_parallel.plan(parallel, 16)
        assert str(given) and given.to_dict()
    assert compiled == {}
    # Constants in the user's layers, such as an epsilon, and nothing else.
    made = [a for a in jax.live_arrays() if id(a) not in before]
    assert sum(array.nbytes for array in made) <= 32
    assert not model.optimizer.built
    for variable, value in zip(model.variables, state):
        assert np.array_equal(variable.value, value)
    # No name was taken for it.
    x, y = np.ones((4, 6)), np.ones((4, 2))
    assert "auc" in parallel.fit(x, y, verbose=0).history


def test_a_model_trains_on_as_if_it_had_not_been_planned():
    results = []
    for planned in (False, True):
        keras.utils.set_random_seed(3)
        parallel = keras_parallel.data_parallel(make_model(), 2)
        if planned:
            keras_parallel.plan(parallel, 16)
        x, y = np.ones((16, 6)), np.ones((16, 2))
        history = parallel.fit(x, y, epochs=2, verbose=0).history
        results.append((history, [v.numpy() for v in parallel.variables]))
    (plain, weights), (planned, same) = results
    assert plain == planned
    assert all(np.array_equal(a, b) for a, b in zip(weights, same))


def test_an_engine_that_cannot_trace_still_plans(monkeypatch):
    monkeypatch.setattr(data, "active_engine", lambda: FakeEngine(4))
    given = plan(4)
    share = given.shares[0]
    assert (share.rows, share.optimizer, share.activations) == (4, None, None)
    purposes = [c.purpose.split(" '")[0] for c in given.collectives]
    assert purposes[:3] == ["gradients", "statistics of", "losses"]
    assert len(given.notes) == 2


class Unfinished(keras.Model):
    """Builds a layer in training only, counts its calls, and keeps a value."""

    def __init__(self):
        super().__init__()
        self.first, self.aux = layers.Dense(4), layers.Dense(4)
        self.calls, self.last, self.seen = 0, None, []

    def call(self, x, training=False):
        self.last, self.calls = self.first(x), self.calls + 1
        self.seen.append(self.last)
        return self.last + self.aux(x) if training else self.last


def test_a_layer_that_is_built_in_training_is_not_built_by_a_plan():
    model = Unfinished()
    x = np.ones((16, 6), "float32")
    with pytest.warns(UserWarning, match="unbuilt"):
        model(x[:2])
    model.compile("sgd", "mse")
    parallel = keras_parallel.data_parallel(model, 2)
    expected, last, calls = parallel.predict(x), model.last, model.calls
    uids = keras.backend.get_uid("dense")
    given = keras_parallel.plan(parallel, 16)
    assert keras.backend.get_uid("dense") == uids + 1
    assert (model.last is last, model.calls) == (True, calls)
    assert len(model.seen) == calls and not model.aux.built
    assert all(v.value is not None for v in model.variables)
    assert np.array_equal(parallel.predict(x), expected)
    share = given.shares[0]
    assert (share.weights, share.activations) == (4 * 7 * 4, None)
    assert f"Not built yet: {model.aux.name!r}." in "\n".join(given.notes)
    assert "layers that the first batch builds" in "\n".join(given.notes)
    parallel.fit(x, x[:, :4], verbose=0)
    given = keras_parallel.plan(parallel, 16)
    assert given.shares[0].weights == 2 * share.weights
    assert given.shares[0].activations > 0
    assert "Not built" not in "\n".join(given.notes)


def test_a_model_with_a_wrong_build_is_not_built_by_a_plan():
    model = Unfinished()
    with pytest.warns(UserWarning, match="unbuilt"):
        model.build((None, 6))
    model.compile("sgd", "mse")
    given = plan(model=model)
    assert model.variables == [] and given.shares[0].weights == 0
    names = f"{model.first.name!r}, {model.aux.name!r}"
    assert f"Not built yet: {names}." in "\n".join(given.notes)


class Heads(keras.Model):
    """Returns two outputs, of inputs by name, one of them indices."""

    def __init__(self):
        super().__init__()
        self.table = self.add_weight(shape=(9, 4), name="table")
        self.first, self.second = layers.Dense(2), layers.Dense(3)

    def call(self, inputs):
        x = keras.ops.take(self.table, inputs["word"], axis=0)
        x = keras.ops.concatenate([x, inputs["size"]], axis=-1)
        return self.first(x), self.second(x)


def test_outputs_and_dtypes_of_a_subclassed_model_are_found():
    model = Heads()
    x = {"word": np.ones((16,), "int32"), "size": np.ones((16, 1), "float32")}
    model(x)
    model.compile("sgd", "mse")
    parallel = keras_parallel.data_parallel(model, 2)
    before = keras_parallel.plan(parallel, 16)
    parallel.fit(x, (np.ones((16, 2)), np.ones((16, 3))), verbose=0)
    after = keras_parallel.plan(parallel, 16)
    assert before.shares == after.shares
    assert before.collectives == after.collectives
    share = before.shares[0]
    # The mean of the loss, and of that of each output.
    assert (share.non_trainable, share.activations > 0) == (3 * 8, True)
    assert after.collectives[-1].bytes == 4 * 2 * 2


class NeedsShape(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x):
        if x.shape[0] == 16:
            raise ValueError("16 rows are bad luck")
        return self.dense(x)


def test_why_a_model_cannot_be_traced_is_said():
    model = NeedsShape()
    model(np.ones((4, 3)))
    model.compile("sgd", "mse")
    said = "\n".join(plan(model=model).notes)
    assert "for 16 rows, because its code raised ValueError" in said
    assert "16 rows are bad luck" in said


class Silent(keras.Model):
    @property
    def metrics(self):
        return []


def test_a_model_without_the_mean_of_the_loss_does_not_hold_it():
    inputs = keras.Input((6,))
    model = Silent(inputs, layers.Dense(2)(inputs))
    model.compile("sgd", "mse")
    assert plan(model=model).shares[0].non_trainable == 0


def test_metrics_that_learn_their_shape_are_said():
    metrics = [keras.metrics.R2Score(name="mine"), "r2_score"]
    model = make_model(metrics=metrics)
    given = plan(model=model)
    assert "What 'mine', 'r2_score' will hold is not known" in str(given)
    assert "metric" not in given.collectives[-1].purpose


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
def test_what_is_held_in_32_bits_is_counted_so():
    stack = [layers.Dense(8, dtype="float64"), layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((6,), dtype="float64"), *stack])
    model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
    share = plan(model=model).shares[0]
    held = sum(v.value.nbytes for v in model.trainable_variables)
    assert share.weights == held == 4 * (6 * 8 + 8 + 2 * 8)
    assert share.optimizer == held + 8


@pytest.mark.parametrize(
    ("loss", "brings"),
    [
        ("circle", True),
        (keras.losses.Circle(), True),
        (keras.losses.CategoricalGeneralizedCrossEntropy(), True),
        ("mse", False),
        (keras.losses.Dice(), False),
    ],
)
def test_losses_of_pairs_of_rows_are_said(loss, brings):
    said = "\n".join(plan(model=make_model(loss=loss, metrics=None)).notes)
    assert ("brings rows of a batch together" in said) is brings


@pytest.mark.parametrize(
    ("optimizer", "devices", "says", "needs"),
    [
        ("adam", 2, "but for 2 that do not divide, 8 B together", False),
        ("adam", 5, "None of the optimizer's variables divides", False),
        ("sgd", 2, "None of the optimizer's variables divides", False),
        ("muon", 2, "are in parts", True),
        (
            keras.optimizers.LossScaleOptimizer(keras.optimizers.Adafactor()),
            *(2, "are in parts", True),
        ),
    ],
)
def test_what_is_in_parts_is_said(optimizer, devices, says, needs):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8)])
    if not isinstance(optimizer, str):
        optimizer = type(optimizer).from_config(optimizer.get_config())
    model.compile(optimizer, "mse")
    parallel = keras_parallel.data_parallel(
        model, devices, shard_optimizer=True
    )
    said = "\n".join(keras_parallel.plan(parallel, 10).notes)
    assert says in said
    assert ("computes with whole rows and columns" in said) is needs


def test_layers_frozen_after_training_are_said():
    model = make_model(metrics=None)
    parallel = keras_parallel.data_parallel(model, 2)
    x, y = np.ones((16, 6)), np.ones((16, 2))
    parallel.fit(x, y, verbose=0)
    assert keras_parallel.plan(parallel, 16).notes == ()
    model.layers[0].trainable = False
    (note,) = keras_parallel.plan(parallel, 16).notes
    assert "refused until the model is compiled again" in note
    with pytest.raises(InputError, match="compile again"):
        parallel.fit(x, y, verbose=0)
    parallel.compile("adam", "mse")
    assert keras_parallel.plan(parallel, 16).notes == ()
