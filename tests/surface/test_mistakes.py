"""Mistakes that people make, and what they are told.

Each stands in a table. It is made on one device and on several: what one
device refuses is refused before a step has been taken, in words of Keras where
those are clear and in ours where they are not, and the model is as it was.
What one device takes is taken, with the same result: see `ODD`.
"""

import dataclasses
import functools
import re
import types
import warnings
from collections.abc import Callable

import jax
import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
import torch
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
from keras import layers

import keras_parallel as kp
from keras_parallel import _errors
from tests import helpers
from tests import models

RNG = np.random.default_rng(0)
X, Y = models.regression(24, RNG)
CLASSES = RNG.integers(0, 3, size=24)
TARGETS = {
    "main": models.features(24, RNG, 3),
    "aux": models.features(24, RNG, 1),
}
STRINGS = np.array([["a"] * 6] * 24)
RAGGED = np.array([[1, 2], [3]] * 12, dtype=object)
QUIET = {"verbose": 0, "shuffle": False}
SILENT = {"verbose": 0}


# Models. Their layers have names, which some messages hold.


def one_output():
    inputs = keras.Input((6,), name="features")
    middle = layers.Dense(4, activation="relu", name="middle")(inputs)
    model = keras.Model(inputs, layers.Dense(1, name="score")(middle), name="m")
    model.compile(models.sgd(), "mse", metrics=["mae"])
    return model


def not_compiled():
    model = one_output()
    return keras.Model(model.input, model.output, name="m")


def sequential():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(3, activation="softmax", name="classes"),
        ],
        name="m",
    )
    model.compile(models.sgd(), "sparse_categorical_crossentropy")
    return model


def two_outputs():
    inputs = keras.Input((6,), name="features")
    heads = [
        layers.Dense(3, name="main")(inputs),
        layers.Dense(1, name="aux")(inputs),
    ]
    model = keras.Model(inputs, heads, name="m")
    model.compile(models.sgd(), {"main": "mse", "aux": "mse"})
    return model


def two_inputs(as_dict=False):
    inputs = {name: keras.Input((6,), name=name) for name in "ab"}
    joined = layers.Concatenate(name="joined")(list(inputs.values()))
    model = keras.Model(
        inputs if as_dict else list(inputs.values()),
        layers.Dense(1, name="score")(joined),
        name="m",
    )
    model.compile(models.sgd(), "mse")
    return model


def dict_inputs():
    return two_inputs(as_dict=True)


GOOD = {
    one_output: (X, Y),
    not_compiled: (X, Y),
    sequential: (X, CLASSES),
    two_outputs: (X, TARGETS),
    two_inputs: ([X, X], Y),
    dict_inputs: ({"a": X, "b": X}, Y),
}


def train(model, make):
    """What works with each of the models."""
    if not model.compiled or model.optimizer is None:
        model.compile(models.sgd(), "mse", metrics=["mae"])
    model.fit(*GOOD[make], batch_size=8, **QUIET)


def recompile(model):
    model.compile(models.sgd(), "mse")


def batches(*given):
    def generate():
        yield from given

    return generate()


class Data(keras.utils.PyDataset):
    def __init__(self, batch, count=3):
        super().__init__()
        self.batch, self.count = batch, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.batch


def endless():
    while True:
        yield X, Y


def tf_data(rows):
    return tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(8)


def optimizer_for(*widths):
    stack = [keras.Input((6,)), *map(layers.Dense, widths)]
    optimizer = models.sgd()
    optimizer.build(keras.Sequential(stack).trainable_variables)
    return optimizer


def frozen_without_compile(model):
    model.get_layer("middle").trainable = False
    try:
        model.fit(X, Y, **SILENT)
    finally:
        model.get_layer("middle").trainable = True


@dataclasses.dataclass(frozen=True)
class Mistake:
    """Something a person does wrong.

    Args:
        name: What the tests call it.
        do: Does it to a model.
        says: What the message must hold.
        make: Makes the model.
        of_keras: The message is that of Keras, unchanged.
        first: Done to the model before.
        mend: Done to the model after, if the mistake lies in `compile`.
    """

    name: str
    do: Callable
    says: tuple[str, ...] | str = ()
    make: Callable = one_output
    of_keras: bool = False
    first: Callable = lambda model: None
    mend: Callable = lambda model: None


MISTAKES: list[Mistake] = []


def mistake(name, do, says, **options):
    says = (says,) if isinstance(says, str) else says
    MISTAKES.append(Mistake(name, do, says, **options))


def keras_says(name, do, says, **options):
    mistake(name, do, says, of_keras=True, **options)


