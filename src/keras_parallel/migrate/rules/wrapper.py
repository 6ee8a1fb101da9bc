"""The model inside the old wrapper, which is the parallel model now."""

import re

import libcst as cst

from keras_parallel.migrate._context import method
from keras_parallel.migrate._facts import argument_of
from keras_parallel.migrate._facts import literal

# What Keras called a model that was given no name.
_AUTOMATIC_NAME = re.compile(r"(model|sequential)_\d+")


def subscript(original, updated, context):
    """`parallel.layers[-2]` was the model inside the wrapper."""
    value = original.value
    if not (
        isinstance(value, cst.Attribute)
        and value.attr.value == "layers"
        and context.facts.code(original).endswith("layers[-2]")
    ):
        return updated
    if not _is_parallel(context, value.value, original):
        return updated
    return cst.ensure_type(updated.value, cst.Attribute).value


@method("get_layer")
def get_layer(call, called, context):
    """`get_layer("model_1")` was that model too."""
    name = argument_of(called.original, 0, "name")
    given = literal(name) if name is not None else None
    receiver = called.original.func.value
    if (
        isinstance(given, str)
        and _AUTOMATIC_NAME.fullmatch(given)
        and not context.facts.has_layer(given)
        and _is_parallel(context, receiver, called.original)
    ):
        return call.func.value
    return call


@method("update")
def wrapper_class(call, called, context):
    """A class around the wrapper, that saved the template."""
    given = context.facts.code(call.args[0].value) if call.args else ""
    owner = given.removesuffix(".__dict__")
    if owner != given and context.facts.parallel[owner]:
        context.note(
            called.original,
            f"`{context.facts.code(call)}`: a class around the parallel "
            "model, so that the template is saved. The parallel model "
            "saves as the template does: use what `multi_gpu_model` "
            "returns, and remove the class.",
        )
    return call


def _is_parallel(context, node, whole):
    name = context.facts.code(node)
    key = context.facts.key(node)
    wrapped = context.facts.parallel[key]
    if wrapped and wrapped < context.facts.assigned[key]:
        context.note(
            whole,
            f"`{context.facts.code(whole)}`: {name!r} is assigned a parallel "
            "model and another one. Of a parallel model this was the "
            f"model inside the wrapper, and is `{name}` itself now.",
        )
        return False
    return wrapped > 0
