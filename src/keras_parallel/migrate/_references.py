"""Names of Keras 2, wherever they are used."""

import libcst as cst

from keras_parallel.migrate import _names
from keras_parallel.migrate._context import FUNCTIONS
from keras_parallel.migrate._context import Context
from keras_parallel.migrate._context import is_called_differently
from keras_parallel.migrate._context import rule_for
from keras_parallel.migrate._facts import dotted


class References:
    """Writes names as Keras 3 has them.

    Attributes:
        multi_gpu_names: As what `multi_gpu_model` is to be imported: pairs
            of the name and its alias.
        needs_keras_parallel: Whether `keras_parallel` itself is used.
    """

    def __init__(self, context: Context):
        self.context = context
        self.names = context.names
        self.facts = context.facts
        self.multi_gpu_names: set[tuple[str, str | None]] = set()
        self.needs_keras_parallel = False
        self._tensorflow_noted: set[str] = set()

    def of(self, node):
        """What stands for a name in Keras 3, if it is another text."""
        full = self.names.imported(node)
        if full is None:
            if isinstance(node, cst.Attribute):
                return self._unimported(node)
            return None
        old = _names.old_name(full)
        called = self._is_called(node)
        if old == _names.MULTI_GPU_MODEL:
            return self._multi_gpu_model(node)
        if not _names.is_keras(old):
            self._tensorflow(node, full)
            return None
        if called and old in FUNCTIONS and _names.gone(full) is not None:
            return None  # The rule writes something else, or a note.
        if not called and is_called_differently(old):
            self.context.note(
                node,
                f"`{self.facts.code(node)}` is passed on, not called: its "
                "arguments are others in `keras.ops`. Write a `lambda` that "
                "calls it.",
            )
            return None
        instead = _names.gone(full)
        if instead is not None:
            if isinstance(node, cst.Attribute):  # Else the import has said it.
                self.context.note(
                    node, gone_text(self.facts.code(node), instead)
                )
            return None
        return self._spelled(node, full, _names.new_name(full))

    def _spelled(self, node, full, new):
        root = node
        while isinstance(root, cst.Attribute):
            root = root.value
        module = self.names.imported(root) or ""
        kept = _names.old_name(module)
        if isinstance(node, cst.Name):
            last = new.rpartition(".")[2]
            imported_as = full.rpartition(".")[2] == node.value
            if (
                last == node.value
                or not imported_as
                or last in self.facts.bound
            ):
                return None
            return cst.Name(last, lpar=node.lpar, rpar=node.rpar)
        survives = _names.is_keras(kept) and kept not in _names.MODULES
        if survives and new.startswith(kept + "."):
            code = self.facts.code(root) + new.removeprefix(kept)
        else:
            code = self.context.keras(new.removeprefix("keras."))
        if code == dotted(node):
            return None
        expression = cst.parse_expression(code)
        return expression.with_changes(lpar=node.lpar, rpar=node.rpar)

    def _unimported(self, node):
        """A chain that begins with a variable of the script."""
        return (
            learning_rate(node) if self.facts.is_learning_rate(node) else None
        )

    def _multi_gpu_model(self, node):
        if isinstance(node, cst.Name):
            alias = None if node.value == "multi_gpu_model" else node.value
            self.multi_gpu_names.add(("multi_gpu_model", alias))
            return None
        if "multi_gpu_model" in self.facts.bound:
            self.needs_keras_parallel = True
            return cst.parse_expression("keras_parallel.multi_gpu_model")
        self.multi_gpu_names.add(("multi_gpu_model", None))
        return cst.Name("multi_gpu_model", lpar=node.lpar, rpar=node.rpar)

    def _tensorflow(self, node, full):
        if not full.startswith("tensorflow.") or full in self._tensorflow_noted:
            return
        if any(
            full == beside or full.startswith(beside + ".")
            for beside in _names.TENSORFLOW_BESIDE
        ):
            return
        if full == "tensorflow.device" or rule_for(full) is not None:
            return
        if self.context.is_taken_out(node):
            return
        self._tensorflow_noted.add(full)
        code = self.facts.code(node)
        if full.startswith("tensorflow.distribute"):
            text = (
                f"`{code}`: a strategy of TensorFlow. Remove the strategy and "
                "its scope, and pass the model to `keras_parallel."
                "data_parallel`: see docs/from_mirrored_strategy.md."
            )
        else:
            text = (
                f"`{code}`: TensorFlow. In a `tf.data` pipeline it may stay; "
                "in a model or a loss, and to run sessions, it may not: "
                "`keras.ops` has what computes on every backend."
            )
        self.context.note(node, text)

    def _is_called(self, node):
        parent = self.names.parents[node]
        return isinstance(parent, cst.Call) and parent.func is node


def gone_text(name: str, instead: str) -> str:
    """What is said of a name that has no successor."""
    return f"`{name}`: gone in Keras 3. {instead}"


def learning_rate(node: cst.Attribute) -> cst.Attribute:
    """`optimizer.lr` under its name in Keras 3."""
    return node.with_changes(attr=node.attr.with_changes(value="learning_rate"))