def compiling(name, says, *args, make=one_output, of_keras=False, **kwargs):
    """A mistake in `compile`, at the latest told by the next `fit`."""

    def do(model):
        given = [a() if isinstance(a, types.FunctionType) else a for a in args]
        model.compile(*given, **kwargs)
        model.fit(*GOOD[make], **SILENT)

    def mend(model):
        compile_as_made = {
            one_output: ("mse", ["mae"]),
            # Given none, Keras keeps the metrics of before.
            two_outputs: ({"main": "mse", "aux": "mse"}, {"main": "mae"}),
            sequential: ("sparse_categorical_crossentropy", None),
        }
        loss, metrics = compile_as_made[make]
        model.compile(models.sgd(), loss, metrics=metrics)

    mistake(name, do, says, make=make, of_keras=of_keras, mend=mend)


# compile

for method, call in {
    "fit": lambda m: m.fit(X, Y, **SILENT),
    "evaluate": lambda m: m.evaluate(X, Y, **SILENT),
    "train_on_batch": lambda m: m.train_on_batch(X, Y),
    "test_on_batch": lambda m: m.test_on_batch(X, Y),
}.items():
    keras_says(
        f"{method} without compile", call, "call `compile()`", make=not_compiled
    )
compiling("no optimizer", "needs an optimizer", None, "mse")
compiling(
    "an optimizer class",
    "optimizer identifier",
    keras.optimizers.SGD,
    "mse",
    of_keras=True,
)
compiling("a learning rate", "identifier: 0.01", 0.01, "mse", of_keras=True)
compiling("a misspelt optimizer", "sgdd", "sgdd", "mse", of_keras=True)
compiling("a misspelt loss", "identifier: msee", "sgd", "msee", of_keras=True)
compiling("a number as loss", "identifier: 3", "sgd", 3, of_keras=True)
compiling(
    "a misspelt metric",
    "identifier: accc",
    "sgd",
    "mse",
    metrics=["accc"],
    of_keras=True,
)
compiling(
    "one metric without a list",
    "to be a list, tuple, or dict",
    "sgd",
    "mse",
    metrics="mae",
    of_keras=True,
)
compiling(
    "an argument that compile had once",
    "'sample_weight_mode'",
    "sgd",
    "mse",
    sample_weight_mode="temporal",
    of_keras=True,
)
compiling(
    "a loss for no output",
    ("['main', 'aux']", "'aus'"),
    "sgd",
    {"main": "mse", "aus": "mse"},
    make=two_outputs,
)
compiling(
    "a loss for no output of a Sequential",
    ("['classes']", "'clss'"),
    "sgd",
    {"clss": "sparse_categorical_crossentropy"},
    make=sequential,
)
compiling(
    "the names of the old multi_gpu_model",
    "'concatenate_2' meant 'aux'",
    "sgd",
    {"concatenate_1": "mse", "concatenate_2": "mse"},
    make=two_outputs,
)
compiling(
    "more losses than outputs",
    "one loss for each output",
    "sgd",
    ["mse", "mae", "mse"],
    make=two_outputs,
)
compiling(
    "a metric for no output",
    "Invalid `metrics`",
    "sgd",
    {"main": "mse", "aux": "mse"},
    metrics={"aus": "mae"},
    make=two_outputs,
    of_keras=True,
)
compiling(
    "a list of metrics for two outputs",
    "Invalid `metrics`",
    "sgd",
    {"main": "mse", "aux": "mse"},
    metrics=["mae"],
    make=two_outputs,
    of_keras=True,
)
compiling(
    "a loss weight for no output",
    "'aux': 1.0",
    "sgd",
    {"main": "mse", "aux": "mse"},
    loss_weights={"aus": 1.0},
    make=two_outputs,
)
compiling(
    "one loss weight for two outputs",
    "loss_weights=0.5",
    "sgd",
    {"main": "mse", "aux": "mse"},
    loss_weights=0.5,
    make=two_outputs,
)
compiling(
    "too few loss weights",
    "got 2 losses and 1 weights",
    "sgd",
    {"main": "mse", "aux": "mse"},
    loss_weights=[1.0],
    make=two_outputs,
    of_keras=True,
)
for value in (0, -1, 2.0, "2", None):
    compiling(
        f"steps_per_execution={value!r}",
        f"steps_per_execution={value!r}",
        "sgd",
        "mse",
        steps_per_execution=value,
    )
compiling(
    "the optimizer of a larger model",
    ("built for 6 variables of another model", "SGD()"),
    lambda: optimizer_for(7, 3, 2),
    "mse",
)
compiling(
    "the optimizer of a model as deep",
    "built for 4 variables of another",
    lambda: optimizer_for(7, 3),
    "mse",
)
mistake(
    "frozen without compile",
    frozen_without_compile,
    "before layers were frozen or unfrozen",
    first=lambda m: train(m, one_output),
)

# Rows

