"""What a plan cannot know, and why it is as it is, in sentences."""

import keras

from keras_parallel.planning._table import readable
from keras_parallel.strategies import _keras
from keras_parallel.strategies import _mistakes
from keras_parallel.strategies import _targets
from keras_parallel.strategies._sizes import size_of

_OWN_METHODS = ("train_step", "compute_loss")
# Losses of Keras that bring rows together, and optimizers that need more of a
# slot than a device has, both found by looking at compiled steps of all.
_LOSSES_OF_PAIRS = frozenset({"circle", "categoricalgeneralizedcrossentropy"})
_NEED_WHOLE_SLOTS = frozenset({"Adafactor", "Muon"})


def notes(state, model, layout, trace, slots, metrics):
    """The notes of a plan of data parallelism, in order.

    Args:
        state: The `DataParallelState` of the model.
        model: The parallel model.
        layout: How the rows lie.
        trace: What came of tracing the model.
        slots: The optimizer's variables, `None` if they are not known.
        metrics: The size of each metric.
    """
    yield from _of_rows(state, layout)
    if not model.compiled:
        yield (
            "The model is not compiled: its optimizer, losses and metrics are "
            "not counted."
        )
    elif slots is None:
        yield (
            "What the optimizer "
            f"{type(model.optimizer).__name__!r} will hold is not known "
            "before it is built."
        )
    elif _mistakes.optimizer_of_others(model) is not None:
        yield (
            "Layers were frozen or unfrozen since the optimizer was built: "
            "this is the plan of a training that is refused until the model "
            "is compiled again."
        )
    yield from _of_slots(state, model, slots)
    late = [name for name, size in metrics.items() if not size]
    if late:
        yield (
            f"What {_listed(late)} will hold is not known before the first "
            "batch."
        )
    yield from of_trace(trace, layout.rows)
    if layout.split and len(layout.per_device) > 1:
        yield from _of_grouped(trace)
        yield from _of_crossings(state, model)


def of_trace(trace, rows):
    """Why an outline is not there, or not whole."""
    if trace.outline is None:
        yield (
            f"The model cannot be traced for {rows} rows, because "
            f"{trace.why}: activations are not estimated, and gradients are "
            "taken to cross in the dtype of the weights."
        )
    if trace.unbuilt:
        yield (
            f"Not built yet: {_listed(trace.unbuilt)}. What such layers will "
            "hold is not counted, nor are their gradients."
        )


def _of_rows(state, layout):
    count = len(layout.per_device)
    if count == 1:
        yield "There is one device: nothing crosses."
    elif not layout.split:
        better = -(-layout.rows // count) * count
        yield (
            f"{layout.rows} row{'s do' if layout.rows > 1 else ' does'} not "
            f"divide by {count} devices: each device "
            "computes the whole batch, which is exact, and nothing crosses. A "
            f"batch_size of {better} is shared out."
        )


def _of_slots(state, model, slots):
    replicas = state.replicas
    if not replicas.shard_optimizer or len(replicas.devices) == 1:
        return
    whole = [
        slot
        for slot in slots or ()
        if replicas.lay_out_slot(tuple(slot.shape)).dim is None
    ]
    size = readable(sum(map(size_of, whole)))
    if not slots:
        return
    if len(whole) == len(slots):
        yield (
            "None of the optimizer's variables divides by "
            f"{len(replicas.devices)} devices: each device holds all of them."
        )
        return
    rest = f", but for {len(whole)} that do not divide, {size} together"
    yield (
        "The optimizer's variables are in parts, one on each device"
        f"{rest if whole else ''}."
    )
    whole_needed = _optimizers_of(model.optimizer) & _NEED_WHOLE_SLOTS
    if whole_needed:
        yield (
            f"{_listed(sorted(whole_needed))} computes with whole rows and "
            "columns of its variables, which are in parts: more crosses than "
            "is listed."
        )


def _of_grouped(trace):
    if trace.outline is not None and trace.outline.gathered:
        yield (
            "For the gradients of convolutions in groups, the compiler brings "
            "whole activations together on each device: an estimate is "
            "listed, and it grows with rows."
        )


def _of_crossings(state, model):
    template = state.template
    if (model.compiled and not model.jit_compile) or model.run_eagerly:
        yield (
            "The step is not compiled as one program: what crosses is "
            "exchanged operation by operation."
        )
    own = [
        n
        for n in _OWN_METHODS
        if not _targets.is_of_keras(getattr(template, n))
    ]
    if own:
        names = " and ".join(f"`{name}`" for name in own)
        yield (
            f"{type(template).__name__!r} has {names} of its own: what crosses "
            "for that is not known, and not listed."
        )
    layers = sorted(
        {
            type(layer).__name__
            for layer in (template, *_keras.layers_of(template))
            if not type(layer).__module__.startswith("keras.")
        }
    )
    if layers:
        yield (
            f"Code of your own runs in {_listed(layers)}. Where it brings "
            "rows of a batch together, as a mean over the batch does, more "
            "crosses than is listed."
        )
    flat = keras.tree.flatten(getattr(template, "loss", None))
    pairs = [
        _name_of(loss)
        for loss in flat
        if _is_of_keras(loss)
        and _name_of(loss).replace("_", "").lower() in _LOSSES_OF_PAIRS
    ]
    if pairs:
        yield (
            f"The loss {_listed(pairs)} brings rows of a batch together: more "
            "crosses than is listed, and it grows with rows."
        )
    losses = sorted(
        {
            _name_of(loss)
            for loss in flat
            if loss is not None and not _is_of_keras(loss)
        }
    )
    if losses:
        yield (
            f"The loss {_listed(losses)} is your own. If it compares rows of a "
            "batch with each other, more crosses than is listed."
        )


def _optimizers_of(optimizer):
    """The class names of an optimizer and of those that it wraps."""
    names = set()
    while optimizer is not None:
        names.add(type(optimizer).__name__)
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return names


def _name_of(loss):
    if isinstance(loss, str):
        return loss
    return getattr(loss, "__name__", type(loss).__name__)


def _is_of_keras(loss):
    if isinstance(loss, str):
        return True
    module = getattr(loss, "__module__", None) or type(loss).__module__
    return module.startswith("keras.")


def _listed(names, most=4):
    shown = ", ".join(repr(name) for name in names[:most])
    more = len(names) - most
    return shown if more <= 0 else f"{shown} and {more} more"
