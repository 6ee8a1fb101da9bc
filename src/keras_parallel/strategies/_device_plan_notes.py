"""What the tables of a plan of stages do not say, in sentences."""

from keras_parallel.planning._table import counted
from keras_parallel.planning._table import readable
from keras_parallel.strategies import _plan_notes
from keras_parallel.strategies import _targets

_MOST_NAMES = 6


def notes(state, model, calls, planned, trace, rows):
    """The notes of a plan of device parallelism, in order.

    Args:
        state: The `DeviceParallelState` of the model.
        model: The parallel model.
        calls: Its `PlacedCall`s.
        planned: Its `PlannedStages`.
        trace: What came of tracing the model.
        rows: Rows of a batch.
    """
    yield from _of_default(state.placement)
    yield from _of_losses(model)
    yield from _of_copies(planned)
    yield from _of_state(calls)
    yield from _plan_notes.of_trace(trace, rows)
    if len(state.placement.devices()) > 1:
        yield (
            "Beside what is listed, single numbers go between devices: losses, "
            "metrics, and what the optimizer counts or computes of all "
            "gradients together."
        )


def _of_default(placement):
    free = [
        call.full_name
        for call in placement.leaves()
        if not placement.is_asked_for(call)
    ]
    if free:
        yield (
            f"Outside any scope or placement, so on {placement.default.name}, "
            f"the default: {_some(free)}."
        )


def _of_losses(model):
    if not model.compiled:
        yield (
            "The model is not compiled: its optimizer, losses and metrics are "
            "not counted."
        )
    elif not _targets.is_of_keras(model._keras_parallel.template.compute_loss):
        yield (
            "The model computes its loss itself: each part of it runs where "
            "most of what it takes lies."
        )
    else:
        yield (
            "A loss and its metrics are computed where the output lies, and "
            "the targets are sent there."
        )


def _of_copies(planned):
    copies = [
        t
        for t in planned.transfers
        if t.purpose in ("weight", "state") and t.bytes
    ]
    if copies:
        size = readable(sum(t.bytes for t in copies))
        yield (
            f"Layers that run on several devices: {size} of "
            f"{_some(dict.fromkeys(t.what for t in copies))} are sent to where "
            "they do not live in each step, and held there as copies."
        )


def _of_state(calls):
    """Which layers update their state in an order of calls."""
    users = {}
    for call in calls:
        for weight in call.weights:
            if weight.is_updated:
                users.setdefault(weight, []).append(call)
    told = {}
    for weight, using in users.items():
        if len({call.device for call in using}) > 1:
            what = weight.name.rpartition("/")[0] or weight.name
            told.setdefault((what, weight.home), using)
    for (what, home), using in told.items():
        yield (
            f"The state of {what!r} lives on {home.name} and is updated in the "
            f"order of {counted(len(using), 'call')}: "
            f"{_some([call.name for call in using])}."
        )


def _some(names):
    names = list(names)
    rest = len(names) - _MOST_NAMES
    listed = ", ".join(names[:_MOST_NAMES])
    return f"{listed} and {rest} more" if rest > 0 else listed