ROWS = "have the same number of rows"
keras_says(
    "y shorter than x", lambda m: m.fit(X, Y[:20], **SILENT), "'y' sizes: 20"
)
keras_says(
    "evaluate with y shorter than x",
    lambda m: m.evaluate(X, Y[:20], **SILENT),
    "'y' sizes: 20",
)
keras_says(
    "too few sample weights",
    lambda m: m.fit(X, Y, sample_weight=np.ones(20), **SILENT),
    "sizes: 20",
)
keras_says(
    "inputs of different lengths",
    lambda m: m.predict([X, X[:20]], **SILENT),
    "sizes: 24, 20",
    make=two_inputs,
)
mistake(
    "train_on_batch with y shorter than x",
    lambda m: m.train_on_batch(X, Y[:20]),
    (ROWS, "x of 24 rows, y of 20 rows", "x[:20], y[:20]"),
)
mistake(
    "test_on_batch with y shorter than x",
    lambda m: m.test_on_batch(X, Y[:8]),
    (ROWS, "y of 8 rows"),
)
mistake(
    "train_on_batch with too few sample weights",
    lambda m: m.train_on_batch(X, Y, sample_weight=np.ones(20)),
    (ROWS, "sample_weight=sample_weight[:20]"),
)
mistake(
    "train_on_batch with inputs of different lengths",
    lambda m: m.train_on_batch([X, X[:20]], Y),
    (ROWS, "20 and 24 rows"),
    make=two_inputs,
)
mistake(
    "predict_on_batch with inputs of different lengths",
    lambda m: m.predict_on_batch([X, X[:20]]),
    (ROWS, "20 and 24 rows"),
    make=two_inputs,
)
mistake(
    "a generator whose y is shorter",
    lambda m: m.fit(batches((X[:8], Y[:4])), **QUIET),
    (ROWS, "y of 4 rows"),
)
mistake(
    "a dataset whose y is shorter",
    lambda m: m.fit(Data((X[:8], Y[:4])), **QUIET),
    (ROWS, "y of 4 rows"),
)

# None at all

NO_ROWS = ("at least one row", "shape (0, 6)")
for method in ("fit", "evaluate", "train_on_batch"):
    mistake(
        f"{method} without rows",
        lambda m, method=method: getattr(m, method)(X[:0], Y[:0]),
        NO_ROWS,
    )
mistake("predict without rows", lambda m: m.predict(X[:0], **SILENT), NO_ROWS)
for method in ("fit", "evaluate", "predict"):
    mistake(
        f"{method} without rows after a training",
        lambda m, method=method: getattr(m, method)(X[:0], **SILENT),
        NO_ROWS,
        first=lambda m: train(m, one_output),
    )
mistake(
    "a dataset of no batches",
    lambda m: m.fit(Data((X, Y), 0), **SILENT),
    ("at least one batch", "Data without any"),
)
mistake(
    "predict with a dataset of no batches",
    lambda m: m.predict(Data((X,), 0), **SILENT),
    "at least one batch",
)
mistake(
    "a tf.data.Dataset of no batches",
    lambda m: m.fit(tf_data(0), **QUIET),
    "at least one batch",
)
mistake(
    "a tf.data.Dataset of no batches after a training",
    lambda m: m.fit(tf_data(0), **QUIET),
    "at least one batch",
    first=lambda m: train(m, one_output),
)
keras_says(
    "a generator of no batches",
    lambda m: m.fit(batches(), **QUIET),
    "Received an empty generator",
)
keras_says(
    "a first batch that is no tuple",
    lambda m: m.fit(batches(X, X), **QUIET),
    "must return a tuple",
)
mistake(
    "a first batch of no rows",
    lambda m: m.fit(batches((X[:0], Y[:0])), **QUIET),
    NO_ROWS,
)

# Targets

NO_Y = ("compares the outputs with targets", "y=None", "x, y)")
mistake("fit without y", lambda m: m.fit(X, **SILENT), NO_Y)
mistake("evaluate without y", lambda m: m.evaluate(X, **SILENT), NO_Y)
mistake("train_on_batch without y", lambda m: m.train_on_batch(X), NO_Y)
mistake("test_on_batch without y", lambda m: m.test_on_batch(X), NO_Y)
mistake(
    "train_on_batch with y inside x", lambda m: m.train_on_batch((X, Y)), NO_Y
)
mistake("fit with y inside x", lambda m: m.fit((X, Y), **SILENT), NO_Y)
mistake("a generator without y", lambda m: m.fit(batches((X,)), **QUIET), NO_Y)
HEADS = ("one target for each output", "['main', 'aux']", "'aux': ...")
for name, given in {
    "a target is forgotten": {"main": TARGETS["main"]},
    "a target is misspelt": {"main": TARGETS["main"], "aus": TARGETS["aux"]},
    "a target too many": TARGETS | {"third": Y},
    "one array for two outputs": TARGETS["main"],
    "one target of two in a list": [TARGETS["main"]],
    "three targets for two outputs": [*TARGETS.values(), Y],
}.items():
    mistake(
        name,
        lambda m, given=given: m.fit(X, given, **SILENT),
        HEADS,
        make=two_outputs,
    )
