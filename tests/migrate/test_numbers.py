"""What is written has the numbers of what stood there."""

import keras
import numpy as np
import pytest

from keras_parallel.migrate import _names
from keras_parallel.migrate._rewrite import migrate

RNG = np.random.default_rng(0)
STEPS = 60


def migrated_value(code, **names):
    """The value of an expression after it was migrated."""
    done = migrate(
        f"import keras\nfrom keras import backend as K\nvalue = {code}\n"
    )
    assert done.notes == []
    space = dict(names)
    exec(compile(done.text, "migrated", "exec"), space)
    return space["value"]


@pytest.mark.parametrize(
    "call",
    [
        "keras.optimizers.SGD(lr=0.05, decay=1e-2)",
        "keras.optimizers.SGD(0.05, 0.9, 1e-2, True)",
        "keras.optimizers.SGD(decay=1e-1)",
    ],
)
def test_decay_is_that_of_keras_2(call):
    """Weights step by step, by the formula of Keras 2.

    `lr = lr * (1. / (1. + self.decay * iterations))`, and for momentum
    `v = momentum * m - lr * g`, `new_p = p + momentum * v - lr * g`.
    """
    optimizer = migrated_value(call)
    rate = 0.01 if "decay=1e-1" in call else 0.05
    decay = 1e-1 if "decay=1e-1" in call else 1e-2
    momentum = 0.9 if "0.9" in call else 0.0
    weight = keras.Variable(RNG.normal(size=5).astype("float32"))
    expected = np.array(weight, "float64")
    velocity = np.zeros(5)
    for iteration in range(STEPS):
        gradient = RNG.normal(size=5)
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
        now = rate * (1.0 / (1.0 + decay * iteration))
        velocity = momentum * velocity - now * gradient
        if momentum:
            expected += momentum * velocity - now * gradient
        else:
            expected += velocity
        np.testing.assert_allclose(np.array(weight), expected, 2e-6, 2e-6)
    assert now < rate / 1.5


@pytest.mark.parametrize(
    ("call", "rate"),
    [
        ("keras.optimizers.Adadelta()", 1.0),
        ("keras.optimizers.Adagrad()", 0.01),
        ("keras.optimizers.Adamax()", 0.002),
        ("keras.optimizers.Nadam()", 0.002),
        ("keras.optimizers.Nadam(schedule_decay=0.004)", 0.002),
        ("keras.optimizers.Adam(0.1, 0.5, 0.9, None, 0.0)", 0.1),
    ],
)
def test_learning_rates_are_those_of_keras_2(call, rate):
    optimizer = migrated_value(call)
    assert float(optimizer.learning_rate) == pytest.approx(rate)


