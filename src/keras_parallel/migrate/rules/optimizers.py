"""Optimizers: `lr`, `decay`, and defaults that changed."""

import itertools

import libcst as cst

from keras_parallel.migrate import _arguments
from keras_parallel.migrate._context import function
from keras_parallel.migrate._facts import literal

# Positional arguments of Keras 2; those of TensorFlow are those of Keras 3.
_OPTIMIZERS = {
    "SGD": ("lr", "momentum", "decay", "nesterov"),
    "RMSprop": ("lr", "rho", "epsilon", "decay"),
    "Adagrad": ("lr", "epsilon", "decay"),
    "Adadelta": ("lr", "rho", "epsilon", "decay"),
    "Adam": ("lr", "beta_1", "beta_2", "epsilon", "decay", "amsgrad"),
    "Adamax": ("lr", "beta_1", "beta_2", "epsilon", "decay"),
    "Nadam": ("lr", "beta_1", "beta_2", "epsilon", "schedule_decay"),
}
_TENSORFLOW_OPTIMIZERS = {
    "SGD": ("lr", "momentum", "nesterov"),
    "RMSprop": ("lr", "rho", "momentum", "epsilon", "centered"),
    "Adagrad": ("lr", "initial_accumulator_value", "epsilon"),
    "Adadelta": ("lr", "rho", "epsilon"),
    "Adam": ("lr", "beta_1", "beta_2", "epsilon", "amsgrad"),
    "Adamax": ("lr", "beta_1", "beta_2", "epsilon"),
    "Nadam": ("lr", "beta_1", "beta_2", "epsilon"),
}
_RATES = {
    "SGD": "0.01",
    "RMSprop": "0.001",
    "Adagrad": "0.01",
    "Adadelta": "1.0",
    "Adam": "0.001",
    "Adamax": "0.002",
    "Nadam": "0.002",
}
_TENSORFLOW_RATES = {**dict.fromkeys(_RATES, "0.001"), "SGD": "0.01"}
# Those whose default is another one in Keras 3.
_CHANGED_RATES = frozenset({"Adadelta", "Adagrad", "Adamax", "Nadam"})


# Keras 2 had `rmsprop` beside `RMSprop`.
_BY_LOWER = {name.lower(): name for name in _OPTIMIZERS}


@function(*(f"keras.optimizers.{name}" for name in (*_OPTIMIZERS, *_BY_LOWER)))
def optimizer(call, called, context):
    """`lr` is `learning_rate`; `decay` is a schedule; defaults changed."""
    name = _BY_LOWER[called.last.lower()]
    tensorflow = context.is_tensorflow(called.original.func)
    if not _arguments.is_open(call):
        call = _name_arguments(call, name, tensorflow)
    call = _arguments.rename(call, "lr", "learning_rate")
    epsilon = _arguments.find(call, "epsilon")
    if epsilon and context.facts.code(epsilon.value) == "None":
        call = _arguments.drop(call, epsilon)
    call = _nesterov_decay(call, called, context)
    rate = (_TENSORFLOW_RATES if tensorflow else _RATES)[name]
    call = _decay(call, called, context, rate)
    if (
        name in _CHANGED_RATES
        and not context.facts.is_keras_3
        and not _rate(call)
        and not _arguments.is_open(call)
    ):
        call = _arguments.append(call, "learning_rate", rate)
    return call


def _name_arguments(call, name, tensorflow):
    """Passes by keyword what does not stand where Keras 3 has it.

    What is spelled with TensorFlow stands there, and loses that spelling:
    from where the two orders part, it is named as well.
    """
    keras_2, keras_3 = _OPTIMIZERS[name], _TENSORFLOW_OPTIMIZERS[name]
    order = keras_3 if tensorflow else keras_2
    same = sum(1 for _ in itertools.takewhile(_is_pair, zip(keras_2, keras_3)))
    return _arguments.name_positional(call, same, order[same:])


def _is_pair(names):
    return names[0] == names[1]


def _rate(call) -> cst.Arg | None:
    first = _arguments.positional(call)
    return first[0] if first else _arguments.find(call, "learning_rate")


def _nesterov_decay(call, called, context):
    decay = _arguments.find(call, "schedule_decay")
    if decay is None:
        return call
    if literal(decay.value) != 0.004:
        context.note(
            called.original,
            "`schedule_decay` of Nadam: gone in Keras 3, which always uses "
            "0.004, the old default. Remove it or use another optimizer.",
        )
        return call
    return _arguments.drop(call, decay)


def _decay(call, called, context, default_rate):
    decay = _arguments.find(call, "decay")
    if decay is None:
        return call
    if literal(decay.value) == 0:
        return _arguments.drop(call, decay)
    setter = context.facts.rate_setter
    if setter is not None or _arguments.is_open(call):
        why = (
            f"{setter} sets the learning rate, and a schedule does not allow "
            "that"
            if setter
            else "the learning rate may be in `**`"
        )
        context.note(
            called.original,
            "`decay=`: gone in Keras 3, which ignores it with a warning. It "
            f"is not rewritten as a schedule: {why}. Decide for one of them: "
            "`keras.optimizers.schedules.InverseTimeDecay(lr, decay_steps=1, "
            "decay_rate=decay)` as `learning_rate` is what `decay` did.",
        )
        return call
    call = _arguments.drop(call, decay)
    rate = _rate(call)
    code = default_rate if rate is None else context.facts.code(rate.value)
    schedule = (
        f"{context.keras('optimizers.schedules.InverseTimeDecay')}({code}, "
        f"decay_steps=1, decay_rate={context.facts.code(decay.value)})"
    )
    if rate is None:
        return _arguments.append(call, "learning_rate", schedule)
    return _arguments.value(call, rate, schedule)


def by_string(call, context):
    """A string in `compile` keeps the learning rate of Keras 2."""
    first = _arguments.positional(call)[:1]
    found = _arguments.find(call, "optimizer") or (first[0] if first else None)
    if found is None or context.facts.is_keras_3:
        return call
    name = _BY_LOWER.get(str(literal(found.value)).lower())
    if name in _CHANGED_RATES:
        rates = _RATES if context.facts.imports_keras else _TENSORFLOW_RATES
        made = context.keras(f"optimizers.{name}")
        call = _arguments.value(
            call, found, f"{made}(learning_rate={rates[name]})"
        )
    return call
