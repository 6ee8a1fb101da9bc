"""Walks over a script, applies the rules, and mends the imports."""

import dataclasses

import libcst as cst
from libcst import metadata

from keras_parallel.migrate import _arguments
from keras_parallel.migrate import rules
from keras_parallel.migrate._context import METHODS
from keras_parallel.migrate._context import Called
from keras_parallel.migrate._context import Context
from keras_parallel.migrate._context import Note
from keras_parallel.migrate._context import rule_for
from keras_parallel.migrate._facts import Facts
from keras_parallel.migrate._facts import Names
from keras_parallel.migrate._facts import dotted
from keras_parallel.migrate._import_lines import ImportLines
from keras_parallel.migrate._imports import add_imports
from keras_parallel.migrate._imports import newly_unused
from keras_parallel.migrate._imports import remove_imports
from keras_parallel.migrate._references import References
from keras_parallel.migrate._references import learning_rate
from keras_parallel.migrate._removal import clear_marked
from keras_parallel.migrate._removal import marked
from keras_parallel.migrate._strings import Strings
from keras_parallel.migrate._strings import changed_string


@dataclasses.dataclass(frozen=True)
class Migration:
    """A script as it should read, and what remains to be decided.

    Attributes:
        text: The whole script.
        notes: In order of their lines, which are those of the old script.
    """

    text: str
    notes: list[Note]


def migrate(source: str) -> Migration:
    """Rewrites a script of Keras 2 for Keras 3 and keras-parallel.

    Args:
        source: The whole text of a Python 3 script.

    Returns:
        The new text and the notes. Migrating the new text changes nothing.

    Raises:
        libcst.ParserSyntaxError: if `source` is no Python 3.
    """
    wrapper = metadata.MetadataWrapper(cst.parse_module(source))
    names = Names(wrapper)
    facts = Facts(wrapper.module, names)
    if not facts.uses_keras:
        return Migration(source, [])
    context = Context(names, facts)
    strings = Strings(context).changed
    rewriter = _Rewriter(context, strings)
    module = clear_marked(wrapper.module.visit(rewriter))
    module = add_imports(
        module,
        keras_parallel=sorted(
            rewriter.references.multi_gpu_names, key=lambda name: name[1] or ""
        ),
        whole_keras_parallel=rewriter.references.needs_keras_parallel,
        keras=context.needs_keras and facts.keras_root is None,
    )
    unused = newly_unused(wrapper.module, module)
    context.notes.update(
        note
        for bound, note in rewriter.import_lines.notes
        if bound not in unused
    )
    text = remove_imports(module, unused).code
    return Migration(text, sorted(context.notes))


class _Rewriter(cst.CSTTransformer):
    def __init__(self, context, strings):
        self.context = context
        self.names = context.names
        self.facts = context.facts
        self.strings = strings
        self.references = References(context)
        self.import_lines = ImportLines(context, self.references)
        self._written: dict[cst.CSTNode, cst.BaseExpression] = {}

    # ---- names

    def visit_Attribute(self, node):
        if dotted(node) is None:
            return True
        new = self.references.of(node)
        if new is not None:
            self._written[node] = new
        return False

    def leave_Attribute(self, original_node, updated_node):
        if original_node in self._written:
            return self._written[original_node]
        return self._attribute(original_node, updated_node)

    def _attribute(self, original, updated):
        """`optimizer.lr`, and what is gone from layers and tensors."""
        rules.layers.attribute(original, self.context)
        if self.facts.is_learning_rate(original):
            return learning_rate(updated)
        return updated

    def leave_Name(self, original_node, updated_node):
        parent = self.names.parents[original_node]
        if (
            (isinstance(parent, cst.Arg) and parent.keyword is original_node)
            or isinstance(parent, cst.Param | cst.NameItem)
            or isinstance(parent, cst.FunctionDef | cst.ClassDef)
            or isinstance(parent, cst.AssignTarget | cst.AsName)
            or (isinstance(parent, cst.Attribute))
        ):
            return updated_node
        return self.references.of(original_node) or updated_node

    def leave_SimpleString(self, original_node, updated_node):
        if original_node in self.strings:
            return changed_string(updated_node, self.strings[original_node])
        return updated_node

    def leave_FormattedStringText(self, original_node, updated_node):
        new = self.strings.get(original_node, updated_node.value)
        return updated_node.with_changes(value=new)

    # ---- expressions

    def leave_Call(self, original_node, updated_node):
        if self.context.is_taken_out(original_node):
            return updated_node  # It is taken out.
        func = original_node.func
        name = self.names.old(func)
        rule = rule_for(name)
        if rule is None and name is None and isinstance(func, cst.Attribute):
            name = func.attr.value
            rule = METHODS.get(name)
            if rule is not None and name in self.facts.own_methods:
                return self._of_own_method(rule, original_node, updated_node)
        if rule is not None:
            called = Called(original_node, name or "")
            updated_node = rule(updated_node, called, self.context)
        return self._aligned(original_node, updated_node)

    def _of_own_method(self, rule, original, updated):
        """A call of a method of Keras that the script defines as well."""
        name = original.func.attr.value
        owner = self.facts.owner_of_method(original.func.value)
        if owner == "script":
            return updated
        notes, needs_keras = set(self.context.notes), self.context.needs_keras
        new = rule(updated, Called(original, name), self.context)
        if owner == "keras":
            return self._aligned(original, new)
        changes = new is not updated or self.context.notes != notes
        self.context.notes, self.context.needs_keras = notes, needs_keras
        if changes:
            self.context.note(
                original,
                f"`{self.facts.code(original.func)}(...)`: a class of this "
                f"script defines `{name}`, and whether this calls that one or "
                "the one of Keras is not written here. If it is the one of "
                "Keras, write its arguments as Keras 3 has them.",
            )
        return updated

    def _aligned(self, original, updated):
        """Arguments below the first one stay below it."""
        if not isinstance(updated, cst.Call) or len(original.args) < 2:
            return updated
        columns = len(self.facts.code(updated.func)) - len(
            self.facts.code(original.func)
        )
        starts = [self.names.start(a) for a in original.args]
        first = starts[0]
        below = [s for s in starts if s.line != first.line]
        if (
            not columns
            or not below
            or first.line != self.names.start(original).line
            or any(s.column != first.column for s in below)
        ):
            return updated
        return updated.with_changes(
            args=[
                _arguments.shifted(argument, columns)
                for argument in updated.args
            ]
        )

    def leave_Subscript(self, original_node, updated_node):
        return rules.wrapper.subscript(
            original_node, updated_node, self.context
        )

    # ---- statements

    def visit_Import(self, node):
        return False

    def visit_ImportFrom(self, node):
        return False

    def leave_SimpleStatementLine(self, original_node, updated_node):
        if original_node in self.facts.session_lines:
            rules.beside.session_line(original_node, self.context)
            return marked(updated_node)
        small = original_node.body
        if any(isinstance(s, cst.Import | cst.ImportFrom) for s in small):
            return self.import_lines.line(original_node, updated_node)
        return rules.layers.added(updated_node, self.context)

    def leave_Assign(self, original_node, updated_node):
        return rules.training.trainable(
            original_node, updated_node, self.context
        )

    def leave_ClassDef(self, original_node, updated_node):
        return rules.training.data_set(
            original_node, updated_node, self.context
        )

    def leave_With(self, original_node, updated_node):
        return rules.beside.device_scope(
            original_node, updated_node, self.context
        )
