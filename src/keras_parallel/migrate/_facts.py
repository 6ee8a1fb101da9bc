"""What has to be known of a whole script before a line can be decided."""

import ast
import re
from collections import Counter

import libcst as cst
from libcst import metadata

from keras_parallel.migrate import _names

SESSIONS = frozenset(
    f"tensorflow.{prefix}{name}"
    for prefix in ("", "compat.v1.")
    for name in ("Session", "InteractiveSession")
)
SESSION_OPTIONS = frozenset(
    f"tensorflow.{prefix}{name}"
    for prefix in ("", "compat.v1.")
    for name in ("ConfigProto", "GPUOptions")
)
MODELS = frozenset(
    f"keras.{name}"
    for name in (
        *("Model", "Sequential", "models.Model", "models.Sequential"),
        *("models.load_model", "models.clone_model"),
        "models.model_from_json",
    )
)
# They set the learning rate, which a schedule does not allow.
RATE_SETTERS = frozenset(
    f"keras.callbacks.{name}"
    for name in ("LearningRateScheduler", "ReduceLROnPlateau")
)
OLD_OUTPUT = re.compile(r"concatenate_\d+")


class Names:
    """What the names of a script stand for."""

    def __init__(self, wrapper: metadata.MetadataWrapper):
        self._qualified = wrapper.resolve(metadata.QualifiedNameProvider)
        self._positions = wrapper.resolve(metadata.PositionProvider)
        self.parents = wrapper.resolve(metadata.ParentNodeProvider)

    def imported(self, node: cst.CSTNode) -> str | None:
        """The dotted name that `node` was imported as, if it was.

        Args:
            node: A name, or names joined by dots; anything else is `None`.
        """
        if not _is_chain(node):
            return None
        found = self._qualified.get(node, ())
        found = found() if callable(found) else found
        source = metadata.QualifiedNameSource.IMPORT
        names = sorted(
            {_names.plain(f.name) for f in found if f.source is source}
        )
        if not names or any(f.source is not source for f in found):
            return None  # Bound in another way too.
        # Two imports, in `try` and `except`, may mean the same thing.
        if len({_names.old_name(name) for name in names}) > 1:
            return None
        return names[0]

    def old(self, node: cst.CSTNode) -> str | None:
        """As `imported`, as a name under `keras` where it is one."""
        name = self.imported(node)
        return None if name is None else _names.old_name(name)

    def start(self, node: cst.CSTNode) -> metadata.CodePosition:
        return self._positions[node].start

    def line(self, node: cst.CSTNode) -> int:
        return self.start(node).line


