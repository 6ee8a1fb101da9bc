"""Layers and models: arguments of Keras 1, fixed batch sizes."""

import libcst as cst

from keras_parallel.migrate import _arguments
from keras_parallel.migrate._context import function
from keras_parallel.migrate._facts import argument_of
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


# ---- a fixed batch size


@function("keras.Sequential", "keras.models.Sequential")
def in_sequential(call, called, context):
    """`Sequential([LSTM(batch_input_shape=...)])`."""
    if not call.args or not isinstance(call.args[0].value, cst.List):
        return call
    layers = call.args[0].value
    if not layers.elements:
        return call
    first = layers.elements[0]
    shape = _take_batch_shape(
        context, called.original.args[0].value.elements[0].value
    )
    if shape is None:
        return call
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if isinstance(first.comma, cst.Comma):
        comma = first.comma
    elements = [
        cst.Element(_input(context, shape), comma=comma),
        first.with_changes(value=_without_batch_shape(first.value)),
        *layers.elements[1:],
    ]
    changed = layers.with_changes(elements=elements)
    return call.with_deep_changes(call.args[0], value=changed)


def added(original, updated, context):
    """`model.add(LSTM(batch_input_shape=...))`."""
    if len(original.body) != 1 or not isinstance(original.body[0], cst.Expr):
        return updated
    call = original.body[0].value
    if not (
        isinstance(call, cst.Call)
        and isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "add"
        and len(call.args) == 1
    ):
        return updated
    shape = _take_batch_shape(context, call.args[0].value)
    if shape is None:
        return updated
    new = updated.body[0].value
    inputs = new.with_changes(args=[cst.Arg(_input(context, shape))])
    rest = new.with_changes(
        args=[
            new.args[0].with_changes(
                value=_without_batch_shape(new.args[0].value)
            )
        ]
    )
    return cst.FlattenSentinel(
        [
            cst.SimpleStatementLine(
                [cst.Expr(inputs)], leading_lines=updated.leading_lines
            ),
            updated.with_changes(body=[cst.Expr(rest)], leading_lines=[]),
        ]
    )


def _take_batch_shape(context, node):
    if not isinstance(node, cst.Call):
        return None
    shape = argument_of(node, None, "batch_input_shape")
    if shape is None:
        return None
    context.notes -= {
        note
        for note in context.notes
        if note.line == context.names.line(node)
        and "batch_input_shape" in note.text
    }
    return context.facts.code(shape)


def _input(context, shape):
    return cst.parse_expression(
        f"{context.keras('Input')}(batch_shape={shape})"
    )


def _without_batch_shape(call):
    found = next(
        a
        for a in call.args
        if a.keyword and a.keyword.value == "batch_input_shape"
    )
    return _arguments.drop(call, found)
