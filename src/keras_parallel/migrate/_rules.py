"""What is written for a call of Keras 2, and what is left to the user.

A rule takes a call and returns what stands there in Keras 3. Where it cannot
decide, it leaves the call as it is, so that Keras refuses it, and adds a
note. `docs/from_keras_2.md` has a row for each; a test runs the rows.
"""

import dataclasses
import itertools
from collections.abc import Callable

import libcst as cst

from keras_parallel.migrate import _arguments
from keras_parallel.migrate._facts import Facts
from keras_parallel.migrate._facts import Names
from keras_parallel.migrate._facts import literal


@dataclasses.dataclass(frozen=True, order=True)
class Note:
    """Something that could not be decided.

    Attributes:
        line: Where it stands, counted from 1.
        text: What, why, and what to do.
    """

    line: int
    text: str


class Context:
    """What rules know of the script, and what they leave behind."""

    def __init__(self, names: Names, facts: Facts):
        self.names = names
        self.facts = facts
        self.notes: set[Note] = set()
        self.needs_keras = False

    def note(self, node: cst.CSTNode, text: str) -> None:
        self.notes.add(Note(self.names.line(node), text))

    def keras(self, path: str) -> str:
        """`keras.path` as this script spells it."""
        self.needs_keras = True
        return f"{self.facts.keras_root or 'keras'}.{path}"

    def is_tensorflow(self, node: cst.CSTNode) -> bool:
        """Whether a name of Keras is spelled with `tensorflow`."""
        return (self.names.imported(node) or "").startswith("tensorflow.")

    def is_model(self, node: cst.CSTNode) -> bool:
        return self.facts.key(node) in self.facts.models


@dataclasses.dataclass(frozen=True)
class Called:
    """A call that a rule looks at.

    Attributes:
        original: The call as it came; positions and names belong to it.
        name: What it calls: a name under `keras`, or that of a method.
    """

    original: cst.Call
    name: str

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]


Rule = Callable[[cst.Call, Called, Context], cst.BaseExpression]

FUNCTIONS: dict[str, Rule] = {}
METHODS: dict[str, Rule] = {}