class Facts(cst.CSTVisitor):
    """Read in one pass over the script as it came."""

    def __init__(self, module: cst.Module, names: Names):
        self.names = names
        self.module = module
        # Names bound otherwise than by an import.
        self.bound: set[str] = set()
        # The name of `keras` itself at module level.
        self.keras_root: str | None = None
        self.imports_keras = False
        # Whether any name of Keras is there, `tf.keras` among them.
        self.uses_keras = False
        # Whether a name is there that only Keras 3 has.
        self.is_keras_3 = False
        self.uses_multi_gpu_model = False
        # Methods that the classes of the script define, and these classes.
        self.own_methods: set[str] = set()
        self.own_classes: set[str] = set()
        # `model` or `self.model` -> how often it is assigned.
        self.assigned: Counter[str] = Counter()
        self.models: set[str] = set()
        self.optimizers: set[str] = set()
        self.parallel: Counter[str] = Counter()
        # `model` -> the lines that compile it.
        self._compiled: dict[str, list[int]] = {}
        # `model` -> the lines that train it, and those that set `trainable`.
        self._trained: dict[str, list[int]] = {}
        self._trainable: dict[str, list[tuple[int, bool]]] = {}
        # `optimizer` -> the models that are compiled with it.
        self._optimized: dict[str, list[tuple[str, cst.Call]]] = {}
        self._wrappers: dict[str, set[str]] = {}
        self.scopes_on_gpus = False
        self.rate_setter: str | None = None
        self._set_rates: list[cst.Attribute] = []
        self.metrics: set[str] = set()
        self.metric_nodes: set[cst.CSTNode] = set()
        self._given_metrics: list[cst.BaseExpression] = []
        self.output_names: dict[str, str] = {}
        self.session_lines: set[cst.SimpleStatementLine] = set()
        self._values: dict[str, list[cst.BaseExpression]] = {}
        self._model_calls: list[cst.Call] = []
        self._old_outputs: set[str] = set()
        self._layer_names: set[str] = set()
        self._set_session: list[cst.SimpleStatementLine] = []
        self._session_names: dict[str, list[cst.SimpleStatementLine]] = {}
        self._uses: dict[str, list[cst.Name]] = {}
        module.visit(self)
        for target in self._set_rates:
            if self.is_of_optimizer(target):
                self.rate_setter = f"`{self.code(target)} = ...`"
        self._decide_sessions()
        self._decide_outputs()
        for given in self._given_metrics:
            value = self.value_of(given)
            self._note_metrics(given if value is None else value)

    def code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)

    def value_of(self, node: cst.CSTNode) -> cst.BaseExpression | None:
        """What a name was assigned, if it was assigned once."""
        if not isinstance(node, cst.Name):
            return None
        values = self._values.get(node.value, [])
        return values[0] if len(values) == 1 else None

    def only_value_of(
        self, node: cst.Name | cst.Attribute
    ) -> cst.BaseExpression | None:
        """As `value_of`, and for `self.path` too."""
        values = self._values.get(self.key(node), [])
        return values[0] if len(values) == 1 else None

    def freezes_what_trains(self, name: str, line: int) -> bool:
        """Whether `trainable = False` in `line` stops a model from learning.

        It was compiled before that line, and a line that trains it follows
        no line that sets `trainable` to `True` again.
        """
        names = {name, *self._wrappers.get(name, ())}
        compiled = [at for n in names for at in self._compiled.get(n, [])]
        trained = [at for n in names for at in self._trained.get(n, [])]
        if not compiled or max(compiled) >= line:
            return False
        for at in trained:
            set_before = [s for s in self._trainable[name] if s[0] < at]
            # Without one before it, it is in a function or a loop.
            if not set_before or set_before[-1] == (line, False):
                return True
        return False

    def shared_optimizers(self) -> list[tuple[cst.Call, str]]:
        """Calls of `compile` with the optimizer of another model."""
        found = []
        for name, users in self._optimized.items():
            if name not in self.optimizers or self.assigned[name] != 1:
                continue
            first, _ = users[0]
            family = {first, *self._wrappers.get(first, ())}
            for template, wrappers in self._wrappers.items():
                if first in wrappers:
                    family |= {template, *wrappers}
            found += [(call, first) for own, call in users if own not in family]
        return found

    def is_learning_rate(self, node: cst.Attribute) -> bool:
        """Whether `node` is the `lr` of an optimizer."""
        return node.attr.value == "lr" and self.is_of_optimizer(node)

    def is_of_optimizer(self, node: cst.Attribute) -> bool:
        owner = self.key(node.value)
        return owner in {"optimizer", ".optimizer"} | self.optimizers

    def owner_of_method(self, node: cst.CSTNode) -> str | None:
        """Who has a method that the script defines: `keras` or `script`.

        `None` where it cannot be told.
        """
        if isinstance(node, cst.Name) and node.value in ("self", "cls"):
            return "script"
        values = [node] if isinstance(node, cst.Call) else []
        values = values or self._values.get(self.key(node), [])
        owners = {self._maker(value) for value in values}
        return owners.pop() if len(owners) == 1 else None

    def _maker(self, value):
        called = called_name(value, self.names)
        if called is not None and (
            called in MODELS
            or called.startswith("keras.applications.")
            or called
            in (_names.MULTI_GPU_MODEL, "keras_parallel.multi_gpu_model")
        ):
            return "keras"
        if (
            isinstance(value, cst.Call)
            and isinstance(value.func, cst.Name)
            and value.func.value in self.own_classes
        ):
            return "script"
        return None

    def has_layer(self, name: str) -> bool:
        """Whether the script itself names something so."""
        return name in self._layer_names

    # ---- imports and names

    def visit_Import(self, node):
        for alias in node.names:
            full = dotted(alias.name) or ""
            self._note_import(full)
            if alias.asname is None:
                # `import tensorflow.keras` will be `import keras`.
                if _names.is_keras(_names.old_name(full)):
                    self._note_root(node, "keras")
            elif _names.old_name(full) == "keras":
                self._note_root(node, self.code(alias.asname.name))
        return False

    def visit_ImportFrom(self, node):
        module = dotted(node.module)
        if module is None or isinstance(node.names, cst.ImportStar):
            self._note_import(module or "")
            return False
        for alias in node.names:
            full = f"{module}.{dotted(alias.name)}"
            self._note_import(full)
            if _names.old_name(full) == "keras":
                name = alias.asname.name if alias.asname else alias.name
                self._note_root(node, self.code(name))
        return False

    def _note_import(self, full):
        if full.partition(".")[0] == "keras":
            self.imports_keras = True
        self._note_use(full)

    def _note_use(self, full):
        old = _names.old_name(_names.plain(full))
        if _names.is_keras(old):
            self.uses_keras = True
        if old in (_names.MULTI_GPU_MODEL, "keras_parallel.multi_gpu_model"):
            self.uses_multi_gpu_model = True
        if _names.is_keras_3(old):
            self.is_keras_3 = True

    def visit_Attribute(self, node):
        full = self.names.imported(node)
        if full is not None:
            self._note_use(full)

    def visit_SimpleString(self, node):
        value = node.evaluated_value
        if isinstance(value, str) and value.endswith(".keras"):
            self.is_keras_3 = True

    def _note_root(self, node, name):
        line = self.names.parents[node]
        if isinstance(self.names.parents[line], cst.Module):
            self.keras_root = self.keras_root or name

    def visit_FunctionDef(self, node):
        self.bound.add(node.name.value)

    def visit_ClassDef(self, node):
        self.bound.add(node.name.value)
        self.own_classes.add(node.name.value)
        for member in node.body.body:
            if isinstance(member, cst.FunctionDef):
                self.own_methods.add(member.name.value)

    def visit_Param(self, node):
        self.bound.add(node.name.value)

    def visit_Name(self, node):
        self._uses.setdefault(node.value, []).append(node)

    # ---- assignments

    def key(self, node: cst.CSTNode) -> str:
        """One text for a model, however it is reached.

        `self.model` in a class and `trainer.model` outside are the same.
        """
        code = self.code(node)
        before, dot, last = code.rpartition(".")
        return dot + last if before else code

    def visit_Assign(self, node):
        for target in node.targets:
            self._note_assignment(target.target, node.value)
            # Keras 2 read this variable too, for its own backends.
            if "KERAS_BACKEND" in self.code(target.target) and literal(
                node.value
            ) in ("jax", "torch"):
                self.is_keras_3 = True

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self._note_assignment(node.target, node.value)

    def _note_assignment(self, target, value):
        if isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._note_assignment(element.value, cst.Name("_"))
            return
        name = self.key(target)
        self.assigned[name] += 1
        if isinstance(target, cst.Name):
            self.bound.add(name)
        if isinstance(target, cst.Attribute):
            if target.attr.value == "trainable":
                self._trainable.setdefault(self.key(target.value), []).append(
                    (self.names.line(target), literal(value) is True)
                )
            if target.attr.value in ("lr", "learning_rate"):
                self._set_rates.append(target)
        self._values.setdefault(name, []).append(value)
        called = called_name(value, self.names)
        if called in MODELS or (called or "").startswith("keras.applications."):
            self.models.add(name)
        if (called or "").startswith("keras.optimizers."):
            self.optimizers.add(name)
        if called in (
            _names.MULTI_GPU_MODEL,
            "keras_parallel.multi_gpu_model",
        ):
            self.parallel[name] += 1
            template = argument_of(value, 0, "model")
            if template is not None:
                made = self._wrappers.setdefault(self.key(template), set())
                made.add(name)
            self.models.add(name)

    # ---- calls

    def visit_Call(self, node):
        name = called_name(node, self.names)
        if name in ("keras.models.Model", "keras.Model"):
            self._model_calls.append(node)
        if name in RATE_SETTERS:
            self.rate_setter = f"`{name.rpartition('.')[2]}`"
        changed = argument_of(node, 0, "x")
        if (
            name == "keras.backend.set_value"
            and changed is not None
            and self.code(changed).endswith((".lr", ".learning_rate"))
        ):
            self.rate_setter = "`K.set_value(...)`"
        if isinstance(node.func, cst.Attribute):
            owner = self.key(node.func.value)
            verb = node.func.attr.value
            if verb == "assign" and owner == ".learning_rate":
                self.rate_setter = "`learning_rate.assign(...)`"
            if verb == "compile":
                metrics = argument_of(node, 2)
                if metrics is not None:
                    self._given_metrics.append(metrics)
                self._compiled.setdefault(owner, []).append(
                    self.names.line(node)
                )
                optimizer = argument_of(node, 0, "optimizer")
                if isinstance(optimizer, cst.Name | cst.Attribute):
                    self._optimized.setdefault(self.key(optimizer), []).append(
                        (owner, node)
                    )
            if verb in ("fit", "fit_generator", "train_on_batch"):
                self._trained.setdefault(owner, []).append(
                    self.names.line(node)
                )
        if name == "tensorflow.device" and node.args:
            device = literal(node.args[0].value)
            if not is_cpu(device):
                self.scopes_on_gpus = True
        for argument in node.args:
            keyword = argument.keyword and argument.keyword.value
            value = literal(argument.value)
            if keyword == "name" and isinstance(value, str):
                self._layer_names.add(value)
            if keyword == "metrics":
                self._given_metrics.append(argument.value)

    def _note_metrics(self, given):
        facts = self

        class Metrics(cst.CSTVisitor):
            def visit_SimpleString(self, node):
                facts.metrics.add(str(node.evaluated_value))
                facts.metric_nodes.add(node)

            def visit_DictElement(self, node):
                node.value.visit(self)
                return False  # The key is the name of an output.

        given.visit(Metrics())

    def visit_DictElement(self, node):
        key = literal(node.key)
        if isinstance(key, str) and OLD_OUTPUT.fullmatch(key):
            self._old_outputs.add(key)

    # ---- sessions

    def visit_SimpleStatementLine(self, node):
        if len(node.body) != 1:
            return
        statement = node.body[0]
        if isinstance(statement, cst.Expr):
            if (
                called_name(statement.value, self.names)
                == "keras.backend.set_session"
            ):
                self._set_session.append(node)
        elif isinstance(statement, cst.Assign) and len(statement.targets) == 1:
            target = statement.targets[0].target
            made = called_name(statement.value, self.names)
            if isinstance(target, cst.Name):
                options = made in SESSION_OPTIONS
                if options or (made in SESSIONS and is_local(statement.value)):
                    self._session_names.setdefault(target.value, []).append(
                        node
                    )
            elif isinstance(target, cst.Attribute):
                root = self.code(target).partition(".")[0]
                if root in self._session_names:
                    self._session_names[root].append(node)

    def _decide_sessions(self):
        """Finds the lines that only make a session and set it."""
        lines = {
            line for found in self._session_names.values() for line in found
        }
        for line in self._set_session:
            call = cst.ensure_type(line.body[0], cst.Expr).value
            given = argument_of(call, 0, "session")
            if given is None:
                continue
            made = called_name(given, self.names)
            if (made in SESSIONS and is_local(given)) or self.code(
                given
            ) in self._session_names:
                lines.add(line)
        if not any(line in lines for line in self._set_session):
            lines = set()
        while True:
            kept = {
                line
                for name, found in self._session_names.items()
                if any(
                    self._line_of(use) not in lines
                    for use in self._uses.get(name, ())
                )
                for line in (*found, *self._setting(name))
            }
            if not kept & lines:
                break
            lines -= kept
        self.session_lines = lines

    def _setting(self, name):
        return [
            line
            for line in self._set_session
            if re.search(rf"\b{name}\b", self.code(line.body[0]))
        ]

    def _line_of(self, node):
        while not isinstance(node, cst.SimpleStatementLine | cst.Module):
            node = self.names.parents[node]
        return node

    # ---- names of outputs

    def _decide_outputs(self):
        old = sorted(self._old_outputs, key=lambda name: int(name[12:]))
        if not old or self._old_outputs & self._layer_names:
            return
        if len(self._model_calls) != 1:
            return
        outputs = self._outputs(self._model_calls[0])
        if outputs is not None and len(outputs) == len(old):
            self.output_names = dict(zip(old, outputs))

    def _outputs(self, call) -> list[str] | None:
        given = argument_of(call, 1, "outputs", "output")
        if given is None or not isinstance(given, cst.List | cst.Tuple):
            return None
        names = [self._layer_name(e.value) for e in given.elements]
        found = [name for name in names if name is not None]
        return found if len(found) == len(names) else None

    def _layer_name(self, node) -> str | None:
        """The name of the layer whose call `node` is, where it is written."""
        if isinstance(node, cst.Name):
            node = self.value_of(node)
        if not (isinstance(node, cst.Call) and isinstance(node.func, cst.Call)):
            return None
        name = literal(argument_of(node.func, None, "name"))
        return name if isinstance(name, str) else None


