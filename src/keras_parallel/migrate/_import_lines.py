"""Import lines of Keras 2."""

import libcst as cst

from keras_parallel.migrate import _names
from keras_parallel.migrate._arguments import shifted
from keras_parallel.migrate._context import FUNCTIONS
from keras_parallel.migrate._context import Context
from keras_parallel.migrate._context import Note
from keras_parallel.migrate._context import is_called_differently
from keras_parallel.migrate._facts import dotted
from keras_parallel.migrate._references import References
from keras_parallel.migrate._references import gone_text
from keras_parallel.migrate._removal import marked


class ImportLines:
    """Writes import lines as Keras 3 has them.

    Attributes:
        notes: A name that an import binds, and what to say if it stays.
    """

    def __init__(self, context: Context, references: References):
        self.context = context
        self.names = context.names
        self.facts = context.facts
        self.references = references
        self.notes: list[tuple[str, Note]] = []

    def line(self, original, updated):
        """What stands for a line with imports."""
        new = []
        for small in updated.body:
            if isinstance(small, cst.ImportFrom):
                new.extend(self._import_from(small, original))
            elif isinstance(small, cst.Import):
                new.extend(self._import(small, original))
            else:
                new.append(small)
        if new == list(updated.body):
            return updated
        new = [s.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for s in new]
        if not new:
            return marked(updated)
        first, *others = new
        return cst.FlattenSentinel(
            [
                updated.with_changes(body=[first]),
                *(cst.SimpleStatementLine([other]) for other in others),
            ]
        )

    def _import(self, node, line):
        kept = []
        for alias in node.names:
            full = dotted(alias.name) or ""
            new = _names.new_name(full)
            bound = alias.asname and dotted(alias.asname.name)
            self._note_gone(full, line, bound)
            if new in _names.MODULES:
                if alias.asname is None and not full.startswith("tensorflow"):
                    kept.append(alias.with_changes(name=cst.Name("keras")))
                # Uses of an alias are written out.
                continue
            if new != full:
                name = cst.parse_expression(new)
                if alias.asname is None:
                    name = cst.Name("keras")
                    # `tensorflow` is bound as well, and taken out again if
                    # nothing else needs it.
                    kept.append(alias.with_changes(name=cst.Name("tensorflow")))
                elif dotted(alias.asname.name) == new:
                    alias = alias.with_changes(asname=None)
                alias = alias.with_changes(name=name)
            kept.append(alias)
        kept = _unique(kept)
        if [k.name for k in kept] == [a.name for a in node.names]:
            return [node]
        return [node.with_changes(names=_commas(kept))] if kept else []

    def _import_from(self, node, line):
        module = dotted(node.module)
        if node.relative or module is None:
            return [node]
        if isinstance(node.names, cst.ImportStar):
            return self._import_star(node, module, line)
        groups: dict[str, list[cst.ImportAlias]] = {}
        changed = False
        for alias in node.names:
            full = f"{module}.{dotted(alias.name)}"
            old = _names.old_name(full)
            if not _names.is_keras(old):
                groups.setdefault(module, []).append(alias)
                continue
            if old == _names.MULTI_GPU_MODEL:
                bound = self.facts.code(
                    alias.asname.name if alias.asname else alias.name
                )
                self.references.multi_gpu_names.add(
                    (
                        "multi_gpu_model",
                        None if bound == "multi_gpu_model" else bound,
                    )
                )
                changed = True
                continue
            if old in _names.MODULES:
                changed = True
                continue  # Uses are written out.
            if not self._note_gone(full, alias) and old != full:
                changed = True
            new = self._import_name(full, old)
            home, _, name = new.rpartition(".")
            if not home:  # `from tensorflow import keras`
                home, changed = "", True
            old_last = full.rpartition(".")[2]
            if name != old_last:
                changed = True
                if alias.asname is None and name in self.facts.bound:
                    alias = alias.with_changes(
                        asname=cst.AsName(cst.Name(old_last))
                    )
                alias = alias.with_changes(name=cst.Name(name))
            changed = changed or home != module
            groups.setdefault(home, []).append(alias)
        if not changed:
            return [node]
        return [
            self._written(node, home, aliases)
            for home, aliases in groups.items()
        ]

    def _import_name(self, full, old):
        if _names.gone(full) is not None:
            return old  # Left as it is, with a note.
        if is_called_differently(old) and old not in _names.NAMES:
            return old
        return _names.new_name(full)

    def _written(self, node, home, aliases):
        aliases = _unique(aliases)
        if not home:
            return cst.Import(_commas(aliases))
        module = cst.parse_expression(home)
        if len(aliases) < len(node.names):
            return node.with_changes(
                module=module, names=_commas(aliases), lpar=None, rpar=None
            )
        starts = [self.names.start(alias) for alias in node.names]
        if starts[0].line == self.names.start(node).line:
            columns = len(home) - len(dotted(node.module) or "")
            aliases = [shifted(alias, columns) for alias in aliases]
        return node.with_changes(module=module, names=aliases)

    def _import_star(self, node, module, line):
        old = _names.old_name(module)
        if not _names.is_keras(old):
            return [node]
        self.context.note(
            line,
            f"`from {module} import *`: which names come from here is not "
            "written, so they are not followed. Import them by name and "
            "migrate again.",
        )
        new = _names.MODULES.get(old, old)
        if new == module:
            return [node]
        return [node.with_changes(module=cst.parse_expression(new))]

    def _note_gone(self, full, line, bound=None):
        old = _names.old_name(full)
        if old == "keras.layers.merge" or old in _names.MODULES:
            return False
        instead = _names.gone(full)
        if instead is None or old in FUNCTIONS:
            return False
        text = gone_text(full, instead)
        if bound is None:
            self.context.note(line, text)
        else:
            note = Note(self.names.line(line), text)
            self.notes.append((bound, note))
        return True


def _unique(aliases):
    seen, kept = set(), []
    for alias in aliases:
        asname = alias.asname and dotted(alias.asname.name)
        key = (dotted(alias.name), asname)
        if key not in seen:
            seen.add(key)
            kept.append(alias)
    return kept


def _commas(aliases):
    """Aliases on one line."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [
        *(alias.with_changes(comma=comma) for alias in aliases[:-1]),
        aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT),
    ]
