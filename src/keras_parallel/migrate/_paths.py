"""Suffixes of files: changed at all places of a path, or at none."""

import dataclasses
import re

import libcst as cst

from keras_parallel.migrate._context import Context
from keras_parallel.migrate._facts import argument_of
from keras_parallel.migrate._facts import literal

_SUFFIX = re.compile(r"(\.weights)?\.(h5|hdf5|keras)$")
_OLD_FILE = re.compile(r"\.(h5|hdf5)$")
# What stands for something else: `%02d`, `{epoch:02d}`.
_FIELD = re.compile(r"%[-+ #0-9.]*[sdifge]|\{[^{}]*\}")

Text = cst.SimpleString | cst.FormattedStringText


@dataclasses.dataclass(frozen=True)
class _End:
    """The string a path ends with.

    Attributes:
        node: Where it is written.
        text: What it says.
        before: What may stand before it: nothing, a folder, or anything.
        inside: Whether it is written in the call itself.
    """

    node: Text
    text: str
    before: str
    inside: bool

    @property
    def is_whole(self):
        return not self.before and not _FIELD.search(self.text)

    def may_be(self, other):
        """Whether two strings may end the same path."""
        if self.is_whole and other.is_whole:
            return self.text == other.text
        if self.is_whole:
            return other.may_be(self)
        fields = [re.escape(part) for part in _FIELD.split(self.text)]
        before = {"folder": r"(.*[/\\])?"}.get(self.before, ".*")
        if not self.before:
            before = ""
        if other.is_whole:
            pattern = before + ".*".join(fields)
            return re.fullmatch(pattern, other.text) is not None
        if self.before == other.before == "folder" and len(fields) == 1:
            return self.text == other.text
        tails = [_FIELD.split(end.text)[-1] for end in (self, other)]
        return tails[0].endswith(tails[1]) or tails[1].endswith(tails[0])


@dataclasses.dataclass(frozen=True)
class _Use:
    """A call that is given a path.

    Attributes:
        node: The path as it is written there.
        role: `weights` or `model` for what is in the file, `checkpoint` for
            a model that a callback saves, `load` for a call that takes
            both, `unknown` where it cannot be told.
        name: What is called.
        end: The string at its end, if it was found.
    """

    node: cst.BaseExpression
    role: str
    name: str
    end: _End | None


