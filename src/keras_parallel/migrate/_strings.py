"""Names that old scripts write in strings: files, outputs, metrics, losses."""

import re

import libcst as cst

from keras_parallel.migrate import _arguments
from keras_parallel.migrate import _names
from keras_parallel.migrate._context import Context
from keras_parallel.migrate._facts import OLD_OUTPUT
from keras_parallel.migrate._facts import argument_of
from keras_parallel.migrate._facts import literal
from keras_parallel.migrate._paths import Paths
from keras_parallel.migrate._paths import Text

_ACCURACY = re.compile(r"^(\w+_)?acc$")
_ACCURACY_FIELD = re.compile(r"\{((?:\w+_)?acc)(?=[:}!])")

# Where callbacks take `monitor`.
_MONITORS = {"EarlyStopping": 0, "ModelCheckpoint": 1, "ReduceLROnPlateau": 0}


class Strings(cst.CSTVisitor):
    """Finds the strings to change.

    Attributes:
        changed: From a string of the script to what it says in Keras 3.
    """

    def __init__(self, context: Context):
        self.context = context
        self.changed: dict[Text, str] = {}
        self._paths = Paths(context)
        # Strings that may name a metric, and those that were seen to.
        self._accuracies: list[cst.SimpleString] = []
        self._metrics: set[cst.CSTNode] = set()
        self._labels: set[cst.CSTNode] = set()
        self._fields: set[Text] = set()
        metrics = context.facts.metrics
        self._compiles_accuracy = "accuracy" in metrics
        self._renames_accuracy = "accuracy" in metrics and "acc" not in metrics
        context.facts.module.visit(self)
        self._paths.decide()
        self.changed.update(self._paths.changed)
        self._decide_accuracies()

    def visit_SimpleString(self, node):
        self._paths.string(node)
        value = node.evaluated_value
        if isinstance(value, str) and _ACCURACY.search(value):
            self._accuracies.append(node)

    def visit_FormattedString(self, node):
        if node.parts and isinstance(node.parts[-1], cst.FormattedStringText):
            self._paths.string(node.parts[-1])

    def visit_Call(self, node):
        name = self.context.names.old(node.func)
        self._paths.call(node, name)
        self._monitors(node, name)
        self._note_labels(node, name)
        if name is not None or not isinstance(node.func, cst.Attribute):
            return
        method = node.func.attr.value
        if method in ("get", "pop") and self._is_log(node.func.value):
            self._metric(argument_of(node, 0))
        elif method == "compile":
            if method in self.context.facts.own_methods:
                owner = self.context.facts.owner_of_method(node.func.value)
                if owner != "keras":
                    return
            for position, keyword in ((1, "loss"), (2, "metrics")):
                self._losses(argument_of(node, position, keyword))

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
        index = node.slice[0].slice
        if isinstance(index, cst.Index) and self._is_log(node.value):
            self._metric(index.value)

    def visit_Comparison(self, node):
        for target in node.comparisons:
            if isinstance(target.operator, cst.In | cst.NotIn) and self._is_log(
                target.comparator
            ):
                self._metric(node.left)

    def _is_log(self, node):
        """Whether `node` maps names of metrics to their values."""
        value = self.context.facts.value_of(node)
        codes = [self.context.facts.code(n) for n in (node, value) if n]
        return any(c == "logs" or c.endswith(".history") for c in codes)

    def _monitors(self, node, name):
        """What callbacks are told to watch."""
        if not (name or "").startswith("keras.callbacks."):
            return
        place = _MONITORS.get(name.rpartition(".")[2])
        self._metric(argument_of(node, place, "monitor"))
        if name == "keras.callbacks.ModelCheckpoint":
            path = argument_of(node, 0, "filepath")
            if isinstance(path, cst.Name):
                path = self.context.facts.value_of(path)
            if path is not None:
                path.visit(_Collected(self._fields))

    def _metric(self, node):
        if isinstance(node, cst.Name):
            node = self.context.facts.value_of(node)
        if isinstance(node, cst.SimpleString):
            self._metrics.add(node)

    def _note_labels(self, node, name):
        """Strings that are shown to people."""
        shown = name == "print" or self.context.facts.code(node.func) == "print"
        shown = shown or (name or "").startswith("matplotlib.")
        for argument in node.args:
            keyword = argument.keyword and argument.keyword.value
            if shown or keyword in ("label", "name", "title"):
                argument.value.visit(_Labels(self._labels))

    def _decide_accuracies(self):
        """Keras 2 abbreviated what was compiled as `accuracy`."""
        if not self._compiles_accuracy:
            return
        for node in self._fields:
            old = self.changed.get(node, _value(node))
            new = _ACCURACY_FIELD.sub(lambda f: "{" + f[1] + "uracy", old)
            if new != old and self._renames_accuracy:
                self.changed[node] = new
        for node in self._accuracies:
            if node in self._metrics and self._renames_accuracy:
                self.changed[node] = f"{node.evaluated_value}uracy"
            elif node in self._metrics or not (
                node in self._labels or node in self.context.facts.metric_nodes
            ):
                self.context.note(
                    node,
                    f"{node.value}: Keras 2 abbreviated what was compiled as "
                    "'accuracy', Keras 3 does not; whether this names such a "
                    f"metric is not written here. If so, write "
                    f"'{node.evaluated_value}uracy'.",
                )

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


class _Collected(cst.CSTVisitor):
    """Adds the strings in a part of the script to a set."""

    def __init__(self, found):
        self.found = found

    def visit_SimpleString(self, node):
        self.found.add(node)

    def visit_FormattedStringText(self, node):
        self.found.add(node)


class _Labels(_Collected):
    """Without what is looked up: `plt.plot(history["acc"])`."""

    def visit_Call(self, node):
        return False

    def visit_Subscript(self, node):
        return False

    def visit_Comparison(self, node):
        return False

    def visit_DictComp(self, node):
        return False

    def visit_GeneratorExp(self, node):
        return False

    def visit_ListComp(self, node):
        return False


def _value(node):
    if isinstance(node, cst.SimpleString):
        return str(node.evaluated_value)
    return node.value


def changed_string(node: cst.SimpleString, new: str) -> cst.SimpleString:
    """The string with other contents, in its own quotes."""
    quote = node.quote
    code = f"{node.prefix}{quote}{new}{quote}"
    if literal(_arguments.expression(code)) != new:
        code = repr(new)
    return node.with_changes(value=code)
