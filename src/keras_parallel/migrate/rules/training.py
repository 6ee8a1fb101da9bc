"""Compiling and training: generators, steps, what moved or is gone."""

import libcst as cst

from keras_parallel.migrate import _arguments
from keras_parallel.migrate._context import method
from keras_parallel.migrate._facts import literal
from keras_parallel.migrate.rules import optimizers

# Positional arguments of Keras 2. Those of `evaluate_generator` and
# `predict_generator` after the second one differ between its versions.
_GENERATORS = {
    "fit_generator": (
        *("x", "steps_per_epoch", "epochs", "verbose", "callbacks"),
        *("validation_data", "validation_steps", "class_weight"),
        *("max_queue_size", "workers", "use_multiprocessing", "shuffle"),
        "initial_epoch",
    ),
    "evaluate_generator": ("x", "steps"),
    "predict_generator": ("x", "steps"),
}
_QUEUE = {
    "max_queue_size": 10,
    "max_q_size": 10,
    "workers": 1,
    "nb_worker": 1,
    "use_multiprocessing": False,
    "pickle_safe": False,
}
_OF_KERAS_1 = {"nb_epoch", "nb_val_samples", "nb_worker", "max_q_size"}


@method(*_GENERATORS)
def generators(call, called, context):
    """`fit_generator` and its kin are `fit`, `evaluate`, `predict`."""
    order = _GENERATORS[called.name]
    keras_1 = any(_arguments.find(call, name) for name in _OF_KERAS_1)
    given = _arguments.positional(call)
    if len(given) > len(order) or any(a.star == "*" for a in call.args):
        context.note(
            called.original,
            f"`{called.name}(...)` with so many positional arguments: their "
            "order differs between versions of Keras 2. Pass those after "
            f"{order[-1]!r} by keyword and migrate again.",
        )
        return call
    if keras_1:
        order = [
            "samples_per_epoch" if name == "steps_per_epoch" else name
            for name in order
        ]
    call = _arguments.name_positional(call, 1, order[1:])
    call = _arguments.rename(call, "generator", "x")
    func = cst.ensure_type(call.func, cst.Attribute)
    name = called.name.removesuffix("_generator")
    call = call.with_changes(
        func=func.with_changes(attr=func.attr.with_changes(value=name))
    )
    return training(call, called, context)


@method("fit", "evaluate", "predict")
def training(call, called, context):
    """Arguments of `fit`, `evaluate` and `predict` that moved."""
    call = _arguments.rename(call, "nb_epoch", "epochs")
    for keyword in ("samples_per_epoch", "nb_val_samples", "val_samples"):
        if _arguments.find(call, keyword):
            steps = (
                "steps_per_epoch"
                if keyword == "samples_per_epoch"
                else "validation_steps"
            )
            context.note(
                called.original,
                f"`{keyword}=` counts rows, and Keras 3 counts batches: the "
                f"rows of a batch are not written here. Pass `{steps}=rows "
                "// batch_size`.",
            )
    if _arguments.find(call, "show_accuracy"):
        context.note(
            called.original,
            "`show_accuracy=`: gone since Keras 2. Remove it, and pass "
            '`metrics=["accuracy"]` to `compile`.',
        )
    for keyword, default in _QUEUE.items():
        found = _arguments.find(call, keyword)
        if found is None:
            continue
        call = _arguments.drop(call, found)
        if literal(found.value) != default:
            context.note(
                called.original,
                f"`{keyword}={context.facts.code(found.value)}` is removed: "
                "in Keras 3 the data set has it. Pass `workers`, "
                "`use_multiprocessing` and `max_queue_size` to the "
                "constructor of your `keras.utils.PyDataset`, which hands "
                "them to `super().__init__(...)`.",
            )
    for keyword in ("steps_per_epoch", "validation_steps", "steps"):
        call = _whole_steps(call, keyword, called, context)
    return call


def _whole_steps(call, keyword, called, context):
    """Keras 2 took a fraction and rounded it up; Keras 3 takes an int."""
    found = _arguments.find(call, keyword)
    if found is None:
        return call
    code = context.facts.code(found.value)
    if _is_quotient(found.value, context):
        division = cst.ensure_type(found.value, cst.BinaryOperation)
        left = context.facts.code(division.left)
        right = context.facts.code(division.right)
        return _arguments.value(call, found, f"-(-{left} // {right})")
    # Names were looked up in the script as it came.
    given = [a.value for a in called.original.args if a.keyword is None]
    original = _arguments.find(called.original, keyword)
    if original is not None:
        given = [original.value]
    value = next((v for v in given if context.facts.code(v) == code), None)
    if value is None:
        return call
    if isinstance(value, cst.Call) and (
        context.names.imported(value.func) in ("numpy.ceil", "numpy.floor")
    ):
        return _arguments.value(call, found, f"int({code})")
    assigned = context.facts.value_of(value)
    if _divides(value, context) or (
        assigned is not None and _divides(assigned, context)
    ):
        context.note(
            called.original,
            f"`{keyword}={code}` is a division: Keras 3 wants an int. "
            "Write `//`, or `-(-rows // batch_size)` to round up as "
            "Keras 2 did.",
        )
    return call