A = RNG.uniform(0.1, 0.9, size=(4, 3)).astype("float32")
B = RNG.uniform(0.1, 0.9, size=(4, 3)).astype("float32")
CUBE = RNG.normal(size=(2, 3, 4)).astype("float32")
# Calls of `keras.backend`, and what they gave, in NumPy.
CALLS = {
    "abs(CUBE)": np.abs(CUBE),
    "all(A > 0)": True,
    "any(A < 0)": False,
    "arange(2, 9, 3)": np.arange(2, 9, 3),
    "argmax(A)": A.argmax(-1),
    "argmin(A)": A.argmin(-1),
    "batch_flatten(CUBE)": CUBE.reshape(2, 12),
    "binary_crossentropy(A, B)": -(A * np.log(B) + (1 - A) * np.log(1 - B)),
    "cast(A, 'int32')": A.astype("int32"),
    "categorical_crossentropy(A, B)": -(
        A * np.log(B / B.sum(-1, keepdims=True))
    ).sum(-1),
    "clip(A, min_value=0.2, max_value=0.5)": A.clip(0.2, 0.5),
    "concatenate([A, B])": np.concatenate([A, B], -1),
    "cos(A)": np.cos(A),
    "dot(A, B.T)": A @ B.T,
    "elu(CUBE)": np.where(CUBE > 0, CUBE, np.expm1(CUBE)),
    "equal(A, A)": np.full((4, 3), True),
    "eval(keras.ops.convert_to_tensor(A))": A,
    "exp(A)": np.exp(A),
    "expand_dims(A)": A[..., None],
    "flatten(CUBE)": CUBE.ravel(),
    "gather(A, np.array([2, 0]))": A[[2, 0]],
    "get_value(keras.Variable(A))": A,
    "greater(A, B)": A > B,
    "greater_equal(A, B)": A >= B,
    "int_shape(CUBE)": (2, 3, 4),
    "less(A, B)": A < B,
    "less_equal(A, B)": A <= B,
    "log(A)": np.log(A),
    "logsumexp(A, axis=-1)": np.log(np.exp(A).sum(-1)),
    "max(A, axis=0)": A.max(0),
    "maximum(A, B)": np.maximum(A, B),
    "mean(A, axis=1, keepdims=True)": A.mean(1, keepdims=True),
    "mean(K.equal(A, A))": 1.0,
    "min(A, 1)": A.min(1),
    "minimum(A, B)": np.minimum(A, B),
    "ndim(CUBE)": 3,
    "not_equal(A, A)": np.full((4, 3), False),
    "ones_like(A)": np.ones((4, 3)),
    "permute_dimensions(CUBE, pattern=(2, 0, 1))": CUBE.transpose(2, 0, 1),
    "pow(A, 2)": A**2,
    "prod(A, axis=-1)": A.prod(-1),
    "relu(CUBE)": CUBE.clip(0),
    "reshape(CUBE, shape=(6, 4))": CUBE.reshape(6, 4),
    "round(CUBE)": np.round(CUBE),
    "shape(A)[0]": 4,
    "sigmoid(A)": 1 / (1 + np.exp(-A)),
    "sign(CUBE)": np.sign(CUBE),
    "sin(A)": np.sin(A),
    "softmax(A)": np.exp(A) / np.exp(A).sum(-1, keepdims=True),
    "softplus(A)": np.log1p(np.exp(A)),
    "softsign(CUBE)": CUBE / (1 + np.abs(CUBE)),
    "sparse_categorical_crossentropy(np.array([0, 1, 2, 0]), B)": -np.log(
        (B / B.sum(-1, keepdims=True))[range(4), [0, 1, 2, 0]]
    ),
    "sqrt(A)": np.sqrt(A),
    "square(A)": A**2,
    "squeeze(A[None], 0)": A,
    "stack([A, B])": np.stack([A, B]),
    "std(A, axis=0)": A.std(0),
    "sum(A)": A.sum(),
    "sum(A * B, axis=-1)": (A * B).sum(-1),
    "tanh(A)": np.tanh(A),
    "tile(A, n=(2, 1))": np.tile(A, (2, 1)),
    "transpose(A)": A.T,
    "var(A, axis=-1)": A.var(-1),
    "zeros_like(A)": np.zeros((4, 3)),
}


@pytest.mark.parametrize("call", CALLS)
def test_functions_of_the_backend(call):
    value = migrated_value(f"K.{call}", A=A, B=B, CUBE=CUBE, np=np)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(value), CALLS[call], rtol=2e-6, atol=1e-6
    )


def test_each_function_of_the_table_was_called():
    called = {call.partition("(")[0] for call in CALLS}
    drawn = {"random_normal", "random_uniform", "stop_gradient"}
    assert set(_names.BACKEND) - drawn <= called


def test_numbers_that_are_drawn():
    for name in ("random_normal", "random_uniform"):
        drawn = migrated_value(f"K.{name}((500, 2), seed=1)")
        assert drawn.shape == (500, 2)
    normal = migrated_value("K.random_normal((9000,), mean=2.0, stddev=3.0)")
    assert abs(float(np.std(normal)) - 3) < 0.2
    uniform = migrated_value("K.random_uniform((9000,), minval=1, maxval=2)")
    assert 1 <= float(np.min(uniform)) < 1.1 < 1.9 < float(np.max(uniform)) <= 2
    assert float(migrated_value("K.stop_gradient(A[0, 0])", A=A)) == A[0, 0]


def test_a_loss_that_changed_its_name():
    loss = migrated_value("keras.losses.cosine_proximity(A, B)", A=A, B=B)

    def normalized(x):
        return x / np.sqrt((x**2).sum(-1, keepdims=True))

    # `-K.sum(l2_normalize(y_true) * l2_normalize(y_pred), axis=-1)`.
    expected = -(normalized(A) * normalized(B)).sum(-1)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_a_kernel_of_three_by_three():
    code = "keras.layers.Convolution2D(4, 3, 3, subsample=(2, 2))"
    layer = migrated_value(code)
    assert layer.kernel_size == (3, 3)
    assert layer.strides == (2, 2)


def test_steps_are_rounded_up():
    for rows in (1, 31, 32, 33, 64, 100):
        source = f"import keras\nmodel.fit(data, steps_per_epoch={rows} / 32)\n"
        text = migrate(source).text
        steps = eval(text.partition("steps_per_epoch=")[2].strip()[:-1])
        assert steps == int(np.ceil(rows / 32))
        assert isinstance(steps, int)