mistake(
    "train_on_batch with a forgotten target",
    lambda m: m.train_on_batch(X, {"main": TARGETS["main"]}),
    HEADS,
    make=two_outputs,
)
mistake(
    "a generator that forgets a target",
    lambda m: m.fit(batches((X, {"main": TARGETS["main"]})), **QUIET),
    HEADS,
    make=two_outputs,
)
mistake(
    "the only target misspelt",
    lambda m: m.fit(X, {"scor": Y}, **SILENT),
    ("['score']", "keys ['scor']"),
)
keras_says(
    "labels for a loss of one-hot rows",
    lambda m: (
        m.compile(models.sgd(), "categorical_crossentropy"),
        m.fit(X, CLASSES, **SILENT),
    ),
    "must have the same shape",
    make=sequential,
    mend=lambda m: m.compile(models.sgd(), "sparse_categorical_crossentropy"),
)

# What is no number

NUMBERS = "Arrays hold numbers"
for name, given in {
    "strings": STRINGS,
    "objects": X.astype(object),
    "ragged rows": RAGGED,
    "dates": np.zeros((24, 6), "datetime64[s]"),
}.items():
    mistake(
        f"{name} as x",
        lambda m, given=given: m.fit(given, Y, **SILENT),
        (NUMBERS, str(given.dtype)),
    )
    mistake(
        f"{name} as x of train_on_batch",
        lambda m, given=given: m.train_on_batch(given, Y),
        NUMBERS,
    )
mistake(
    "strings as y",
    lambda m: m.fit(X, STRINGS[:, 0], **SILENT),
    (NUMBERS, "StringLookup"),
)
mistake("strings in predict", lambda m: m.predict(STRINGS, **SILENT), NUMBERS)
mistake(
    "strings in predict_on_batch",
    lambda m: m.predict_on_batch(STRINGS),
    NUMBERS,
)
mistake(
    "strings from a generator",
    lambda m: m.fit(batches((STRINGS, Y)), **QUIET),
    NUMBERS,
)

# Lists for arrays, and what is no data

LIST = "a list stands for several"
mistake(
    "lists as x",
    lambda m: m.fit(X.tolist(), Y, **SILENT),
    (LIST, "x=list of 24 lists", "numpy.array(x)"),
)
mistake(
    "lists as y",
    lambda m: m.fit(X, Y.tolist(), **SILENT),
    (LIST, "y=list of 24 lists", "x, numpy.array(y)"),
)
mistake(
    "a list of sample weights",
    lambda m: m.fit(X, Y, sample_weight=[1.0] * 24, **SILENT),
    (LIST, "sample_weight=numpy.array(sample_weight)"),
)
mistake(
    "lists as x of train_on_batch",
    lambda m: m.train_on_batch(X.tolist(), Y),
    LIST,
)
mistake(
    "lists as y of train_on_batch",
    lambda m: m.train_on_batch(X, Y.tolist()),
    LIST,
)
mistake(
    "lists as x of predict", lambda m: m.predict(X.tolist(), **SILENT), LIST
)
mistake(
    "a range as y", lambda m: m.fit(X, range(24), **SILENT), "`y` is an array"
)
for name, given, works in (
    ("a path", "train.csv", "numpy.load(path)"),
    ("a generator function", endless, "endless()"),
    ("the class of a dataset", Data, "Data(...)"),
    ("an iterator over a list", iter([(X, Y)]), "(batch for batch in"),
    ("a zip", zip([X], [Y]), "(batch for batch in"),
    ("a number", 3.0, "numpy.array([x])"),
    ("a set", {1.0, 2.0}, "numpy.array(list(x))"),
):
    mistake(
        f"{name} as x",
        lambda m, given=given: m.fit(given, **SILENT),
        ("`x` is an array, a list or dict", works),
    )
mistake("a scalar array as x", lambda m: m.fit(np.array(3.0)), "has no rows")
mistake("fit of nothing", lambda m: m.fit(), "x=None")
mistake("predict of nothing", lambda m: m.predict(None), "x=None")
keras_says("x forgotten", lambda m: m.fit(None, Y, **SILENT), "is not optional")
for name, given, works in (
    ("PyTorch", torch.tensor(X), "x.detach().numpy()"),
    ("TensorFlow", tf.constant(X), "numpy.asarray(x)"),
    ("SciPy", scipy.sparse.csr_matrix(X), "x.toarray()"),
):
    mistake(
        f"train_on_batch with an array of {name}",
        lambda m, given=given: m.train_on_batch(given, Y),
        ("NumPy arrays or of arrays of the backend", works),
    )
mistake(
    "predict_on_batch with an array of PyTorch",
    lambda m: m.predict_on_batch(torch.tensor(X)),
    "torch.Tensor",
)

# Shapes and inputs

