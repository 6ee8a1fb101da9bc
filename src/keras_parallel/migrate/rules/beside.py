"""TensorFlow beside Keras: sessions, device scopes, seeds."""

import libcst as cst

from keras_parallel.migrate import _arguments
from keras_parallel.migrate import _names
from keras_parallel.migrate._context import function
from keras_parallel.migrate._facts import argument_of
from keras_parallel.migrate._facts import is_cpu
from keras_parallel.migrate._facts import literal
from keras_parallel.migrate._removal import marked


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


def session_line(line, context):
    """What a session reserved of the memory."""
    code = context.facts.code(line)
    for option in ("allow_growth", "per_process_gpu_memory_fraction"):
        if option in code:
            instead = (
                "XLA_PYTHON_CLIENT_PREALLOCATE=false in the environment"
                if option == "allow_growth"
                else "XLA_PYTHON_CLIENT_MEM_FRACTION in the environment"
            )
            context.note(
                line,
                f"`{option}` is removed with the session: JAX reserves "
                "three quarters of a GPU when it starts. If that is too "
                f"much, set {instead}.",
            )


def device_scope(original, updated, context):
    """`with tf.device("/cpu:0"):` around what builds a model."""
    items = original.items
    scopes = [
        item
        for item in items
        if isinstance(item.item, cst.Call)
        and context.names.imported(item.item.func) == "tensorflow.device"
    ]
    if not scopes:
        return updated
    scope = scopes[0].item
    code = context.facts.code(scope)
    device = literal(argument_of(scope, 0, "device_name"))
    if context.facts.scopes_on_gpus:
        context.note(
            original,
            f"`{code}`: no effect on JAX. Parts of "
            "a model on several devices are not there yet; remove the "
            "scopes, and `multi_gpu_model` shares out the batch instead.",
        )
        return updated
    if (
        len(items) > 1
        or not is_cpu(device)
        or _has_tensorflow(context, original.body)
    ):
        context.note(
            original,
            f"`{code}`: what is inside is not only "
            "Keras. Around a model no scope is needed: each device holds "
            "the weights.",
        )
        return updated
    return _dedented(updated)


def _has_tensorflow(context, body):
    names = context.names
    found = []

    class Search(cst.CSTVisitor):
        def visit_Attribute(self, node):
            full = names.imported(node)
            if full is not None:
                old = _names.old_name(full)
                if old.startswith("tensorflow."):
                    found.append(old)
                return False
            return None

    body.visit(Search())
    return [n for n in found if n != "tensorflow.device"]


def _dedented(node):
    """The body of a `with` in its place, comments kept."""
    footer = ()
    if isinstance(node.body, cst.IndentedBlock):
        comment = node.body.header.comment
        footer = node.body.footer
        first, *rest = node.body.body
    else:
        comment = node.body.trailing_whitespace.comment
        first, rest = cst.SimpleStatementLine(node.body.body), []
    leading = [*node.leading_lines]
    if comment is not None:
        leading.append(cst.EmptyLine(comment=comment))
    first = first.with_changes(
        leading_lines=[*leading, *getattr(first, "leading_lines", ())]
    )
    if footer:
        rest.append(marked(cst.SimpleStatementLine([], leading_lines=footer)))
    return cst.FlattenSentinel([first, *rest])