def function(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for functions and classes of these names."""

    def register(rule):
        for name in names:
            FUNCTIONS[name] = rule
        return rule

    return register


def method(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for methods of these names, of any object."""

    def register(rule):
        for name in names:
            METHODS[name] = rule
        return rule

    return register


# ---- optimizers

# Positional arguments of Keras 2; those of TensorFlow are those of Keras 3.
_OPTIMIZERS = {
    "SGD": ("lr", "momentum", "decay", "nesterov"),
    "RMSprop": ("lr", "rho", "epsilon", "decay"),
    "Adagrad": ("lr", "epsilon", "decay"),
    "Adadelta": ("lr", "rho", "epsilon", "decay"),
    "Adam": ("lr", "beta_1", "beta_2", "epsilon", "decay", "amsgrad"),
    "Adamax": ("lr", "beta_1", "beta_2", "epsilon", "decay"),
    "Nadam": ("lr", "beta_1", "beta_2", "epsilon", "schedule_decay"),
}
_TENSORFLOW_OPTIMIZERS = {
    "SGD": ("lr", "momentum", "nesterov"),
    "RMSprop": ("lr", "rho", "momentum", "epsilon", "centered"),
    "Adagrad": ("lr", "initial_accumulator_value", "epsilon"),
    "Adadelta": ("lr", "rho", "epsilon"),
    "Adam": ("lr", "beta_1", "beta_2", "epsilon", "amsgrad"),
    "Adamax": ("lr", "beta_1", "beta_2", "epsilon"),
    "Nadam": ("lr", "beta_1", "beta_2", "epsilon"),
}
_RATES = {
    "SGD": "0.01",
    "RMSprop": "0.001",
    "Adagrad": "0.01",
    "Adadelta": "1.0",
    "Adam": "0.001",
    "Adamax": "0.002",
    "Nadam": "0.002",
}
_TENSORFLOW_RATES = {**dict.fromkeys(_RATES, "0.001"), "SGD": "0.01"}
# Those whose default is another one in Keras 3.
_CHANGED_RATES = frozenset({"Adadelta", "Adagrad", "Adamax", "Nadam"})


# Keras 2 had `rmsprop` beside `RMSprop`.
_BY_LOWER = {name.lower(): name for name in _OPTIMIZERS}


@function(*(f"keras.optimizers.{name}" for name in (*_OPTIMIZERS, *_BY_LOWER)))
def optimizer(call, called, context):
    """`lr` is `learning_rate`; `decay` is a schedule; defaults changed."""
    name = _BY_LOWER[called.last.lower()]
    tensorflow = context.is_tensorflow(called.original.func)
    if not _arguments.is_open(call):
        call = _name_arguments(call, name, tensorflow)
    call = _arguments.rename(call, "lr", "learning_rate")
    epsilon = _arguments.find(call, "epsilon")
    if epsilon and context.facts.code(epsilon.value) == "None":
        call = _arguments.drop(call, epsilon)
    call = _nesterov_decay(call, called, context)
    rate = (_TENSORFLOW_RATES if tensorflow else _RATES)[name]
    call = _decay(call, called, context, rate)
    if (
        name in _CHANGED_RATES
        and not _rate(call)
        and not _arguments.is_open(call)
    ):
        call = _arguments.append(call, "learning_rate", rate)
    return call


def _name_arguments(call, name, tensorflow):
    """Passes by keyword what does not stand where Keras 3 has it.

    What is spelled with TensorFlow stands there, and loses that spelling:
    from where the two orders part, it is named as well.
    """
    keras_2, keras_3 = _OPTIMIZERS[name], _TENSORFLOW_OPTIMIZERS[name]
    order = keras_3 if tensorflow else keras_2
    same = sum(1 for _ in itertools.takewhile(_is_pair, zip(keras_2, keras_3)))
    return _arguments.name_positional(call, same, order[same:])


def _is_pair(names):
    return names[0] == names[1]


def _rate(call) -> cst.Arg | None:
    first = _arguments.positional(call)
    return first[0] if first else _arguments.find(call, "learning_rate")


def _nesterov_decay(call, called, context):
    decay = _arguments.find(call, "schedule_decay")
    if decay is None:
        return call
    if literal(decay.value) != 0.004:
        context.note(
            called.original,
            "`schedule_decay` of Nadam: gone in Keras 3, which always uses "
            "0.004, the old default. Remove it or use another optimizer.",
        )
        return call
    return _arguments.drop(call, decay)


def _decay(call, called, context, default_rate):
    decay = _arguments.find(call, "decay")
    if decay is None:
        return call
    if literal(decay.value) == 0:
        return _arguments.drop(call, decay)
    setter = context.facts.rate_setter
    if setter is not None or _arguments.is_open(call):
        why = (
            f"{setter} sets the learning rate, and a schedule does not allow "
            "that"
            if setter
            else "the learning rate may be in `**`"
        )
        context.note(
            called.original,
            "`decay=`: gone in Keras 3, which ignores it with a warning. It "
            f"is not rewritten as a schedule: {why}. Decide for one of them: "
            "`keras.optimizers.schedules.InverseTimeDecay(lr, decay_steps=1, "
            "decay_rate=decay)` as `learning_rate` is what `decay` did.",
        )
        return call
    call = _arguments.drop(call, decay)
    rate = _rate(call)
    code = default_rate if rate is None else context.facts.code(rate.value)
    schedule = (
        f"{context.keras('optimizers.schedules.InverseTimeDecay')}({code}, "
        f"decay_steps=1, decay_rate={context.facts.code(decay.value)})"
    )
    if rate is None:
        return _arguments.append(call, "learning_rate", schedule)
    return _arguments.value(call, rate, schedule)


# ---- training

# Positional arguments of Keras 2. Those of `evaluate_generator` and
# `predict_generator` after the second one differ between its versions.
_GENERATORS = {
    "fit_generator": (
        *("x", "steps_per_epoch", "epochs", "verbose", "callbacks"),
        *("validation_data", "validation_steps", "class_weight"),
        *("max_queue_size", "workers", "use_multiprocessing", "shuffle"),
        "initial_epoch",
    ),
    "evaluate_generator": ("x", "steps"),
    "predict_generator": ("x", "steps"),
}
_QUEUE = {
    "max_queue_size": 10,
    "max_q_size": 10,
    "workers": 1,
    "nb_worker": 1,
    "use_multiprocessing": False,
    "pickle_safe": False,
}
_OF_KERAS_1 = {"nb_epoch", "nb_val_samples", "nb_worker", "max_q_size"}


@method(*_GENERATORS)
def generators(call, called, context):
    """`fit_generator` and its kin are `fit`, `evaluate`, `predict`."""
    order = _GENERATORS[called.name]
    keras_1 = any(_arguments.find(call, name) for name in _OF_KERAS_1)
    given = _arguments.positional(call)
    if len(given) > len(order) or any(a.star == "*" for a in call.args):
        context.note(
            called.original,
            f"`{called.name}(...)` with so many positional arguments: their "
            "order differs between versions of Keras 2. Pass those after "
            f"{order[-1]!r} by keyword and migrate again.",
        )
        return call
    if keras_1:
        order = [
            "samples_per_epoch" if name == "steps_per_epoch" else name
            for name in order
        ]
    call = _arguments.name_positional(call, 1, order[1:])
    call = _arguments.rename(call, "generator", "x")
    func = cst.ensure_type(call.func, cst.Attribute)
    name = called.name.removesuffix("_generator")
    call = call.with_changes(
        func=func.with_changes(attr=func.attr.with_changes(value=name))
    )
    return training(call, called, context)


@method("fit", "evaluate", "predict")
def training(call, called, context):
    """Arguments of `fit`, `evaluate` and `predict` that moved."""
    call = _arguments.rename(call, "nb_epoch", "epochs")
    for keyword in ("samples_per_epoch", "nb_val_samples", "val_samples"):
        if _arguments.find(call, keyword):
            steps = (
                "steps_per_epoch"
                if keyword == "samples_per_epoch"
                else "validation_steps"
            )
            context.note(
                called.original,
                f"`{keyword}=` counts rows, and Keras 3 counts batches: the "
                f"rows of a batch are not written here. Pass `{steps}=rows "
                "// batch_size`.",
            )
    for keyword, default in _QUEUE.items():
        found = _arguments.find(call, keyword)
        if found is None:
            continue
        call = _arguments.drop(call, found)
        if literal(found.value) != default:
            context.note(
                called.original,
                f"`{keyword}={context.facts.code(found.value)}` is removed: "
                "in Keras 3 the data set has it. Pass `workers`, "
                "`use_multiprocessing` and `max_queue_size` to the "
                "constructor of your `keras.utils.PyDataset`, which hands "
                "them to `super().__init__(...)`.",
            )
    for keyword in ("steps_per_epoch", "validation_steps", "steps"):
        call = _whole_steps(call, keyword, called, context)
    return call


def _whole_steps(call, keyword, called, context):
    """Keras 2 took a fraction and rounded it up; Keras 3 takes an int."""
    found = _arguments.find(call, keyword)
    if found is None:
        return call
    value = found.value
    code = context.facts.code(value)
    if (
        isinstance(value, cst.BinaryOperation)
        and isinstance(value.operator, cst.Divide)
        and not _divides(value.left)
    ):
        left = context.facts.code(value.left)
        right = context.facts.code(value.right)
        return _arguments.value(call, found, f"-(-{left} // {right})")
    original = _arguments.find(called.original, keyword)
    if original is not None:
        if isinstance(original.value, cst.Call) and (
            context.names.imported(original.value.func)
            in ("numpy.ceil", "numpy.floor")
        ):
            return _arguments.value(call, found, f"int({code})")
        assigned = context.facts.value_of(original.value)
        if _divides(value) or (assigned is not None and _divides(assigned)):
            context.note(
                called.original,
                f"`{keyword}={code}` is a division: Keras 3 wants an int. "
                "Write `//`, or `-(-rows // batch_size)` to round up as "
                "Keras 2 did.",
            )
    return call


def _divides(node):
    return isinstance(node, cst.BinaryOperation) and (
        isinstance(node.operator, cst.Divide) or _divides(node.left)
    )


@method("compile")
def compile_(call, called, context):
    """Optimizers by string keep their learning rate; gone arguments."""
    for keyword in (
        *("sample_weight_mode", "target_tensors", "options", "run_metadata"),
    ):
        if _arguments.find(call, keyword):
            context.note(
                called.original,
                f"`compile({keyword}=...)`: gone in Keras 3. Remove it"
                + (
                    "; weights of the shape `(rows, steps)` need no mode."
                    if keyword == "sample_weight_mode"
                    else "."
                ),
            )
    first = _arguments.positional(call)[:1]
    found = _arguments.find(call, "optimizer") or (first[0] if first else None)
    if found is None:
        return call
    name = _BY_LOWER.get(str(literal(found.value)).lower())
    if name in _CHANGED_RATES:
        rates = _RATES if context.facts.imports_keras else _TENSORFLOW_RATES
        made = context.keras(f"optimizers.{name}")
        call = _arguments.value(
            call, found, f"{made}(learning_rate={rates[name]})"
        )
    return call


@method("predict_classes")
def predict_classes(call, called, context):
    """Gone; what it did depends on the last layer."""
    context.note(
        called.original,
        "`predict_classes(...)`: gone in Keras 3, and what it did depends on "
        "the last layer. Write `model.predict(x).argmax(-1)` after a softmax, "
        '`(model.predict(x) > 0.5).astype("int32")` after a sigmoid.',
    )
    return call


@method("predict_proba")
def predict_proba(call, called, context):
    """It was another name of `predict`."""
    func = called.original.func
    if not context.is_model(cst.ensure_type(func, cst.Attribute).value):
        return call
    return call.with_deep_changes(
        cst.ensure_type(call.func, cst.Attribute).attr, value="predict"
    )


@method("reset_states")
def reset_states(call, called, context):
    """Gone from models; layers have `reset_state`."""
    func = cst.ensure_type(called.original.func, cst.Attribute)
    if context.is_model(func.value):
        name = context.facts.code(func.value)
        context.note(
            called.original,
            f"`{name}.reset_states()`: gone in Keras 3, where each layer has "
            f"`reset_state()`. Write `for layer in {name}.layers:` and below "
            'it `if getattr(layer, "stateful", False): layer.reset_state()`.',
        )
    return call


# ---- layers and models

_WEIGHTS = {
    "init": "kernel_initializer",
    "W_regularizer": "kernel_regularizer",
    "b_regularizer": "bias_regularizer",
    "W_constraint": "kernel_constraint",
    "b_constraint": "bias_constraint",
    "bias": "use_bias",
}
_CONVOLUTION = {
    **_WEIGHTS,
    "nb_filter": "filters",
    "subsample": "strides",
    "subsample_length": "strides",
    "filter_length": "kernel_size",
    "border_mode": "padding",
}
_RECURRENT = {
    "output_dim": "units",
    "init": "kernel_initializer",
    "inner_init": "recurrent_initializer",
    "inner_activation": "recurrent_activation",
    "W_regularizer": "kernel_regularizer",
    "U_regularizer": "recurrent_regularizer",
    "b_regularizer": "bias_regularizer",
    "dropout_W": "dropout",
    "dropout_U": "recurrent_dropout",
}
# What Keras 2 itself translated from Keras 1, and other keywords that changed.
_KEYWORDS = {
    "keras.Model": {"input": "inputs", "output": "outputs"},
    "keras.models.Model": {"input": "inputs", "output": "outputs"},
    "keras.layers.Dense": {**_WEIGHTS, "output_dim": "units"},
    **{
        f"keras.layers.{name}": _CONVOLUTION
        for name in (
            *("Conv1D", "Conv2D", "Conv3D"),
            *("Convolution1D", "Convolution2D", "Convolution3D"),
        )
    },
    **{
        f"keras.layers.{name}": {"border_mode": "padding"}
        for name in (
            *("MaxPooling1D", "MaxPooling2D", "MaxPooling3D"),
            *("AveragePooling1D", "AveragePooling2D", "AveragePooling3D"),
        )
    },
    **{
        f"keras.layers.{name}": _RECURRENT
        for name in ("GRU", "LSTM", "CuDNNGRU", "CuDNNLSTM")
    },
    "keras.layers.SimpleRNN": {
        old: new for old, new in _RECURRENT.items() if old != "inner_activation"
    },
    "keras.layers.Dropout": {"p": "rate"},
    "keras.layers.GaussianNoise": {"sigma": "stddev"},
    "keras.regularizers.l1": {"l": "l1"},
    "keras.regularizers.l2": {"l": "l2"},
    "keras.utils.to_categorical": {"nb_classes": "num_classes"},
}
_NOT_IN_KERAS_3 = {
    "batch_input_shape": "put `keras.Input(batch_shape=...)` before the layer",
    "batch_norm_mode": "remove it",
    "border_mode": "write `padding=`",
    "consume_less": "remove it",
    "dim_ordering": "write `data_format=`",
    "nb_col": "write `kernel_size=(rows, columns)`",
    "nb_row": "write `kernel_size=(rows, columns)`",
}


@function(*_KEYWORDS)
def keywords(call, called, context):
    """Keywords of Keras 1 that Keras 2 still took."""
    renamed = _KEYWORDS.get(called.name, {})
    for old, new in renamed.items():
        call = _arguments.rename(call, old, new)
    if renamed is _CONVOLUTION:
        call = _kernel(call, called, context)
    return layer(call, called, context)


def layer(call, called, context):
    """What no layer of Keras 3 takes."""
    if not called.name.startswith("keras.layers."):
        return call
    found = _arguments.find(call, "dim_ordering")
    if found is not None:
        formats = {"tf": "channels_last", "th": "channels_first"}
        value = formats.get(str(literal(found.value)))
        if value is not None:
            call = _arguments.value(call, found, repr(value))
            call = _arguments.rename(call, "dim_ordering", "data_format")
    for keyword, instead in _NOT_IN_KERAS_3.items():
        if _arguments.find(call, keyword) is not None:
            context.note(
                called.original,
                f"`{called.last}({keyword}=...)`: no argument of Keras 3; "
                f"{instead}.",
            )
    if (
        _arguments.find(call, "weights") is not None
        and called.last != "Embedding"
    ):
        context.note(
            called.original,
            f"`{called.last}(weights=...)`: no argument of Keras 3. Call "
            "`layer.set_weights(...)` when the model is built.",
        )
    return call


def _kernel(call, called, context):
    """`Conv2D(64, 3, 3)` had a kernel of 3 by 3; now strides of 3."""
    given = _arguments.positional(call)
    if not called.last.endswith("2D") or len(given) < 3:
        return call
    first, second = given[1], given[2]
    if not all(isinstance(literal(a.value), int) for a in (first, second)):
        return call
    if context.is_tensorflow(called.original.func):
        return _arguments.name_positional(
            call, 2, ("strides", "padding", "data_format", "dilation_rate")
        )
    rows, columns = (context.facts.code(a.value) for a in (first, second))
    call = _arguments.value(call, second, f"({rows}, {columns})")
    return _arguments.drop(call, call.args[1])


_MERGES = {
    "ave": "average",
    "concat": "concatenate",
    "max": "maximum",
    "mul": "multiply",
    "sum": "add",
}


@function("keras.layers.merge")
def merge(call, called, context):
    """`merge(..., mode="concat")` has a function for each mode."""
    mode = _arguments.find(call, "mode")
    name = _MERGES.get(str(literal(mode.value))) if mode else None
    if mode is None or name is None or _arguments.is_open(call):
        context.note(
            called.original,
            "`merge(...)`: gone, and its mode is not one that is written "
            "here. Use `keras.layers.concatenate([a, b])` or another of its "
            "kind.",
        )
        return call
    call = _arguments.drop(call, mode)
    call = _arguments.rename(call, "concat_axis", "axis")
    return call.with_changes(
        func=_arguments.expression(context.keras(f"layers.{name}"))
    )


# ---- callbacks


@function("keras.callbacks.ModelCheckpoint")
def checkpoint(call, called, context):
    """`period` is gone."""
    period = _arguments.find(call, "period")
    if period is None:
        return call
    if literal(period.value) == 1:
        return _arguments.drop(call, period)
    context.note(
        called.original,
        "`ModelCheckpoint(period=...)`: gone in Keras 3. "
        "`save_freq=period * steps_per_epoch` counts batches.",
    )
    return call


@function("keras.callbacks.TensorBoard")
def tensorboard(call, called, context):
    """Arguments that had an effect on graphs of TensorFlow 1 only."""
    for keyword in (
        *("batch_size", "write_grads", "embeddings_layer_names"),
        "embeddings_data",
    ):
        found = _arguments.find(call, keyword)
        if found is not None:
            call = _arguments.drop(call, found)
    return call


# ---- keras.backend

_LAST_AXIS = frozenset({"argmax", "argmin", "concatenate", "expand_dims"})
_BACKEND_KEYWORDS = {
    "clip": {"min_value": "x_min", "max_value": "x_max"},
    "concatenate": {"tensors": "xs"},
    "permute_dimensions": {"pattern": "axes"},
    "reshape": {"shape": "newshape"},
    "tile": {"n": "repeats"},
}


@function(
    *(f"keras.backend.{name}" for name in {*_LAST_AXIS, *_BACKEND_KEYWORDS})
)
def backend_arguments(call, called, context):
    """The axis was the last one where NumPy has another default."""
    for old, new in _BACKEND_KEYWORDS.get(called.last, {}).items():
        call = _arguments.rename(call, old, new)
    if (
        called.last in _LAST_AXIS
        and len(_arguments.positional(call)) < 2
        and not _arguments.find(call, "axis")
        and not _arguments.is_open(call)
    ):
        call = _arguments.append(call, "axis", "-1")
    return call


@function("keras.backend.relu")
def relu(call, called, context):
    """`K.relu` could do more than `ops.relu`."""
    if len(call.args) > 1:
        context.note(
            called.original,
            "`K.relu` with more than a tensor: `keras.ops.relu` takes no "
            "more. Use `keras.layers.ReLU`, or `keras.ops.leaky_relu` and "
            "`keras.ops.clip`.",
        )
    return call


# `{0}` and `{1}` are the arguments.
_BACKEND_CALLS = {
    "batch_flatten": "{reshape}({0}, ({shape}({0})[0], -1))",
    "eval": "{convert_to_numpy}({0})",
    "flatten": "{reshape}({0}, (-1,))",
    "gather": "{take}({0}, {1}, axis=0)",
    "get_value": "{convert_to_numpy}({0})",
    "int_shape": "{0}.shape",
    "set_value": "{0}.assign({1})",
}
_OPS = ("convert_to_numpy", "reshape", "shape", "take")


@function(*(f"keras.backend.{name}" for name in _BACKEND_CALLS))
def backend_calls(call, called, context):
    """Functions of `keras.backend` that are written in another way."""
    template = _BACKEND_CALLS[called.last]
    given = _arguments.positional(call)
    if len(given) != len(call.args) or f"{{{len(given) - 1}}}" not in template:
        context.note(
            called.original,
            f"`K.{called.last}(...)`: gone, and its arguments are not passed "
            f"by position. Write `{template.format('x', 'y', **_PLAIN_OPS)}`.",
        )
        return call
    ops = {
        name: context.keras(f"ops.{name}")
        for name in _OPS
        if f"{{{name}}}" in template
    }
    code = [context.facts.code(a.value) for a in given]
    code[0] = context.facts.code(_bare(given[0].value))
    return _arguments.expression(template.format(*code, **ops))


def _bare(node):
    """In parentheses where a `.` after it would bind to a part only."""
    if isinstance(node, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
        return node
    return node.with_changes(
        lpar=[*node.lpar, cst.LeftParen()], rpar=[*node.rpar, cst.RightParen()]
    )


_PLAIN_OPS = {name: f"keras.ops.{name}" for name in _OPS}

# ---- TensorFlow beside Keras


@function(
    "tensorflow.set_random_seed",
    "tensorflow.random.set_seed",
    "tensorflow.random.set_random_seed",
    "tensorflow.compat.v1.set_random_seed",
)
def seed(call, called, context):
    """TensorFlow's seed draws nothing any more."""
    return call.with_changes(
        func=_arguments.expression(context.keras("utils.set_random_seed"))
    )


@function("keras.backend.set_session")
def set_session(call, called, context):
    """What is left of sessions after the lines that only make one."""
    context.note(
        called.original,
        "`set_session(...)`: there are no sessions in Keras 3, and this one "
        "is used in more than the lines that make it, or has the address of "
        "a cluster. Remove it; clusters are not there yet.",
    )
    return call


def rule_for(name: str | None) -> Rule | None:
    """The rule for a call of a function or class of this name."""
    if name is None:
        return None
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    return layer if name.startswith("keras.layers.") else None


def is_called_differently(name: str) -> bool:
    """Whether a function must be seen called to be rewritten."""
    return name.startswith("keras.backend.") and name in FUNCTIONS
