"""Taking statements out of a script without its comments."""

import libcst as cst

_MARK = "__removed_by_keras_parallel__"


def marked(line: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
    """A statement that `clear_marked` takes out; its comments stay."""
    return line.with_changes(
        body=[cst.Expr(cst.Name(_MARK))],
        trailing_whitespace=cst.TrailingWhitespace(),
    )


def clear_marked(module: cst.Module) -> cst.Module:
    """The module without the statements that were marked."""
    return cst.ensure_type(module.visit(_Clear()), cst.Module)


class _Clear(cst.CSTTransformer):
    def leave_Module(self, original_node, updated_node):
        body, rest = _cleared(updated_node.body)
        footer = [*_comments(rest), *updated_node.footer]
        return updated_node.with_changes(body=body, footer=footer)

    def leave_IndentedBlock(self, original_node, updated_node):
        body, rest = _cleared(updated_node.body)
        if len(body) == len(updated_node.body):
            return updated_node
        footer = [*_comments(rest), *updated_node.footer]
        if not body:
            body = [_pass()]
        return updated_node.with_changes(body=body, footer=footer)

    def leave_Try(self, original_node, updated_node):
        """A `try` that only guarded what was taken out goes with it."""
        if not any(_has_mark(b) for b in original_node.children):
            return updated_node
        blocks = [
            updated_node.body,
            *(handler.body for handler in updated_node.handlers),
        ]
        if updated_node.orelse or updated_node.finalbody:
            return updated_node
        if all(_is_pass(block) for block in blocks):
            return marked(
                cst.SimpleStatementLine(
                    [], leading_lines=updated_node.leading_lines
                )
            )
        return updated_node


def _pass():
    return cst.SimpleStatementLine([cst.Pass()])


def _is_mark(statement):
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and len(statement.body) == 1
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.Name)
        and statement.body[0].value.value == _MARK
    )


def _has_mark(node):
    found = []

    class Search(cst.CSTVisitor):
        def visit_Name(self, node):
            if node.value == _MARK:
                found.append(node)

    node.visit(Search())
    return bool(found)


def _is_pass(block):
    return all(
        isinstance(line, cst.SimpleStatementLine)
        and all(isinstance(small, cst.Pass) for small in line.body)
        for line in block.body
    )


def _cleared(body):
    """The statements that stay, and the lines above one that does not."""
    kept, above = [], []
    for statement in body:
        if _is_mark(statement):
            above = _merged(above, statement.leading_lines)
            continue
        if above:
            lines = _merged(above, statement.leading_lines)
            statement = statement.with_changes(leading_lines=lines)
            above = []
        kept.append(statement)
    return kept, above


def _merged(above, below):
    """Lines above two statements, without adding up their empty lines."""
    above, below = list(above), list(below)
    if all(line.comment is None for line in above):
        empty = max(len(above), _leading_empty(below))
        return [cst.EmptyLine()] * empty + below[_leading_empty(below) :]
    return [*above, *below]


def _leading_empty(lines):
    count = 0
    for line in lines:
        if line.comment is not None:
            break
        count += 1
    return count


def _comments(lines):
    return lines if any(line.comment for line in lines) else []