def _is_quotient(node, context):
    """Whether `node` is one division, of values that may well be ints."""
    return (
        isinstance(node, cst.BinaryOperation)
        and isinstance(node.operator, cst.Divide)
        and not node.lpar
        and all(_is_plain(n, context) for n in (node.left, node.right))
    )


def _is_plain(node, context):
    if isinstance(node, cst.Call):
        return context.facts.code(node.func) in ("int", "len")
    if isinstance(node, cst.Name):
        value = context.facts.value_of(node)
        return value is None or not (
            isinstance(literal(value), float) or _divides(value, context)
        )
    return isinstance(node, cst.Attribute | cst.Subscript | cst.Integer)


_WHOLE = frozenset({"int", "len", "round", "math.ceil", "math.floor"})


def _divides(node, context):
    """Whether a division may leave a fraction in `node`."""
    found = []

    class Divisions(cst.CSTVisitor):
        def visit_Call(self, node):
            name = context.names.imported(node.func)
            return (name or context.facts.code(node.func)) not in _WHOLE

        def visit_Divide(self, node):
            found.append(node)

    node.visit(Divisions())
    return bool(found)


@method("compile")
def compile_(call, called, context):
    """Optimizers by string keep their learning rate; gone arguments."""
    for keyword in (
        *("sample_weight_mode", "target_tensors", "options", "run_metadata"),
    ):
        if _arguments.find(call, keyword):
            context.note(
                called.original,
                f"`compile({keyword}=...)`: gone in Keras 3. Remove it"
                + (
                    "; weights of the shape `(rows, steps)` need no mode."
                    if keyword == "sample_weight_mode"
                    else "."
                ),
            )
    for shared, first in context.facts.shared_optimizers():
        if shared is called.original:
            context.note(
                shared,
                "`compile(...)` with the optimizer of another model, "
                f"{first.removeprefix('.')!r}: an optimizer of Keras 3 "
                "belongs to the weights of one model, and refuses those of "
                "another. Make one for each model.",
            )
    return optimizers.by_string(call, context)


@method("add_loss")
def add_loss(call, called, context):
    """A functional model of Keras 3 takes no tensor as a loss."""
    func = cst.ensure_type(called.original.func, cst.Attribute)
    if context.is_model(func.value):
        context.note(
            called.original,
            f"`{context.facts.code(func)}(...)`: Keras 3 takes no loss from "
            "outside of a layer. Call `self.add_loss(...)` in the `call` of a "
            "layer, and put that layer into the model.",
        )
    return call


@method("predict_classes")
def predict_classes(call, called, context):
    """Gone; what it did depends on the last layer."""
    context.note(
        called.original,
        "`predict_classes(...)`: gone in Keras 3, and what it did depends on "
        "the last layer. Write `model.predict(x).argmax(-1)` after a softmax, "
        '`(model.predict(x) > 0.5).astype("int32")` after a sigmoid.',
    )
    return call


@method("predict_proba")
def predict_proba(call, called, context):
    """It was another name of `predict`."""
    func = called.original.func
    if not context.is_model(cst.ensure_type(func, cst.Attribute).value):
        return call
    return call.with_deep_changes(
        cst.ensure_type(call.func, cst.Attribute).attr, value="predict"
    )


@method("reset_states")
def reset_states(call, called, context):
    """Gone from models; layers have `reset_state`."""
    func = cst.ensure_type(called.original.func, cst.Attribute)
    if context.is_model(func.value):
        name = context.facts.code(func.value)
        context.note(
            called.original,
            f"`{name}.reset_states()`: gone in Keras 3, where each layer has "
            f"`reset_state()`. Write `for layer in {name}.layers:` and below "
            'it `if getattr(layer, "stateful", False): layer.reset_state()`.',
        )
    return call


def trainable(original, updated, context):
    """`model.trainable = False` between compiling and training."""
    target = original.targets[0].target
    if not (
        isinstance(target, cst.Attribute) and target.attr.value == "trainable"
    ):
        return updated
    if context.facts.is_keras_3:
        return updated
    owner = context.facts.code(target.value)
    line = context.names.line(original)
    key = context.facts.key(target.value)
    if literal(original.value) is True:
        return updated
    if context.facts.freezes_what_trains(key, line):
        context.note(
            original,
            f"`{context.facts.code(original)}` after it was compiled: "
            "Keras 2 read `trainable` when it compiled, Keras 3 reads it "
            f"when it trains, and would not train {owner!r} any more. "
            f"Write `{owner}.trainable = True` before each of its own "
            "steps and `False` after.",
        )
    return updated


def data_set(original, updated, context):
    """`PyDataset` wants its constructor called."""
    bases = [context.names.old(b.value) for b in original.bases]
    if "keras.utils.Sequence" not in bases:
        return updated
    for member in updated.body.body:
        if (
            isinstance(member, cst.FunctionDef)
            and member.name.value == "__init__"
            and "__init__(" not in context.facts.code(member.body)
        ):
            return updated.with_deep_changes(
                member, body=_with_super_first(member.body)
            )
    return updated


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
