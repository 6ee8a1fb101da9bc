"""Changes to the arguments of a call that keep its formatting."""

from collections.abc import Sequence

import libcst as cst


def find(call: cst.Call, keyword: str) -> cst.Arg | None:
    """The argument that is passed by this keyword."""
    for argument in call.args:
        if argument.keyword and argument.keyword.value == keyword:
            return argument
    return None


def positional(call: cst.Call) -> list[cst.Arg]:
    """The arguments before the first keyword or star."""
    found = []
    for argument in call.args:
        if argument.keyword or argument.star:
            break
        found.append(argument)
    return found


def is_open(call: cst.Call) -> bool:
    """Whether `*args` or `**kwargs` may hold more than is written."""
    return any(argument.star for argument in call.args)


def replace(call: cst.Call, old: cst.Arg, new: cst.Arg) -> cst.Call:
    """The call with one argument for another."""
    return call.with_changes(args=[new if a is old else a for a in call.args])


def value(call: cst.Call, old: cst.Arg, code: str) -> cst.Call:
    """The call with another value for an argument."""
    return replace(call, old, old.with_changes(value=expression(code)))


def rename(call: cst.Call, keyword: str, new: str) -> cst.Call:
    """The call with another keyword for an argument, if it has it."""
    old = find(call, keyword)
    if old is None or old.keyword is None:
        return call
    return replace(
        call,
        old,
        old.with_changes(keyword=old.keyword.with_changes(value=new)),
    )


def name_positional(
    call: cst.Call, first: int, keywords: Sequence[str]
) -> cst.Call:
    """The call with its positional arguments from `first` on by keyword.

    With more of them than keywords it stays as it is.
    """
    args = list(call.args)
    end = len(positional(call))
    if end > first + len(keywords):
        return call
    for place, keyword in zip(range(first, end), keywords):
        args[place] = args[place].with_changes(
            keyword=cst.Name(keyword), equal=_EQUAL
        )
    return call.with_changes(args=args)


def drop(call: cst.Call, old: cst.Arg) -> cst.Call:
    """The call without an argument."""
    place = list(call.args).index(old)
    kept = [*call.args[:place], *call.args[place + 1 :]]
    if place and _breaks_line(old) and not _breaks_line(kept[place - 1]):
        kept[place - 1] = kept[place - 1].with_changes(comma=old.comma)
    elif kept and old is call.args[-1]:
        # What stood before the closing parenthesis stands there again.
        kept[-1] = kept[-1].with_changes(
            comma=old.comma, whitespace_after_arg=old.whitespace_after_arg
        )
    return call.with_changes(args=kept)


def _breaks_line(argument):
    return isinstance(argument.comma, cst.Comma) and isinstance(
        argument.comma.whitespace_after, cst.ParenthesizedWhitespace
    )


def append(call: cst.Call, keyword: str, code: str) -> cst.Call:
    """The call with one more argument, spaced like those before it."""
    new = cst.Arg(
        keyword=cst.Name(keyword), value=expression(code), equal=_EQUAL
    )
    if not call.args:
        return call.with_changes(args=[new])
    *before, last = call.args
    comma = before[-1].comma if before else None
    if not isinstance(comma, cst.Comma):
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    after = comma.whitespace_after
    if isinstance(after, cst.ParenthesizedWhitespace):
        line = after.first_line.with_changes(
            comment=None, whitespace=cst.SimpleWhitespace("")
        )
        comma = comma.with_changes(
            whitespace_after=after.with_changes(first_line=line, empty_lines=[])
        )
    return call.with_changes(
        args=[
            *before,
            last.with_changes(
                comma=comma, whitespace_after_arg=cst.SimpleWhitespace("")
            ),
            new.with_changes(
                comma=last.comma,
                whitespace_after_arg=last.whitespace_after_arg,
            ),
        ]
    )


def shifted(item, columns: int):
    """An argument or a name of an import with the next line moved."""
    comma = item.comma
    if not isinstance(comma, cst.Comma):
        return item
    after = comma.whitespace_after
    if not isinstance(after, cst.ParenthesizedWhitespace):
        return item
    width = max(len(after.last_line.value) + columns, 0)
    last_line = after.last_line.with_changes(value=" " * width)
    return item.with_changes(
        comma=comma.with_changes(
            whitespace_after=after.with_changes(last_line=last_line)
        )
    )


def expression(code: str) -> cst.BaseExpression:
    """Parses one expression."""
    return cst.parse_expression(code)


_EQUAL = cst.AssignEqual(
    whitespace_before=cst.SimpleWhitespace(""),
    whitespace_after=cst.SimpleWhitespace(""),
)
