"""Walks over a script, applies the rules, and mends the imports."""

import dataclasses
import re

import libcst as cst
from libcst import metadata

from keras_parallel.migrate import _arguments
from keras_parallel.migrate import _names
from keras_parallel.migrate import _rules
from keras_parallel.migrate._facts import Facts
from keras_parallel.migrate._facts import Names
from keras_parallel.migrate._facts import argument_of
from keras_parallel.migrate._facts import dotted
from keras_parallel.migrate._facts import is_cpu
from keras_parallel.migrate._facts import literal
from keras_parallel.migrate._imports import add_imports
from keras_parallel.migrate._imports import newly_unused
from keras_parallel.migrate._imports import remove_imports
from keras_parallel.migrate._rules import Called
from keras_parallel.migrate._rules import Context
from keras_parallel.migrate._rules import Note
from keras_parallel.migrate._statements import clear_marked
from keras_parallel.migrate._statements import marked
from keras_parallel.migrate._strings import Strings
from keras_parallel.migrate._strings import changed_string

# What Keras called a model that was given no name.
_AUTOMATIC_NAME = re.compile(r"(model|sequential)_\d+")


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
    context = Context(names, facts)
    strings = Strings(context).changed
    rewriter = _Rewriter(context, strings)
    module = clear_marked(wrapper.module.visit(rewriter))
    module = add_imports(
        module,
        keras_parallel=sorted(rewriter.multi_gpu_names),
        whole_keras_parallel=rewriter.needs_keras_parallel,
        keras=context.needs_keras and facts.keras_root is None,
    )
    unused = newly_unused(wrapper.module, module)
    context.notes.update(
        note for bound, note in rewriter.notes_on_imports if bound not in unused
    )
    text = remove_imports(module, unused).code
    return Migration(text, sorted(context.notes))