keras_says(
    "a dim too many",
    lambda m: m.fit(X[:, None], Y, **SILENT),
    "expected shape=(None, 6), found shape=(24, 1, 6)",
)
keras_says(
    "a feature too few",
    lambda m: m.fit(X[:, :5], Y, **SILENT),
    "expected shape=(None, 6), found shape=(24, 5)",
)
keras_says(
    "a feature too few after a training",
    lambda m: m.fit(X[:, :5], Y, **SILENT),
    "to have value 6",
    first=lambda m: train(m, one_output),
)
keras_says(
    "predict of a feature too few",
    lambda m: m.predict(X[:, :5], **SILENT),
    "to have value 6",
)
keras_says(
    "predict of one row without its dim",
    lambda m: m.predict(X[0], **SILENT),
    "Expected shape (None, 6)",
)
keras_says(
    "a dataset without batches",
    lambda m: m.fit(tf_data(24).unbatch(), **QUIET),
    "Expected shape (None, 6)",
)
for name, given, said in (
    ("an input is forgotten", {"a": X}, 'Missing data for input "b"'),
    ("an input is misspelt", {"a": X, "c": X}, 'Missing data for input "b"'),
    ("one array for two inputs", X, "received 1 input tensors"),
):
    keras_says(
        name,
        lambda m, given=given: m.fit(given, Y, **SILENT),
        said,
        make=dict_inputs,
    )
for count in (1, 3):
    keras_says(
        f"{count} of two inputs",
        lambda m, count=count: m.fit([X] * count, Y, **SILENT),
        f"received {count} input tensors",
        make=two_inputs,
    )
keras_says(
    "a dataset that returns None",
    lambda m: m.fit(Data(None), **QUIET),
    "must return a tuple or a dict",
)
keras_says(
    "a dataset that returns three and more",
    lambda m: m.fit(Data((X, Y, None, None)), **QUIET),
    "must return a tuple",
)
mistake(
    "a generator that yields three and more",
    lambda m: m.fit(batches((X, Y, None, None)), **QUIET),
    ("A batch is `x`", "tuple of 4"),
)
for name, given in {
    "generator": batches((X, Y)),
    "PyDataset": Data((X, Y)),
    "tf.data.Dataset": tf_data(24),
}.items():
    keras_says(
        f"y beside a {name}",
        lambda m, given=given: m.fit(given, Y, **QUIET),
        "`y` should not be passed",
    )

# Class weights and validation

for name, given in {
    "a list of class weights": [1.0, 2.0, 3.0],
    "class_weight='balanced'": "balanced",
}.items():
    mistake(
        name,
        lambda m, given=given: m.fit(X, CLASSES, class_weight=given, **SILENT),
        "is a dict from the index",
        make=sequential,
    )
for method in ("fit", "train_on_batch"):
    mistake(
        f"class weights for two outputs in {method}",
        lambda m, method=method: getattr(m, method)(
            X, TARGETS, class_weight={0: 1.0}
        ),
        "models with a single output",
        make=two_outputs,
    )
keras_says(
    "class weights and sample weights",
    lambda m: m.fit(
        X, CLASSES, sample_weight=np.ones(24), class_weight={0: 1.0}, **SILENT
    ),
    "at the same time",
    make=sequential,
)
keras_says(
    "class weights for a generator",
    lambda m: m.fit(batches((X, CLASSES)), class_weight={0: 1.0}, **QUIET),
    "not supported for Python generator",
    make=sequential,
)
keras_says(
    "validation_split of a generator",
    lambda m: m.fit(endless(), validation_split=0.2, **QUIET),
    "only supported for tensors or NumPy arrays",
)
for share in (1.0, 0.99):
    keras_says(
        f"validation_split={share}",
        lambda m, share=share: m.fit(X, Y, validation_split=share, **SILENT),
        "not sufficient to split",
    )
VALIDATION = "`validation_data` is data that `evaluate` takes"
for name, given, said in (
    ("an array", X, "y=None"),
    ("of different lengths", (X, Y[:10]), "y of 10 rows"),
    ("a path", "val.csv", "x='val.csv'"),
    ("a number", 0.2, "x=0.2"),
    ("lists", (X.tolist(), Y.tolist()), "list of 24 lists"),
    ("with y as a list", (X, Y.tolist()), "y=list of 24 lists"),
    ("a dict", {"x": X, "y": Y}, "y=None"),
):
    mistake(
        f"validation_data {name}",
        lambda m, given=given: m.fit(X, Y, validation_data=given, **SILENT),
        (VALIDATION, said, "validation_data=("),
    )
mistake(
    "validation_data of four",
    lambda m: m.fit(X, Y, validation_data=(X, Y, None, None), **SILENT),
    "tuple of 4",
)
mistake(
    "validation_data with a forgotten target",
    lambda m: m.fit(
        X, TARGETS, validation_data=(X, {"main": TARGETS["main"]}), **SILENT
    ),
    (VALIDATION, *HEADS),
    make=two_outputs,
)
for name, given in (
    ("validation_freq", 0),
    ("validation_freq", "1"),
    ("validation_batch_size", 8.0),
    ("validation_steps", 1.5),
):
    mistake(
        f"{name}={given!r}",
        lambda m, given={name: given}: m.fit(
            X, Y, validation_data=(X, Y), **given, **SILENT
        ),
        (f"`{name}` is", f"{name}={given!r}"),
    )

# Counts