def dotted(node: cst.CSTNode | None) -> str | None:
    """`a.b.c` as a string; `None` for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        left = dotted(node.value)
        return None if left is None else f"{left}.{node.attr.value}"
    return None


def _is_chain(node):
    return dotted(node) is not None


def literal(node: cst.BaseExpression | None) -> object:
    """The value of a literal, as `ast.literal_eval` reads it; else `None`."""
    if node is None:
        return None
    try:
        return ast.literal_eval(cst.Module([]).code_for_node(node).strip())
    except (ValueError, SyntaxError, TypeError):
        return None


def called_name(node: cst.CSTNode, names: Names) -> str | None:
    """What a call calls, as a name under `keras`; `None` for no call."""
    return names.old(node.func) if isinstance(node, cst.Call) else None


def argument_of(
    call: cst.BaseExpression, position: int | None, *keywords: str
) -> cst.BaseExpression | None:
    """The value given for a parameter by position or by keyword."""
    if not isinstance(call, cst.Call):
        return None
    for argument in call.args:
        if argument.keyword and argument.keyword.value in keywords:
            return argument.value
    positional = [a for a in call.args if not a.keyword and not a.star]
    if position is not None and position < len(positional):
        return positional[position].value
    return None


def is_cpu(device: object) -> bool:
    """Whether a literal names the CPU: `"/cpu:0"`, `"/device:CPU:0"`."""
    return isinstance(device, str) and "cpu" in device.lower()


def is_local(call: cst.BaseExpression) -> bool:
    """Whether a `tf.Session(...)` has no target, the address of a cluster."""
    target = argument_of(call, 0, "target")
    return target is None or literal(target) == ""