class _Rewriter(cst.CSTTransformer):
    def __init__(self, context, strings):
        self.context = context
        self.names = context.names
        self.facts = context.facts
        self.strings = strings
        # How `multi_gpu_model` is imported: ("multi_gpu_model", alias).
        self.multi_gpu_names: set[tuple[str, str | None]] = set()
        self.needs_keras_parallel = False
        # Name that an import binds -> what to say if it stays.
        self.notes_on_imports: list[tuple[str, Note]] = []
        self._references: dict[cst.CSTNode, cst.BaseExpression] = {}
        self._tensorflow_noted: set[str] = set()

    # ---- names

    def visit_Attribute(self, node):
        if dotted(node) is None:
            return True
        new = self._reference(node)
        if new is not None:
            self._references[node] = new
        return False

    def leave_Attribute(self, original_node, updated_node):
        if original_node in self._references:
            return self._references[original_node]
        return self._attribute(original_node, updated_node)

    def _attribute(self, original, updated):
        """`optimizer.lr`, and the template inside the old wrapper."""
        if self.facts.is_learning_rate(original):
            return _learning_rate(updated)
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
        return self._reference(original_node) or updated_node

    def _reference(self, node):
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
        if called and old in _rules.FUNCTIONS and _names.gone(full) is not None:
            return None  # The rule writes something else, or a note.
        if not called and _rules.is_called_differently(old):
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
                self.context.note(node, _gone(self.facts.code(node), instead))
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
            _learning_rate(node) if self.facts.is_learning_rate(node) else None
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
        if full == "tensorflow.device" or _rules.rule_for(full) is not None:
            return
        if self._in_session_line(node):
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

    def _in_session_line(self, node):
        while not isinstance(node, cst.Module):
            if node in self.facts.session_lines:
                return True
            node = self.names.parents[node]
        return False

    def _is_called(self, node):
        parent = self.names.parents[node]
        return isinstance(parent, cst.Call) and parent.func is node

    def leave_SimpleString(self, original_node, updated_node):
        if original_node in self.strings:
            return changed_string(updated_node, self.strings[original_node])
        return updated_node

    # ---- calls and subscripts

    def leave_Call(self, original_node, updated_node):
        if self._in_session_line(original_node):
            return updated_node  # It is taken out.
        func = original_node.func
        name = self.names.old(func)
        rule = _rules.rule_for(name)
        if rule is None and name is None and isinstance(func, cst.Attribute):
            name = func.attr.value
            rule = _rules.METHODS.get(name)
        if name == "update":
            self._note_wrapper_class(original_node)
        if name == "get_layer":
            updated_node = self._get_layer(original_node, updated_node)
        if rule is not None:
            called = Called(original_node, name or "")
            updated_node = rule(updated_node, called, self.context)
        if name in ("keras.Sequential", "keras.models.Sequential"):
            updated_node = self._sequential(original_node, updated_node)
        return self._aligned(original_node, updated_node)

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
            args=[_shifted(argument, columns) for argument in updated.args]
        )

    def leave_Subscript(self, original_node, updated_node):
        """`parallel.layers[-2]` was the model inside the wrapper."""
        value = original_node.value
        if not (
            isinstance(value, cst.Attribute)
            and value.attr.value == "layers"
            and self.facts.code(original_node).endswith("layers[-2]")
        ):
            return updated_node
        if not self._is_parallel(value.value, original_node):
            return updated_node
        return cst.ensure_type(updated_node.value, cst.Attribute).value

    def _get_layer(self, original, updated):
        """`get_layer("model_1")` was that model too."""
        name = argument_of(original, 0, "name")
        given = literal(name) if name is not None else None
        receiver = original.func.value
        if (
            isinstance(given, str)
            and _AUTOMATIC_NAME.fullmatch(given)
            and not self.facts.has_layer(given)
            and self._is_parallel(receiver, original)
        ):
            return updated.func.value
        return updated

    def _note_wrapper_class(self, call):
        """A class around the wrapper, that saved the template."""
        given = self.facts.code(call.args[0].value) if call.args else ""
        owner = given.removesuffix(".__dict__")
        if owner != given and self.facts.parallel[owner]:
            self.context.note(
                call,
                f"`{self.facts.code(call)}`: a class around the parallel "
                "model, so that the template is saved. The parallel model "
                "saves as the template does: use what `multi_gpu_model` "
                "returns, and remove the class.",
            )

    def _is_parallel(self, node, whole):
        name = self.facts.code(node)
        key = self.facts.key(node)
        wrapped = self.facts.parallel[key]
        if wrapped and wrapped < self.facts.assigned[key]:
            self.context.note(
                whole,
                f"`{self.facts.code(whole)}`: {name!r} is assigned a parallel "
                "model and another one. Of a parallel model this was the "
                f"model inside the wrapper, and is `{name}` itself now.",
            )
            return False
        return wrapped > 0

    # ---- a fixed batch size

    def _sequential(self, original, updated):
        """`Sequential([LSTM(batch_input_shape=...)])`."""
        if not updated.args or not isinstance(updated.args[0].value, cst.List):
            return updated
        layers = updated.args[0].value
        if not layers.elements:
            return updated
        first = layers.elements[0]
        shape = self._take_batch_shape(original.args[0].value.elements[0].value)
        if shape is None:
            return updated
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        if isinstance(first.comma, cst.Comma):
            comma = first.comma
        elements = [
            cst.Element(self._input(shape), comma=comma),
            first.with_changes(value=_without_batch_shape(first.value)),
            *layers.elements[1:],
        ]
        changed = layers.with_changes(elements=elements)
        return updated.with_deep_changes(updated.args[0], value=changed)

    def _take_batch_shape(self, node):
        if not isinstance(node, cst.Call):
            return None
        shape = argument_of(node, None, "batch_input_shape")
        if shape is None:
            return None
        self.context.notes -= {
            note
            for note in self.context.notes
            if note.line == self.names.line(node)
            and "batch_input_shape" in note.text
        }
        return self.facts.code(shape)

    def _input(self, shape):
        return cst.parse_expression(
            f"{self.context.keras('Input')}(batch_shape={shape})"
        )

    # ---- statements

    def leave_Assign(self, original_node, updated_node):
        """`model.trainable = False` between compiling and training."""
        target = original_node.targets[0].target
        if not (
            isinstance(target, cst.Attribute)
            and target.attr.value == "trainable"
        ):
            return updated_node
        owner = self.facts.code(target.value)
        line = self.names.line(original_node)
        key = self.facts.key(target.value)
        if self.facts.is_trained_as_compiled_before(key, line):
            self.context.note(
                original_node,
                f"`{self.facts.code(original_node)}` after it was compiled: "
                "Keras 2 read `trainable` when it compiled, Keras 3 reads it "
                f"when it trains, and would not train {owner!r} any more. "
                f"Write `{owner}.trainable = True` before each of its own "
                "steps and `False` after.",
            )
        return updated_node

    def leave_ClassDef(self, original_node, updated_node):
        """`PyDataset` wants its constructor called."""
        bases = [self.names.old(b.value) for b in original_node.bases]
        if "keras.utils.Sequence" not in bases:
            return updated_node
        for method in updated_node.body.body:
            if (
                isinstance(method, cst.FunctionDef)
                and method.name.value == "__init__"
                and "__init__(" not in self.facts.code(method.body)
            ):
                return updated_node.with_deep_changes(
                    method, body=_with_super_first(method.body)
                )
        return updated_node

    def leave_SimpleStatementLine(self, original_node, updated_node):
        if original_node in self.facts.session_lines:
            self._note_memory(original_node)
            return marked(updated_node)
        small = original_node.body
        if any(isinstance(s, cst.Import | cst.ImportFrom) for s in small):
            return self._imports(original_node, updated_node)
        return self._added_layer(original_node, updated_node)

    def _added_layer(self, original, updated):
        """`model.add(LSTM(batch_input_shape=...))`."""
        if len(original.body) != 1 or not isinstance(
            original.body[0], cst.Expr
        ):
            return updated
        call = original.body[0].value
        if not (
            isinstance(call, cst.Call)
            and isinstance(call.func, cst.Attribute)
            and call.func.attr.value == "add"
            and len(call.args) == 1
        ):
            return updated
        shape = self._take_batch_shape(call.args[0].value)
        if shape is None:
            return updated
        new = updated.body[0].value
        inputs = new.with_changes(args=[cst.Arg(self._input(shape))])
        rest = new.with_changes(
            args=[
                new.args[0].with_changes(
                    value=_without_batch_shape(new.args[0].value)
                )
            ]
        )
        return cst.FlattenSentinel(
            [
                cst.SimpleStatementLine(
                    [cst.Expr(inputs)], leading_lines=updated.leading_lines
                ),
                updated.with_changes(body=[cst.Expr(rest)], leading_lines=[]),
            ]
        )

    def _note_memory(self, line):
        code = self.facts.code(line)
        for option in ("allow_growth", "per_process_gpu_memory_fraction"):
            if option in code:
                instead = (
                    "XLA_PYTHON_CLIENT_PREALLOCATE=false in the environment"
                    if option == "allow_growth"
                    else "XLA_PYTHON_CLIENT_MEM_FRACTION in the environment"
                )
                self.context.note(
                    line,
                    f"`{option}` is removed with the session: JAX reserves "
                    "three quarters of a GPU when it starts. If that is too "
                    f"much, set {instead}.",
                )

    def leave_With(self, original_node, updated_node):
        """`with tf.device("/cpu:0"):` around what builds a model."""
        items = original_node.items
        scopes = [
            item
            for item in items
            if isinstance(item.item, cst.Call)
            and self.names.imported(item.item.func) == "tensorflow.device"
        ]
        if not scopes:
            return updated_node
        device = literal(argument_of(scopes[0].item, 0, "device_name"))
        if self.facts.scopes_on_gpus:
            self.context.note(
                original_node,
                f"`{self.facts.code(scopes[0].item)}`: no effect on JAX. Parts of "
                "a model on several devices are not there yet; remove the "
                "scopes, and `multi_gpu_model` shares out the batch instead.",
            )
            return updated_node
        if (
            len(items) > 1
            or not is_cpu(device)
            or self._has_tensorflow(original_node.body)
        ):
            self.context.note(
                original_node,
                f"`{self.facts.code(scopes[0].item)}`: what is inside is not only "
                "Keras. Around a model no scope is needed: each device holds "
                "the weights.",
            )
            return updated_node
        return _dedented(updated_node)

    def _has_tensorflow(self, body):
        names = self.names
        found = []

        class Search(cst.CSTVisitor):
            def visit_Attribute(self, node):
                full = names.imported(node)
                if full is not None:
                    old = _names.old_name(full)
                    if old.startswith("tensorflow."):
                        found.append(old)
                    return False
                return None

        body.visit(Search())
        return [n for n in found if n != "tensorflow.device"]

    # ---- imports

    def visit_Import(self, node):
        return False

    def visit_ImportFrom(self, node):
        return False

    def _imports(self, original, updated):
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
                self.multi_gpu_names.add(
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
        if _rules.is_called_differently(old) and old not in _names.NAMES:
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
            aliases = [_shifted(alias, columns) for alias in aliases]
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
        if instead is None or _rules.rule_for(old) is not None:
            return False
        text = _gone(full, instead)
        if bound is None:
            self.context.note(line, text)
        else:
            note = Note(self.names.line(line), text)
            self.notes_on_imports.append((bound, note))
        return True


def _gone(name, instead):
    return f"`{name}`: gone in Keras 3. {instead}"


def _with_super_first(block):
    body = list(block.body)
    place = 0
    if isinstance(body[0], cst.SimpleStatementLine):
        small = body[0].body[0]
        if isinstance(small, cst.Expr) and isinstance(
            small.value, cst.SimpleString | cst.ConcatenatedString
        ):
            place = 1
    call = cst.parse_statement("super().__init__()")
    if isinstance(block, cst.SimpleStatementSuite):
        block = cst.IndentedBlock([cst.SimpleStatementLine(body)])
        body, place = list(block.body), 0
    return block.with_changes(body=[*body[:place], call, *body[place:]])


def _learning_rate(node):
    return node.with_changes(attr=node.attr.with_changes(value="learning_rate"))


def _without_batch_shape(call):
    found = next(
        a
        for a in call.args
        if a.keyword and a.keyword.value == "batch_input_shape"
    )
    return _arguments.drop(call, found)


def _unique(aliases):
    seen, kept = set(), []
    for alias in aliases:
        asname = alias.asname and dotted(alias.asname.name)
        key = (dotted(alias.name), asname)
        if key not in seen:
            seen.add(key)
            kept.append(alias)
    return kept


def _shifted(item, columns):
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


def _commas(aliases):
    """Aliases on one line."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [
        *(alias.with_changes(comma=comma) for alias in aliases[:-1]),
        aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT),
    ]


def _dedented(node):
    """The body of a `with` in its place, comments kept."""
    footer = ()
    if isinstance(node.body, cst.IndentedBlock):
        comment = node.body.header.comment
        footer = node.body.footer
        first, *rest = node.body.body
    else:
        comment = node.body.trailing_whitespace.comment
        first, rest = cst.SimpleStatementLine(node.body.body), []
    leading = [*node.leading_lines]
    if comment is not None:
        leading.append(cst.EmptyLine(comment=comment))
    first = first.with_changes(
        leading_lines=[*leading, *getattr(first, "leading_lines", ())]
    )
    if footer:
        rest.append(marked(cst.SimpleStatementLine([], leading_lines=footer)))
    return cst.FlattenSentinel([first, *rest])
