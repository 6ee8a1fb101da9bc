"""What rules know of a script, and how they are found."""

import dataclasses
from collections.abc import Callable

import libcst as cst

from keras_parallel.migrate._facts import Facts
from keras_parallel.migrate._facts import Names


@dataclasses.dataclass(frozen=True, order=True)
class Note:
    """Something that could not be decided.

    Attributes:
        line: Where it stands, counted from 1.
        text: What, why, and what to do.
    """

    line: int
    text: str


class Context:
    """What rules know of the script, and what they leave behind."""

    def __init__(self, names: Names, facts: Facts):
        self.names = names
        self.facts = facts
        self.notes: set[Note] = set()
        self.needs_keras = False

    def note(self, node: cst.CSTNode, text: str) -> None:
        self.notes.add(Note(self.names.line(node), text))

    def keras(self, path: str) -> str:
        """`keras.path` as this script spells it."""
        self.needs_keras = True
        return f"{self.facts.keras_root or 'keras'}.{path}"

    def is_tensorflow(self, node: cst.CSTNode) -> bool:
        """Whether a name of Keras is spelled with `tensorflow`."""
        return (self.names.imported(node) or "").startswith("tensorflow.")

    def is_taken_out(self, node: cst.CSTNode) -> bool:
        """Whether `node` is in a line that only makes or sets a session."""
        while not isinstance(node, cst.Module):
            if node in self.facts.session_lines:
                return True
            node = self.names.parents[node]
        return False

    def is_model(self, node: cst.CSTNode) -> bool:
        return self.facts.key(node) in self.facts.models


@dataclasses.dataclass(frozen=True)
class Called:
    """A call that a rule looks at.

    Attributes:
        original: The call as it came; positions and names belong to it.
        name: What it calls: a name under `keras`, or that of a method.
    """

    original: cst.Call
    name: str

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]


Rule = Callable[[cst.Call, Called, Context], cst.BaseExpression]

FUNCTIONS: dict[str, Rule] = {}
METHODS: dict[str, Rule] = {}


def function(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for functions and classes of these names."""

    def register(rule):
        for name in names:
            FUNCTIONS[name] = rule
        return rule

    return register


def method(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for methods of these names, of any object."""

    def register(rule):
        for name in names:
            METHODS[name] = rule
        return rule

    return register


def rule_for(name: str | None) -> Rule | None:
    """The rule for a call of a function or class of this name."""
    if name is None:
        return None
    layers = "keras.layers.*" if name.startswith("keras.layers.") else ""
    return FUNCTIONS.get(name) or FUNCTIONS.get(layers)


def is_called_differently(name: str) -> bool:
    """Whether a function must be seen called to be rewritten."""
    return name.startswith("keras.backend.") and name in FUNCTIONS