for name, given in (
    ("batch_size", -8),
    ("batch_size", 8.0),
    ("batch_size", "8"),
    ("epochs", "2"),
    ("epochs", 2.0),
    ("epochs", None),
    ("initial_epoch", "0"),
    ("steps_per_epoch", 2.5),
    ("steps_per_epoch", "2"),
    ("steps_per_epoch", -1),
):
    mistake(
        f"{name}={given!r}",
        lambda m, given={name: given}: m.fit(X, Y, **given, **SILENT),
        (f"`{name}` is an integer", f"{name}={given!r}"),
    )
for name, given in (("steps", -1), ("steps", "2"), ("batch_size", 8.0)):
    for method in ("evaluate", "predict"):
        mistake(
            f"{method} with {name}={given!r}",
            lambda m, method=method, given={name: given}: getattr(m, method)(
                x=X,
                **given,
                **({"y": Y} if method == "evaluate" else {}),
                **SILENT,
            ),
            (f"`{name}` is an integer", f"model.{method}("),
        )
mistake(
    "targets for predict",
    lambda m: m.predict(X, Y, **SILENT),
    "`predict` takes no targets",
)

# Callbacks and names of arguments

CALLBACKS = "a list of instances of `keras.callbacks.Callback`"
STOP = keras.callbacks.TerminateOnNaN
for name, given, said in (
    ("a class", [STOP], "TerminateOnNaN(...)"),
    ("a function", [lambda epoch, logs: None], "LambdaCallback"),
    ("a name", ["TerminateOnNaN"], "callbacks with 'TerminateOnNaN'"),
    ("None", [None], "callbacks with None"),
    ("a list", [[STOP()]], "list of 1 TerminateOnNaN"),
    ("a number", 3, "callbacks with 3"),
):
    mistake(
        f"{name} for a callback",
        lambda m, given=given: m.fit(X, Y, callbacks=given, **SILENT),
        (CALLBACKS, said),
    )
mistake(
    "a set of callbacks",
    lambda m: m.fit(X, Y, callbacks={STOP()}),
    CALLBACKS,
)
mistake(
    "a class for a callback of evaluate",
    lambda m: m.evaluate(X, Y, callbacks=[STOP], **SILENT),
    CALLBACKS,
)
for name, near in (("nb_epoch", "epochs=..."), ("batchsize", "batch_size=...")):
    mistake(
        f"an argument called {name}",
        lambda m, given={name: 3}: m.fit(X, Y, **given),
        (f"{name}=3", near),
    )
mistake(
    "train_on_batch with a batch size",
    lambda m: m.train_on_batch(X, Y, batch_size=8),
    ("`train_on_batch` takes x, y, sample_weight", "batch_size=8"),
)
keras_says(
    "fit_generator",
    lambda m: m.fit_generator(endless()),
    "fit_generator",
)


# What one device takes, though it may not be what was meant.

