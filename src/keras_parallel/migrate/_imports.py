"""Imports that a rewritten script needs, and those it no longer does."""

import libcst as cst

from keras_parallel.migrate._facts import dotted
from keras_parallel.migrate._removal import clear_marked
from keras_parallel.migrate._removal import marked


def add_imports(
    module: cst.Module,
    *,
    keras_parallel: list[tuple[str, str | None]],
    whole_keras_parallel: bool,
    keras: bool,
) -> cst.Module:
    """The module with what is missing.

    Args:
        module: The rewritten script.
        keras_parallel: Names to import from keras_parallel, and as what.
            They come first, so that keras_parallel picks the backend.
        whole_keras_parallel: Whether `keras_parallel` itself is used.
        keras: Whether to add `import keras`.
    """
    if keras:
        place = _first(module, ("keras", "tensorflow"))
        module = _insert(module, place, "import keras")
    first = []
    if whole_keras_parallel:
        first.append("import keras_parallel")
    if keras_parallel:
        names = ", ".join(
            name if alias is None else f"{name} as {alias}"
            for name, alias in keras_parallel
        )
        first.append(f"from keras_parallel import {names}")
    for code in reversed(first):
        module = _insert(module, _after_future(module), code, apart=True)
    return module


def _after_future(module):
    """Where the first import may stand."""
    place = 0
    for index, statement in enumerate(module.body):
        if not isinstance(statement, cst.SimpleStatementLine):
            break
        small = statement.body[0]
        is_docstring = (
            index == 0
            and isinstance(small, cst.Expr)
            and isinstance(
                small.value, cst.SimpleString | cst.ConcatenatedString
            )
        )
        is_future = (
            isinstance(small, cst.ImportFrom)
            and dotted(small.module) == "__future__"
        )
        if not (is_docstring or is_future):
            break
        place = index + 1
    return place


def _first(module, packages):
    """The first statement that imports one of these packages."""
    for index, statement in enumerate(module.body):
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for small in statement.body:
            names = []
            if isinstance(small, cst.ImportFrom):
                names = [dotted(small.module) or ""]
            elif isinstance(small, cst.Import):
                names = [dotted(alias.name) or "" for alias in small.names]
            if any(name.split(".")[0] in packages for name in names):
                return index
    return _after_future(module)


def _insert(module, place, code, apart=False):
    """Puts a line before a statement, or apart from it by an empty line."""
    new = cst.ensure_type(
        cst.parse_statement(code, config=module.config_for_parsing),
        cst.SimpleStatementLine,
    )
    body = list(module.body)
    if place < len(body):
        old = body[place]
        lines = list(old.leading_lines)
        has_comment = any(line.comment for line in lines)
        if place > 0 and not has_comment:
            new = new.with_changes(
                leading_lines=lines or ([cst.EmptyLine()] if apart else [])
            )
            lines = []
        elif place > 0 and apart:
            new = new.with_changes(leading_lines=[cst.EmptyLine()])
        if apart and (not lines or lines[0].comment is not None):
            lines = [cst.EmptyLine(), *lines]
        body[place] = old.with_changes(leading_lines=lines)
    body.insert(place, new)
    return module.with_changes(body=body)


def newly_unused(before: cst.Module, after: cst.Module) -> set[str]:
    """Names that were used before and are not any more."""
    return _used(before) - _used(after)


def remove_imports(module: cst.Module, names: set[str]) -> cst.Module:
    """The module without the imports of these names."""
    if not names:
        return module
    return clear_marked(
        cst.ensure_type(module.visit(_RemoveImports(names)), cst.Module)
    )


def _used(module):
    """Names that are read somewhere, other than in an import."""
    found = set()

    class Reads(cst.CSTVisitor):
        def visit_Import(self, node):
            return False

        def visit_ImportFrom(self, node):
            return False

        def visit_Attribute(self, node):
            node.value.visit(self)
            return False

        def visit_Arg(self, node):
            node.value.visit(self)
            return False

        def visit_Name(self, node):
            found.add(node.value)

    module.visit(Reads())
    return found


class _RemoveImports(cst.CSTTransformer):
    def __init__(self, names):
        self.names = names

    def leave_SimpleStatementLine(self, original_node, updated_node):
        if len(updated_node.body) != 1:
            return updated_node
        node = updated_node.body[0]
        if not isinstance(node, cst.Import | cst.ImportFrom):
            return updated_node
        if isinstance(node.names, cst.ImportStar):
            return updated_node
        kept = [
            alias for alias in node.names if _bound(alias) not in self.names
        ]
        if len(kept) == len(node.names):
            return updated_node
        if not kept:
            return marked(updated_node)
        kept[-1] = kept[-1].with_changes(comma=node.names[-1].comma)
        return updated_node.with_changes(body=[node.with_changes(names=kept)])


def _bound(alias):
    name = alias.asname.name if alias.asname else alias.name
    return (dotted(name) or "").split(".")[0]
