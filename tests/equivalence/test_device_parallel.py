"""Models in stages train like the same models on one device."""

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_parallel as kp
from keras_parallel.graph.calls import calls_of
from tests import models
from tests import selection

# Made parallel after it is compiled, as `load_model` compiles too.
pytestmark = pytest.mark.filterwarnings("ignore:.*calls in device scopes")

ROWS = 12
CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


def numbers(*shape, rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, *shape)).astype("float32")


def on(device):
    return kp.device_scope(device)


@case
def two_towers():
    """The script of the how-to: one LSTM on two devices, joined on a third."""
    a, b = keras.Input((7, 4), name="a"), keras.Input((7, 4), name="b")
    shared = layers.LSTM(5)
    with on("/gpu:0"):
        encoded_a = shared(a)
    with on("/gpu:1"):
        encoded_b = shared(b)
    with on("/cpu:0"):
        merged = layers.concatenate([encoded_a, encoded_b], axis=-1)
    same = layers.Dense(1, activation="sigmoid", name="same")(merged)
    return keras.Model([a, b], same), "binary_crossentropy"


@case
def inception():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    for block in range(2):
        branches = []
        for i, size in enumerate((1, 3, 5)):
            with on(f"gpu:{i}"):
                y = layers.Conv2D(3, size, padding="same")(x)
                y = layers.BatchNormalization()(y)
                branches.append(layers.ReLU()(y))
        with on(f"gpu:{block}"):
            x = layers.concatenate(branches)
    return keras.Model(inputs, layers.GlobalAveragePooling2D()(x)), "mse"


@case
def u_net():
    inputs = keras.Input((8, 8, 2))
    with on("gpu:0"):
        first = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
        down = layers.MaxPooling2D()(first)
    with on("gpu:1"):
        second = layers.Conv2D(6, 3, padding="same", activation="relu")(down)
        down = layers.MaxPooling2D()(second)
    with on("gpu:2"):
        x = layers.Conv2D(8, 3, padding="same", activation="relu")(down)
        x = layers.UpSampling2D()(x)
    with on("gpu:1"):
        x = ops.concatenate([x, second], -1)
        x = layers.Conv2D(6, 3, padding="same")(x)
        x = layers.UpSampling2D()(x)
    with on("gpu:0"):
        x = ops.concatenate([x, first], -1)
        x = layers.Conv2D(1, 3, padding="same")(x)
    return keras.Model(inputs, x), "mse"


@case
def siamese_with_shared_batch_normalization():
    a, b = keras.Input((6,)), keras.Input((6,))
    dense, norm = layers.Dense(5), layers.BatchNormalization(momentum=0.8)
    with on("gpu:0"):
        left = norm(dense(a))
    with on("gpu:1"):
        right = norm(dense(b))
    merged = layers.concatenate([left, right * right])
    return keras.Model([a, b], layers.Dense(1)(merged)), "mse"


@case
def ping_pong():
    inputs = x = keras.Input((6,))
    for device in ("gpu:0", "gpu:1", "gpu:0", "gpu:1"):
        with on(device):
            x = layers.Dense(7, "tanh")(x)
    return keras.Model(inputs, layers.Dense(1)(x)), "mse"


@case
def chain_over_four():
    inputs = x = keras.Input((6,))
    for i in range(4):
        with on(f"gpu:{i}"):
            x = layers.Dropout(0.2)(layers.Dense(7, "tanh")(x))
    return keras.Model(inputs, layers.Dense(1)(x)), "mse"


@case
def two_heads():
    inputs = keras.Input((6,))
    x = layers.Dense(8, "relu")(inputs)
    with on("gpu:1"):
        main = layers.Dense(3, "softmax", name="main")(x)
    with on("gpu:2"):
        aux = layers.Dense(1, name="aux")(x)
    free = layers.Dense(2, name="free")(x)
    model = keras.Model(inputs, {"main": main, "aux": aux, "free": free})
    losses = {"main": "categorical_crossentropy", "aux": "mae", "free": None}
    return model, losses