ODD: dict[str, tuple[Callable, Callable]] = {
    "batch_size=0": (one_output, lambda m: m.fit(X, Y, batch_size=0, **QUIET)),
    "batch_size=True": (
        one_output,
        lambda m: m.fit(X, Y, batch_size=True, **QUIET),
    ),
    "batch_size of a generator": (
        one_output,
        lambda m: m.fit(batches((X, Y), (X, Y)), batch_size=-8, **QUIET),
    ),
    "no epochs": (one_output, lambda m: m.fit(X, Y, epochs=0, **QUIET)),
    "initial_epoch after epochs": (
        one_output,
        lambda m: m.fit(X, Y, epochs=1, initial_epoch=5, **QUIET),
    ),
    "more steps than data": (
        one_output,
        lambda m: m.fit(X, Y, steps_per_epoch=9, **QUIET),
    ),
    "a generator that ends early": (
        one_output,
        lambda m: m.fit(
            batches((X, Y), (X, Y)), steps_per_epoch=5, epochs=2, **QUIET
        ),
    ),
    "an endless generator with steps": (
        one_output,
        lambda m: m.fit(endless(), steps_per_epoch=3, **QUIET),
    ),
    "steps of evaluate beyond the data": (
        one_output,
        lambda m: m.evaluate(X, Y, steps=9, **SILENT),
    ),
    "one target for all rows": (
        one_output,
        lambda m: m.train_on_batch(X, Y[:1]),
    ),
    "targets of three columns": (
        one_output,
        lambda m: m.fit(X, np.ones((24, 3)), **QUIET),
    ),
    "test_on_batch without rows": (
        one_output,
        lambda m: m.test_on_batch(X[:0], Y[:0]),
    ),
    "predict_on_batch without rows": (
        one_output,
        lambda m: m.predict_on_batch(X[:0]),
    ),
    "predict without compile": (
        not_compiled,
        lambda m: m.predict(X, **SILENT),
    ),
    "compile without a loss": (
        not_compiled,
        lambda m: (m.compile("sgd"), m.fit(X, Y, **QUIET))[1],
    ),
    "the class of a loss": (
        not_compiled,
        lambda m: (
            m.compile("sgd", keras.losses.MeanSquaredError),
            m.fit(X, Y, **QUIET),
        )[1],
    ),
    "integers for floats": (
        one_output,
        lambda m: m.fit((X * 10).astype(int), Y, **QUIET),
    ),
    "booleans for floats": (one_output, lambda m: m.fit(X > 0, Y, **QUIET)),
    "tensors of PyTorch": (
        one_output,
        lambda m: m.fit(torch.tensor(X), torch.tensor(Y), **QUIET),
    ),
    "tensors of TensorFlow": (
        one_output,
        lambda m: m.fit(tf.constant(X), tf.constant(Y), **QUIET),
    ),
    "a sparse matrix": (
        one_output,
        lambda m: m.fit(scipy.sparse.csr_matrix(X), Y, **QUIET),
    ),
    "an input too many": (
        dict_inputs,
        lambda m: m.fit({"a": X, "b": X, "c": X}, Y, **QUIET),
    ),
    "targets in the other order": (
        two_outputs,
        lambda m: m.fit(X, [TARGETS["aux"], TARGETS["main"]], **QUIET),
    ),
    "a class without a weight": (
        sequential,
        lambda m: m.fit(X, CLASSES, class_weight={0: 2.0}, **QUIET),
    ),
    "labels beyond the classes": (
        sequential,
        lambda m: m.fit(X, CLASSES + 5, **QUIET),
    ),
    "validation_split=1.5": (
        one_output,
        lambda m: m.fit(X, Y, validation_split=1.5, **QUIET),
    ),
    "validation_split=-0.2": (
        one_output,
        lambda m: m.fit(X, Y, validation_split=-0.2, **QUIET),
    ),
    "validation data without rows": (
        one_output,
        lambda m: m.fit(X, Y, validation_data=(X[:0], Y[:0]), **QUIET),
    ),
    "wrong validation data that nobody looks at": (
        one_output,
        lambda m: m.fit(
            X, Y, validation_data=(X, Y[:3]), validation_freq=5, **QUIET
        ),
    ),
    "validation_data as a list": (
        one_output,
        lambda m: m.fit(X, Y, validation_data=[X, Y], **QUIET),
    ),
    "validation_steps=-1": (
        one_output,
        lambda m: m.fit(
            X, Y, validation_data=(X, Y), validation_steps=-1, **QUIET
        ),
    ),
    "validation_batch_size=-1": (
        one_output,
        lambda m: m.fit(
            X, Y, validation_data=(X, Y), validation_batch_size=-1, **QUIET
        ),
    ),
    "one callback without a list": (
        one_output,
        lambda m: m.fit(X, Y, callbacks=STOP(), **QUIET),
    ),
    "a dict of callbacks": (
        one_output,
        lambda m: m.fit(X, Y, callbacks={"stop": STOP()}, **QUIET),
    ),
    "not a number, and a callback that ends training": (
        one_output,
        lambda m: m.fit(
            np.where(np.arange(24)[:, None] == 9, np.nan, X),
            Y,
            batch_size=8,
            callbacks=[STOP()],
            **QUIET,
        ),
    ),
    "a batch that lies on another device": (
        one_output,
        lambda m: m.train_on_batch(*jax.device_put((X, Y), jax.devices()[5])),
    ),
    "data that is sharded over other devices": (
        one_output,
        lambda m: m.fit(*jax.device_put((X, Y), elsewhere()), **QUIET),
    ),
    "a batch that is sharded over other devices": (
        one_output,
        lambda m: m.train_on_batch(*jax.device_put((X, Y), elsewhere())),
    ),
    "an unknown loss weight beside the known": (
        two_outputs,
        lambda m: (
            m.compile(
                models.sgd(),
                {"main": "mse", "aux": "mse"},
                loss_weights={"main": 2.0, "aux": 1.0, "third": 3.0},
            ),
            m.fit(X, TARGETS, **QUIET),
        )[1],
    ),
    "a model without variables": (
        lambda: compiled(
            keras.Sequential([keras.Input((6,)), layers.Activation("relu")])
        ),
        lambda m: m.fit(X, X, **QUIET),
    ),
    "a model of which all is frozen": (
        one_output,
        lambda m: (
            setattr(m, "trainable", False),
            compiled(m).fit(X, Y, **QUIET),
        )[1],
    ),
    "an optimizer that another model is trained with": (
        one_output,
        lambda m: share_optimizer(m, one_output()),
    ),
}


def compiled(model):
    model.compile(models.sgd(), "mse")
    return model


def elsewhere():
    mesh = Mesh(np.array(jax.devices()[4:7]), ("rows",))
    return NamedSharding(mesh, PartitionSpec("rows"))


def share_optimizer(model, other):
    optimizer = models.sgd()
    for trained in (other, model):
        trained.compile(optimizer, "mse")
        trained.fit(X, Y, **QUIET)


