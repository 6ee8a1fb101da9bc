"""Functions of `keras.backend` that are called in another way."""

import libcst as cst

from keras_parallel.migrate import _arguments
from keras_parallel.migrate._context import function

_LAST_AXIS = frozenset({"argmax", "argmin", "concatenate", "expand_dims"})
_BACKEND_KEYWORDS = {
    "clip": {"min_value": "x_min", "max_value": "x_max"},
    "concatenate": {"tensors": "xs"},
    "expand_dims": {"dim": "axis"},
    "permute_dimensions": {"pattern": "axes"},
    # Spellings of Keras 1.
    "random_normal": {"std": "stddev"},
    "random_uniform": {"low": "minval", "high": "maxval"},
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