@case
def nested():
    """Scopes of the inner model win; it is called on two devices."""
    inputs = keras.Input((6,))
    x = layers.Dense(5, "tanh")(inputs)
    with on("gpu:2"):
        outputs = layers.Dense(4)(x)
    inner = keras.Model(inputs, outputs)
    a, b = keras.Input((6,)), keras.Input((6,))
    with on("gpu:0"):
        left = inner(a)
    with on("gpu:1"):
        right = inner(b)
        right = keras.Sequential([layers.Dense(4), layers.ReLU()])(right)
    return keras.Model([a, b], layers.Dense(1)(left * right)), "mse"


@case
def one_layer_on_three():
    inputs = x = keras.Input((5,))
    shared = layers.Dense(5, "tanh", kernel_regularizer="l2")
    for i in range(3):
        with on(f"gpu:{i}"):
            x = shared(x)
    return keras.Model(inputs, x), "mse"


@case
def masked_with_state():
    """Masks, the state of a recurrent layer, a dictionary of inputs."""
    inputs = {
        "words": keras.Input((6,), dtype="int32", name="words"),
        "start": keras.Input((4,), name="start"),
    }
    with on("gpu:0"):
        x = layers.Embedding(9, 4, mask_zero=True)(inputs["words"])
    with on("gpu:1"):
        x, *state = layers.GRU(4, return_sequences=True, return_state=True)(
            x, initial_state=inputs["start"]
        )
    with on("gpu:2"):
        x = layers.GRU(3)(x)
    return keras.Model(inputs, layers.Dense(1)(x + state[0][:, :3])), "mse"


