"""The whole state of a model as NumPy arrays, and how far two are apart."""

import dataclasses

import keras
import numpy as np

# A unit in the last place of float32, relative to a value.
UNIT = 2.0**-23


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a state, with what it is compared among.

    Args:
        value: The array.
        kind: Arrays of one kind have one meaning and comparable sizes: the
            weights, or the slots of one name.
    """

    value: np.ndarray
    kind: str


def variables_of(model):
    """Every variable of a model by a name that is unique in it.

    Weights first, then what is not trained, then optimizer slots, so that
    the first difference found is the most telling one.

    Returns:
        Dict from names to pairs of a variable and its kind.
    """
    triples = [(v.path, v, "weight") for v in model.trainable_variables]
    triples += [(v.path, v, "state") for v in model.non_trainable_variables]
    triples += [
        (f"{name}/{v.path}", v, f"slot {v.name.rsplit('_', 1)[-1]}")
        for name, optimizer in _optimizers_of(model).items()
        for v in optimizer.variables
    ]
    named, seen = {}, set()
    for name, variable, kind in triples:
        if id(variable) not in seen:
            seen.add(id(variable))
            while name in named:
                name += "'"
            named[name] = (variable, kind)
    return named


def _optimizers_of(model):
    # A custom `compile` may keep optimizers under any name.
    found = {}
    for name in dir(model):
        if name.startswith("__"):
            continue
        value = getattr(model, name, None)
        if isinstance(value, keras.optimizers.Optimizer) and all(
            value is not other for other in found.values()
        ):
            found[name] = value
    return found


def snapshot(model):
    """Returns the state of `model` as a dict from names to entries."""
    return {
        name: Entry(np.asarray(variable.value), kind)
        for name, (variable, kind) in variables_of(model).items()
    }


def entries_of_logs(logs):
    """Returns the logs of a step as a dict from names to entries."""
    return {name: Entry(np.asarray(v), "log") for name, v in logs.items()}


def restore(model, state):
    """Assigns a snapshot, made of a model with the same variables."""
    variables = variables_of(model)
    if [tuple(v.shape) for v, _ in variables.values()] != [
        e.value.shape for e in state.values()
    ]:
        raise ValueError(
            "`make_model` returns the same model at each call, and so does "
            "what makes it parallel. Received: one with the variables "
            f"{list(state)}, then one with {list(variables)}."
        )
    for (variable, _), entry in zip(variables.values(), state.values()):
        variable.assign(entry.value)


def differences(expected, actual):
    """How far two states are apart, by name.

    Args:
        expected: Dict of entries.
        actual: Dict of entries in the same order. Names may differ, since two
            models made by one function number their layers on.

    Returns:
        Dict from the names of `expected` to the largest difference relative
        to the largest entry of the array. A difference of up to two units in
        the last place of the largest entry of all arrays of its kind is 0:
        that is what is left where a sum cancels.
    """
    largest = _largest_of_kinds(expected.values())
    return _differences(
        expected, actual, lambda entry: 2 * UNIT * largest[entry.kind]
    )


def differences_of_step(before, expected, actual):
    """As `differences`, of one step from a state.

    Each log is its own kind, and only what the step changed has a say in how
    large the others of its kind are.

    Args:
        before: The state before the step, of the names of `expected`;
            `None` if there was none.
        expected: Dict of entries, after the step.
        actual: Dict of entries in the same order.
    """
    largest = _largest_of_kinds(
        entry
        for name, entry in expected.items()
        if before is None
        or name not in before
        or (before[name].value != entry.value).any()
    )
    return _differences(
        expected,
        actual,
        lambda entry: (
            0.0
            if entry.kind == "log"
            else 2 * UNIT * largest.get(entry.kind, 0.0)
        ),
    )


def _largest_of_kinds(entries):
    largest = {}
    for entry in entries:
        largest[entry.kind] = max(
            largest.get(entry.kind, 0.0), _largest_entry(entry.value)
        )
    return largest


def raw_differences(expected, actual):
    """As `differences`, with nothing taken for 0."""
    return _differences(expected, actual, lambda entry: 0.0)


def _differences(expected, actual, negligible):
    if len(expected) != len(actual):
        return {f"{len(expected)} values, not {len(actual)}": np.inf}
    return {
        name: relative_difference(e.value, a.value, negligible(e))
        for (name, e), a in zip(expected.items(), actual.values())
    }


def _largest_entry(value):
    if value.dtype.kind in "biu":
        return 0.0
    finite = np.abs(value.astype("float64"))
    return float(finite[np.isfinite(finite)].max(initial=0.0))


def relative_difference(expected, actual, negligible=0.0):
    """Largest difference, relative to the largest entry of `expected`.

    Integers and booleans are equal (0) or not (infinity), as are values that
    are not finite in one of the two places only. An absolute difference of
    up to `negligible` is 0.
    """
    if expected.shape != actual.shape:
        return np.inf
    if expected.dtype.kind in "biu":
        return 0.0 if np.array_equal(expected, actual) else np.inf
    expected = expected.astype("float64")
    actual = actual.astype("float64")
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(actual)):
        return np.inf
    if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
        return np.inf
    difference = np.abs(expected - actual)[finite].max(initial=0.0)
    if difference <= negligible:
        return 0.0
    largest = np.abs(expected[finite]).max()
    return float(difference / largest) if largest else np.inf
