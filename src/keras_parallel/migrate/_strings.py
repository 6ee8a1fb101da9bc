"""Names that old scripts write in strings: files, outputs, metrics, losses."""

import re

import libcst as cst

from keras_parallel.migrate import _arguments
from keras_parallel.migrate import _names
from keras_parallel.migrate._context import Context
from keras_parallel.migrate._facts import OLD_OUTPUT
from keras_parallel.migrate._facts import argument_of
from keras_parallel.migrate._facts import literal

_ACCURACY = re.compile(r"(^|_)acc$")
_ACCURACY_FIELD = re.compile(r"\{((?:\w+_)?acc)(?=[:}!])")
_SUFFIX = re.compile(r"(\.weights)?\.(h5|hdf5|keras)$")


class Strings(cst.CSTVisitor):
    """Finds the strings to change.

    Attributes:
        changed: From a string of the script to what it says in Keras 3.
    """

    def __init__(self, context: Context):
        self.context = context
        self.changed: dict[cst.SimpleString, str] = {}
        self._files: dict[str, str] = {}
        self._seen: list[cst.SimpleString] = []
        metrics = context.facts.metrics
        self._renames_accuracy = "accuracy" in metrics and "acc" not in metrics
        context.facts.module.visit(self)
        for node in self._seen:
            if node.evaluated_value in self._files:
                self.changed[node] = self._files[node.evaluated_value]

    def visit_SimpleString(self, node):
        self._seen.append(node)

    def visit_Call(self, node):
        name = self.context.names.old(node.func)
        if name == "keras.callbacks.ModelCheckpoint":
            self._checkpoint(node)
        if (name or "").startswith("keras.callbacks."):
            monitor = argument_of(node, None, "monitor")
            if name == "keras.callbacks.EarlyStopping":
                monitor = argument_of(node, 0, "monitor")
            self._metric(monitor)
        if name is not None or not isinstance(node.func, cst.Attribute):
            return
        method = node.func.attr.value
        if method == "save_weights":
            self._file(
                argument_of(node, 0, "filepath"), _weights, "save_weights"
            )
        elif method == "compile":
            for position, keyword in ((1, "loss"), (2, "metrics")):
                self._losses(argument_of(node, position, keyword))

    # ---- files

    def _checkpoint(self, call):
        path = argument_of(call, 0, "filepath")
        only = literal(argument_of(call, None, "save_weights_only"))
        self._file(path, _weights if only else _model, "ModelCheckpoint")

    def _file(self, node, suffixed, user):
        if node is None:
            return
        string = self._end_of_path(node)
        if string is None:
            return
        old = string.evaluated_value
        if not isinstance(old, str):
            return
        new = suffixed(old)
        if self._renames_accuracy and user == "ModelCheckpoint":
            new = _ACCURACY_FIELD.sub(
                lambda found: "{" + found[1] + "uracy", new
            )
        if new == old:
            return
        self.changed[string] = new
        if string is node or isinstance(node, cst.Name):
            # The same path, wherever it stands.
            self._files[old] = new

    def _end_of_path(self, node):
        """The string that a path ends with, where it is written."""
        if isinstance(node, cst.SimpleString):
            return node
        if isinstance(node, cst.ConcatenatedString):
            return self._end_of_path(node.right)
        if isinstance(node, cst.BinaryOperation):
            percent = isinstance(node.operator, cst.Modulo)
            return self._end_of_path(node.left if percent else node.right)
        if isinstance(node, cst.Name):
            value = self.context.facts.value_of(node)
            return None if value is None else self._end_of_path(value)
        if isinstance(node, cst.Call):
            if self.context.names.imported(node.func) == "os.path.join":
                return self._end_of_path(node.args[-1].value)
            if (
                isinstance(node.func, cst.Attribute)
                and node.func.attr.value == "format"
            ):
                return self._end_of_path(node.func.value)
        return None

    # ---- outputs

    def visit_DictElement(self, node):
        key = literal(node.key)
        if not (isinstance(key, str) and OLD_OUTPUT.fullmatch(key)):
            return
        facts = self.context.facts
        if facts.is_keras_3 or not facts.uses_multi_gpu_model:
            return
        if facts.has_layer(key):
            return
        if key in facts.output_names and isinstance(node.key, cst.SimpleString):
            self.changed[node.key] = facts.output_names[key]
        else:
            self.context.note(
                node,
                f"{key!r}: the old `multi_gpu_model` renamed outputs so, and "
                "which output this was is not written here. Write the name "
                "of the layer that makes it: `model.output_names` lists them "
                "in order.",
            )

    # ---- metrics and losses

    def visit_Subscript(self, node):
        code = self.context.facts.code(node.value)
        value = self.context.facts.value_of(node.value)
        if value is not None:
            code = self.context.facts.code(value)
        index = node.slice[0].slice
        if code.endswith(".history") and isinstance(index, cst.Index):
            self._metric(index.value)

    def _metric(self, node):
        if not (self._renames_accuracy and isinstance(node, cst.SimpleString)):
            return
        old = node.evaluated_value
        if isinstance(old, str) and _ACCURACY.search(old):
            self.changed[node] = old + "uracy"

    def _losses(self, node):
        if node is None:
            return
        changed = self.changed

        class Losses(cst.CSTVisitor):
            def visit_SimpleString(self, node):
                new = _names.LOSS_STRINGS.get(str(node.evaluated_value))
                if new is not None:
                    changed[node] = new

            def visit_DictElement(self, node):
                node.value.visit(self)
                return False  # The key is the name of an output.

            def visit_Call(self, node):
                return False  # What a call is given is no loss by string.

        node.visit(Losses())

    # ---- the backend

    def visit_Assign(self, node):
        target = self.context.facts.code(node.targets[0].target)
        backend = literal(node.value)
        if (
            re.fullmatch(r"(os\.)?environ\[.KERAS_BACKEND.\]", target)
            and isinstance(backend, str)
            and backend != "jax"
        ):
            self.context.note(
                node,
                f"`{target} = {backend!r}`: keras-parallel runs on 'jax' so "
                "far. Remove the line or write 'jax'.",
            )


def changed_string(node: cst.SimpleString, new: str) -> cst.SimpleString:
    """The string with other contents, in its own quotes."""
    quote = node.quote
    code = f"{node.prefix}{quote}{new}{quote}"
    if literal(_arguments.expression(code)) != new:
        code = repr(new)
    return node.with_changes(value=code)


def _weights(path):
    """`save_weights` of Keras 3 insists on this suffix."""
    if path.endswith(".weights.h5"):
        return path
    return _SUFFIX.sub("", path) + ".weights.h5"


def _model(path):
    """A checkpoint of a whole model ends in `.keras` or `.h5`."""
    if path.endswith((".keras", ".h5")):
        return path
    return _SUFFIX.sub("", path) + ".keras"