@keras.saving.register_keras_serializable("tests")
class Watched(layers.Layer):
    """Adds a loss, and keeps a running mean of what it sees."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False)

    def call(self, x):
        self.add_loss(1e-2 * ops.sum(x**2))
        self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, 0))
        return x


@case
def losses_of_layers():
    inputs = x = keras.Input((6,))
    for i in range(2):
        with on(f"gpu:{i}"):
            x = Watched()(layers.Dense(5, activity_regularizer="l2")(x))
    return keras.Model(inputs, x), "mse"


@case
def added_to_a_sequential():
    model = keras.Sequential([keras.Input((6,))])
    for i in range(3):
        with on(f"gpu:{i}"):
            model.add(layers.Dense(7, "tanh"))
    model.add(layers.Dense(1))
    return model, "mse"


def make_model(name, optimizer=None):
    model, loss = CASES[name]()
    metrics = ["mae"] if isinstance(loss, str) else {"main": "acc"}
    model.compile(optimizer or models.sgd(0.05), loss, metrics=metrics)
    return model


def make_batches(name, sizes=(ROWS, ROWS, 5), weights=False):
    model, loss = CASES[name]()
    batches = []
    for seed, rows in enumerate(sizes):
        rng = np.random.default_rng(seed)

        def made(tensor, rows=rows, rng=rng):
            shape = (rows, *tensor.shape[1:])
            if "int" in tensor.dtype:
                return rng.integers(0, 9, shape).astype("int32")
            return rng.normal(size=shape).astype("float32")

        if isinstance(model, keras.Sequential):
            x, y = made(model.inputs[0]), made(model.outputs[0])
        else:
            x = keras.tree.map_structure(made, model.input)
            y = keras.tree.map_structure(made, model.output)
        if isinstance(loss, dict):
            y["main"] = np.eye(3, dtype="float32")[rng.integers(0, 3, rows)]
        elif "cross" in loss:
            y = (y > 0).astype("float32")
        batch = x, y
        if weights:
            batch = *batch, rng.uniform(size=rows).astype("float32")
        batches.append(batch)
    return batches


def in_stages(model, _):
    return kp.device_parallel(model)


@pytest.mark.parametrize("name", list(CASES))
def test_training_equals_one_device(name):
    kp.testing.assert_trains_like_one_device(
        lambda: make_model(name),
        lambda: make_batches(name),
        devices="all",
        steps=6,
        parallelize=in_stages,
    )


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", selection.every(2, ["u_net", "inception"]))
def test_training_in_double_precision_equals_one_device(name):
    """Gradients that cancel in one precision agree in the other."""
    states = []
    for parallelize in (lambda model, _: model, in_stages):
        keras.utils.set_random_seed(1)
        model = parallelize(make_model(name), None)
        for x, y in make_batches(name):
            model.train_on_batch(
                *keras.tree.map_structure(lambda a: a.astype("float64"), (x, y))
            )
        states.append([np.array(v) for v in model.variables])
        states[-1] += [np.array(v) for v in model.optimizer.variables]
    for one, many in zip(*states):
        assert one.dtype == many.dtype != "float32"
        np.testing.assert_allclose(
            many, one, rtol=0, atol=1e-13 * (1 + np.abs(one).max())
        )


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(1e-2, amsgrad=True),
    "global_clipnorm": lambda: keras.optimizers.AdamW(
        1e-2, global_clipnorm=0.1
    ),
    "schedule": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.ExponentialDecay(1e-2, 2, 0.5)
    ),
    "averages": lambda: keras.optimizers.SGD(
        1e-2, momentum=0.9, use_ema=True, ema_overwrite_frequency=3
    ),
    "accumulation": lambda: keras.optimizers.SGD(
        1e-2, gradient_accumulation_steps=2, global_clipnorm=0.1
    ),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(1e-2), initial_scale=2.0**20
    ),
    "nadam": lambda: keras.optimizers.Nadam(1e-2),
    "lamb": lambda: keras.optimizers.Lamb(1e-2),
    "adafactor": lambda: keras.optimizers.Adafactor(1e-2),
    "ftrl": lambda: keras.optimizers.Ftrl(1e-2),
    "muon": lambda: keras.optimizers.Muon(1e-2),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_optimizers_equal_one_device(name):
    kp.testing.assert_trains_like_one_device(
        lambda: make_model("two_towers", OPTIMIZERS[name]()),
        lambda: make_batches("two_towers", weights=True),
        devices="all",
        steps=6,
        parallelize=in_stages,
    )


def dealt_out(model, _=None):
    """The calls of a model on three devices in turn."""
    calls = [call for top in calls_of(model) for call in top.all()]
    placement = {
        (call.name, call.index): f"gpu:{i % 3}" for i, call in enumerate(calls)
    }
    return kp.device_parallel(model, placement)


WITH_A_GRAPH = (
    "sequential",
    "convolutional",
    "nested",
    "nested_inputs_and_dict_outputs",
    "siamese_with_branches_and_sum",
    "two_named_outputs",
    "two_outputs_in_a_dict",
    "head_without_a_loss",
    "two_outputs_of_one_layer",
    "own_steps",
    "own_compute_loss",
    "losses_of_layers",
    "stateful_recurrent",
    "fixed_batch_size",
    "initial_state_from_another_branch",
    "other_normalizations",
    "preprocessing_of_images",
    "preprocessing_of_columns",
    "preprocessing_of_text",
    "u_net",
    "transformer",
    "frozen_backbone",
)


FIXED_BATCH = ("stateful_recurrent", "fixed_batch_size")


@pytest.mark.parametrize("name", selection.every(4, WITH_A_GRAPH, start=1))
def test_calls_on_three_devices_in_turn(name):
    case, rng = models.MODELS[name], np.random.default_rng(3)
    sizes = (24, 24) if name in FIXED_BATCH else (8, 8, 5)
    kp.testing.assert_trains_like_one_device(
        case.make_model,
        lambda: [case.make_data(n, rng) for n in sizes],
        devices="three",
        steps=3,
        parallelize=dealt_out,
    )


@pytest.mark.parametrize(
    "name", selection.every(2, ["small_resnet", "ResNet50"])
)
def test_resnet_cut_in_three_equals_one_device(name):
    case = models.APPLICATIONS[name]

    def cut(model, _):
        last = ("conv5", "avg_pool", "predictions")
        placement = {
            layer.name: "gpu:2" if layer.name.startswith(last) else "gpu:1"
            for layer in model.layers
            if layer.name.startswith(("conv4", *last))
        }
        return kp.device_parallel(model, placement)

    kp.testing.assert_trains_like_one_device(
        case.make_model,
        lambda: [case.make_data(8, np.random.default_rng(3))],
        devices="three",
        steps=1,
        parallelize=cut,
    )