def outcome(model, do):
    """What came of it: a result or an exception, and the warnings."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = do(model)
        except Exception as error:
            result = error
    return result, {str(one.message) for one in warned}


def fresh(make, parallel, first=lambda model: None):
    keras.utils.set_random_seed(0)
    model = make()
    if parallel:
        model = kp.data_parallel(model, 2)
    first(model)
    return model


@functools.cache
def state_if_trained(make, first):
    model = fresh(make, False, first)
    train(model, make)
    return helpers.state_of(model)


def message_of(error):
    return re.sub(r"0x[0-9a-f]+", "", str(error))


def steps_of(model):
    optimizer = getattr(model, "optimizer", None)
    return 0 if optimizer is None else int(optimizer.iterations)


def assert_on_one_device(model):
    assert len({d for v in model.variables for d in v.value.devices()}) == 1


@pytest.mark.parametrize("given", MISTAKES, ids=lambda given: given.name)
def test_a_mistake_is_told_before_a_step_and_harms_nothing(given):
    told, _ = outcome(fresh(given.make, False, given.first), given.do)
    assert isinstance(told, Exception), "one device takes this"
    model = fresh(given.make, True, given.first)
    before, steps = [v.numpy() for v in model.variables], steps_of(model)
    error, _ = outcome(model, given.do)
    if given.of_keras:
        assert type(error) is type(told)
        assert message_of(error) == message_of(told)
    else:
        assert isinstance(error, _errors.KerasParallelError | ValueError)
        helpers.assert_teaches(error)
    for text in given.says:
        assert text in str(error)

    assert steps_of(model) in (steps, 0)
    for own, earlier in zip(model.variables, before):
        np.testing.assert_array_equal(own.numpy(), earlier)
    assert_on_one_device(model)
    given.mend(model)
    train(model, given.make)
    assert_on_one_device(model)
    helpers.assert_close(
        state_if_trained(given.make, given.first), helpers.state_of(model)
    )


def test_the_table_is_long():
    assert len({given.name for given in MISTAKES}) == len(MISTAKES) > 100


@pytest.mark.parametrize("name", ODD)
def test_what_one_device_takes_is_taken(name):
    make, do = ODD[name]
    results = []
    for parallel in (False, True):
        model = fresh(make, parallel)
        result, warned = outcome(model, do)
        assert not isinstance(result, Exception), result
        if hasattr(result, "history"):
            result = list(result.history.items())
        numbers = [a for a in keras.tree.flatten(result) if a is not None]
        results.append((numbers, warned, model.get_weights(), steps_of(model)))
    one, several = results
    assert one[3] == several[3]
    assert one[1] == several[1]
    assert [type(a) for a in one[0]] == [type(a) for a in several[0]]
    for a, b in zip(one[0], several[0]):
        if isinstance(a, str):
            assert a == b
        else:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(one[2], several[2]):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# Errors of the user's own, beside what looks like a mistake and is none.


def fail(error):
    raise error


class FailsAtTheEnd(keras.callbacks.Callback):
    def __init__(self, change, error):
        super().__init__()
        self.change, self.error = change, error

    def on_train_end(self, logs=None):
        self.change(self.model)
        fail(self.error)


class FailingLayer(layers.Layer):
    def call(self, inputs, training=False):
        if training:
            raise ValueError("the shape of my table")
        return inputs[0]


def with_a_table():
    inputs = [keras.Input((6,)), keras.Input((6,))]
    outputs = layers.Dense(1)(FailingLayer(name="failing")(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    return model


class ForgetsLogs(keras.Model):
    def train_step(self, *args):
        if not args:
            logs = {}
        return logs


def forgets_logs():
    inputs = keras.Input((6,))
    model = ForgetsLogs(inputs, layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


def freeze(model):
    model.layers[-1].trainable = False


def drop_the_optimizer(model):
    model.optimizer = None


OWN_ERRORS = {
    "a callback that freezes and fails": (
        one_output,
        lambda m: m.fit(
            X,
            Y,
            callbacks=[FailsAtTheEnd(freeze, FileNotFoundError("mine"))],
            **SILENT,
        ),
        FileNotFoundError,
    ),
    "a callback that drops the optimizer and fails": (
        one_output,
        lambda m: m.fit(
            X,
            Y,
            callbacks=[FailsAtTheEnd(drop_the_optimizer, KeyError("mine"))],
            **SILENT,
        ),
        KeyError,
    ),
    "a step that forgets its logs": (
        forgets_logs,
        lambda m: m.fit(X, Y, **SILENT),
        UnboundLocalError,
    ),
    "a layer that fails for a table of other rows": (
        with_a_table,
        lambda m: m.train_on_batch([X, X[:3]], Y),
        ValueError,
    ),
}


@pytest.mark.parametrize("name", list(OWN_ERRORS))
def test_errors_of_the_users_own_stay_theirs(name):
    make_model, act, kind = OWN_ERRORS[name]
    messages = []
    for parallelize in (lambda m: m, lambda m: kp.data_parallel(m, 2)):
        with pytest.raises(kind) as caught:
            act(parallelize(make_model()))
        assert not isinstance(caught.value, _errors.KerasParallelError)
        messages.append(str(caught.value).split("Arguments")[0])
    assert messages[0] == messages[1]