class Paths:
    """The paths of a script.

    Attributes:
        changed: From a string of the script to what it says in Keras 3.
    """

    def __init__(self, context: Context):
        self.context = context
        self.changed: dict[Text, str] = {}
        self._uses: list[_Use] = []
        self._written: list[_End] = []
        self._noted: set[_Use] = set()

    # ---- what there is

    def call(self, node: cst.Call, name: str | None) -> None:
        """Notes a call that is given a path."""
        if name == "keras.callbacks.ModelCheckpoint":
            only = argument_of(node, 4, "save_weights_only")
            role = "weights" if literal(only) else "checkpoint"
            if only is not None and not isinstance(literal(only), bool | int):
                role = "unknown"
            self._use(argument_of(node, 0, "filepath"), role, "ModelCheckpoint")
        elif name == "keras.models.load_model":
            self._use(argument_of(node, 0, "filepath"), "model", "load_model")
        elif name == "keras.models.save_model":
            self._use(argument_of(node, 1, "filepath"), "model", "save_model")
        elif name is None and isinstance(node.func, cst.Attribute):
            self._method(node, node.func)

    def _method(self, node, func):
        method = func.attr.value
        roles = {"save_weights": "weights", "load_weights": "load"}
        role = {**roles, "save": "model"}.get(method)
        if role is None:
            return
        if method != "save" and method in self.context.facts.own_methods:
            owner = self.context.facts.owner_of_method(func.value)
            if owner == "script":
                return
            role = role if owner == "keras" else "unknown"
        self._use(argument_of(node, 0, "filepath"), role, method)

    def _use(self, node, role, name):
        if node is not None:
            self._uses.append(_Use(node, role, name, self._end(node)))

    def string(self, node: Text) -> None:
        """Notes a string that may be a path."""
        value = node.value
        if isinstance(node, cst.SimpleString):
            value = node.evaluated_value
        if isinstance(value, str):
            before = self._before(node)
            self._written.append(_End(node, value, before, False))

    def _before(self, node):
        parent = self.context.names.parents[node]
        if isinstance(node, cst.FormattedStringText):
            string = cst.ensure_type(parent, cst.FormattedString)
            return "" if string.parts[0] is node else "any"
        if isinstance(parent, cst.BinaryOperation) and parent.right is node:
            return "folder" if _is_slash(parent) else "any"
        if isinstance(parent, cst.Arg):
            call = self.context.names.parents[parent]
            if (
                isinstance(call, cst.Call)
                and self._is_join(call)
                and call.args[0] is not parent
            ):
                return "folder"
        return ""

    def _is_join(self, call):
        return (
            isinstance(call, cst.Call)
            and self.context.names.imported(call.func) == "os.path.join"
        )

    def _end(self, node, before="", inside=True):
        """The string that a path ends with, where it is written."""
        if isinstance(node, cst.SimpleString):
            value = node.evaluated_value
            if isinstance(value, str):
                return _End(node, value, before, inside)
        if isinstance(node, cst.FormattedString) and node.parts:
            last = node.parts[-1]
            if isinstance(last, cst.FormattedStringText):
                if len(node.parts) > 1:
                    before = "any"
                return _End(last, last.value, before, inside)
        if isinstance(node, cst.ConcatenatedString):
            return self._end(node.right, "any", inside)
        if isinstance(node, cst.BinaryOperation):
            if isinstance(node.operator, cst.Modulo):
                return self._end(node.left, before, inside)
            if isinstance(node.operator, cst.Add | cst.Divide):
                kind = "folder" if _is_slash(node) else "any"
                return self._end(node.right, kind, inside)
        if isinstance(node, cst.Name | cst.Attribute):
            value = self.context.facts.only_value_of(node)
            end = value and self._end(value, before, False)
            # A suffix with a name may end other paths too.
            return None if end and end.text.startswith(".") else end
        if isinstance(node, cst.Call):
            if self._is_join(node) and node.args:
                kind = "folder" if len(node.args) > 1 else before
                return self._end(node.args[-1].value, kind, inside)
            func = node.func
            if isinstance(func, cst.Attribute) and func.attr.value == "format":
                return self._end(func.value, before, inside)
        return None

    def _key(self, node):
        """One value for a path, wherever it is put together again."""
        whole, parents = node, self.context.names.parents
        while True:
            parent = parents[whole]
            if isinstance(parent, cst.Arg):
                parent = parents[parent]
                if not self._is_join(parent):
                    break
            elif isinstance(parent, cst.Attribute):
                parent = parents[parent]
                if not isinstance(parent, cst.Call):
                    break
            elif not isinstance(
                parent,
                cst.BinaryOperation
                | cst.FormattedString
                | cst.ConcatenatedString,
            ):
                break
            whole = parent
        code = self.context.facts.code(whole)
        if whole is node and isinstance(node, cst.SimpleString):
            code = repr(node.evaluated_value)
        return code.replace("'", '"')

    # ---- what becomes of it

    def decide(self) -> None:
        """Fills `changed`, and notes what is left."""
        groups: dict[str, list[_Use]] = {}
        for use in self._uses:
            # What ends in a field, `"%s" % path`, may have any suffix.
            if use.end is not None and _FIELD.split(use.end.text)[-1]:
                groups.setdefault(use.end.text, []).append(use)
            elif use.name in ("save_weights", "ModelCheckpoint"):
                self._note_unknown(use)
        new: dict[str, str] = {}
        for text, uses in groups.items():
            suffixed = _suffix_for(uses)
            if suffixed is None:
                self._note(uses, "it is used for other files as well")
            elif suffixed(text) != text:
                new[text] = suffixed(text)
        self._leave_what_may_be_another(groups, new)
        for text in new:
            self._change(text, new[text], groups[text])

    def _leave_what_may_be_another(self, groups, new):
        """A path that may be one that stays has to stay too."""
        ends = {}
        for text, uses in groups.items():
            ends[text] = [use.end for use in uses]
        staying = [e for e in self._written if _OLD_FILE.search(e.text)]
        staying = [
            end
            for end in staying
            if not any(
                use.role in ("model", "checkpoint")
                for use in groups.get(end.text, [])
            )
        ]
        for text in list(new):
            uses = groups[text]
            if not _SUFFIX.search(text):
                continue
            known = {self._key(use.end.node) for use in uses}
            others = {
                self._key(end.node) for end in self._written if end.text == text
            }
            if others - known:
                del new[text]
                other = min(others - known)
                self._note(uses, f"`{other}` may be the same file")
        again = True
        while again:
            again = False
            for text in list(new):
                other = next(
                    (
                        stays.text
                        for stays in staying
                        if stays.text not in new
                        and not stays.text.endswith(".weights.h5")
                        for end in ends[text]
                        if end.may_be(stays)
                    ),
                    None,
                )
                if other is not None:
                    del new[text]
                    again = True
                    self._note(groups[text], f"{other!r} may be the same file")
                    self._note(groups.get(other, []), f"so may {text!r}")

    def _change(self, text, new, uses):
        if _SUFFIX.search(text):
            for end in self._written:
                if end.text == text:
                    self.changed[end.node] = new
            return
        # A word, that may stand elsewhere for something else.
        if not all(use.end.inside for use in uses):
            self._note(uses, "the same string may stand for something else")
            return
        for use in uses:
            self.changed[use.end.node] = new

    def _note(self, uses, why):
        for use in uses:
            if use in self._noted:
                continue
            self._noted.add(use)
            self.context.note(
                use.node,
                f"`{use.name}({self.context.facts.code(use.node)})`: Keras 3 "
                "wants files of weights to end in `.weights.h5` and models "
                f"in `.keras` or `.h5`. This path is left: {why}. Rename it "
                "wherever it stands.",
            )

    def _note_unknown(self, use):
        if self.context.facts.is_keras_3:
            return
        wanted = {
            "weights": "`.weights.h5`",
            "checkpoint": "`.keras`",
        }.get(use.role, "`.weights.h5` for weights, `.keras` for a model")
        self.context.note(
            use.node,
            f"`{use.name}({self.context.facts.code(use.node)})`: Keras 3 wants "
            f"{wanted} at its end, and how this path ends is not written "
            "here. See that it does, here and where the file is read.",
        )


def _suffix_for(uses):
    """How a path of these uses is suffixed; `None` if it cannot be told."""
    roles = {use.role for use in uses}
    if "weights" in roles:
        return None if roles & {"checkpoint", "model", "unknown"} else _weights
    if "checkpoint" in roles:
        return None if "unknown" in roles else _model
    if "unknown" in roles and not all(
        use.end.text.endswith((".weights.h5", ".keras")) for use in uses
    ):
        return None
    return str


def _is_slash(node):
    return isinstance(node.operator, cst.Divide) or (
        isinstance(node.left, cst.BinaryOperation)
        and isinstance(node.left.right, cst.SimpleString)
        and node.left.right.evaluated_value in ("/", "\\")
    )


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
