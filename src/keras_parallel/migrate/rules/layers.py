"""Layers and models: arguments of Keras 1, fixed batch sizes."""

import libcst as cst

from keras_parallel.migrate import _arguments
from keras_parallel.migrate._context import function
from keras_parallel.migrate._facts import literal

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
    "keras.layers.BatchNormalization": {
        "beta_init": "beta_initializer",
        "gamma_init": "gamma_initializer",
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


@function("keras.layers.*")
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
    mode = _arguments.find(call, "mode")
    if called.last == "BatchNormalization" and mode is not None:
        if literal(mode.value) == 0:
            call = _arguments.drop(call, mode)
        else:
            context.note(
                called.original,
                "`BatchNormalization(mode=...)`: no argument since Keras 2, "
                "which has what was mode 0. Remove it, or write another mode "
                "as a layer of your own.",
            )
    for keyword, instead in _NOT_IN_KERAS_3.items():
        if keyword == "batch_input_shape" and _is_first(
            called.original, context
        ):
            continue
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


def attribute(node, context):
    """Attributes of tensors and layers that are gone."""
    code = context.facts.code(node)
    name = node.attr.value
    text = None
    if name == "_keras_shape":
        text = f"gone in Keras 3. Write `{code.removesuffix(name)}shape`."
    elif name in ("input_shape", "output_shape") and _is_layer(node.value):
        text = (
            "layers of Keras 3 have no such attribute. Write "
            f"`{code.removesuffix('_shape')}.shape`."
        )
    if text is not None:
        context.note(node, f"`{code}`: {text}")


def _is_layer(node):
    """Whether `node` is `model.layers[3]` or `model.get_layer(...)`."""
    if isinstance(node, cst.Subscript):
        owner = node.value
        return isinstance(owner, cst.Attribute) and owner.attr.value == "layers"
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "get_layer"
    )


def _kernel(call, called, context):
    """`Conv2D(64, 3, 3)` had a kernel of 3 by 3; now strides of 3."""
    given = _arguments.positional(call)
    if not called.last.endswith("2D") or len(given) < 3:
        return call
    if context.facts.is_keras_3:
        return call  # There the third one is `strides`.
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


# ---- a fixed batch size


def _is_first(node, context):
    """Whether an `Input` can be written before this call of a layer."""
    parents = context.names.parents
    around = parents[node]
    above = parents[around]
    if isinstance(around, cst.Element):
        return (
            isinstance(above, cst.List)
            and above.elements[0] is around
            and isinstance(parents[above], cst.Arg)
            and _is_sequential(parents[parents[above]], context)
        )
    return _is_add(above) and isinstance(parents[above], cst.Expr)


def _is_sequential(node, context):
    return isinstance(node, cst.Call) and context.names.old(node.func) in (
        "keras.Sequential",
        "keras.models.Sequential",
    )


def _is_add(node):
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "add"
        and len(node.args) == 1
    )


@function("keras.Sequential", "keras.models.Sequential")
def in_sequential(call, called, context):
    """`Sequential([LSTM(batch_input_shape=...)])`."""
    if not call.args or not isinstance(call.args[0].value, cst.List):
        return call
    layers = call.args[0].value
    layer = layers.elements[0].value if layers.elements else None
    found = _batch_shape(layer)
    if found is None or not isinstance(layer, cst.Call):
        return call
    first, *others = layers.elements
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if isinstance(first.comma, cst.Comma):
        comma = first.comma
    elements = [
        cst.Element(_input(found, context), comma=comma),
        first.with_changes(value=_arguments.drop(layer, found)),
        *others,
    ]
    changed = layers.with_changes(elements=elements)
    return call.with_deep_changes(call.args[0], value=changed)


def added(updated, context):
    """`model.add(LSTM(batch_input_shape=...))`."""
    if len(updated.body) != 1 or not isinstance(updated.body[0], cst.Expr):
        return updated
    call = updated.body[0].value
    found = _batch_shape(call.args[0].value) if _is_add(call) else None
    if found is None:
        return updated
    (argument,) = call.args
    rest = argument.with_changes(value=_arguments.drop(argument.value, found))
    lines = [
        call.with_changes(args=[cst.Arg(_input(found, context))]),
        call.with_changes(args=[rest]),
    ]
    first, second = (updated.with_changes(body=[cst.Expr(c)]) for c in lines)
    return cst.FlattenSentinel(
        [
            first.with_changes(trailing_whitespace=cst.TrailingWhitespace()),
            second.with_changes(leading_lines=[]),
        ]
    )


def _batch_shape(node) -> cst.Arg | None:
    if not isinstance(node, cst.Call):
        return None
    return _arguments.find(node, "batch_input_shape")


def _input(shape, context):
    code = context.facts.code(shape.value)
    return cst.parse_expression(f"{context.keras('Input')}(batch_shape={code})")
