"""What a plan cannot know, and why it is as it is, in sentences."""

import keras

from keras_parallel.strategies import _keras
from keras_parallel.strategies import _targets
from keras_parallel.strategies._sizes import size_of

_OWN_METHODS = ("train_step", "compute_loss")


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
    yield from _of_slots(state, slots)
    late = [name for name, size in metrics.items() if not size]
    if late:
        yield (
            f"What {_listed(late)} will hold is not known before the first "
            "batch."
        )
    yield from _of_trace(trace, layout)
    if layout.split and len(layout.per_device) > 1:
        yield from _of_grouped(trace)
        yield from _of_crossings(state, model)


def _of_trace(trace, layout):
    if trace.outline is None:
        yield (
            f"The model cannot be traced for {layout.rows} rows, because "
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
            f"{layout.rows} rows do not divide by {count} devices: each device "
            "computes the whole batch, which is exact, and nothing crosses. A "
            f"batch_size of {better} is shared out."
        )


def _of_slots(state, slots):
    replicas = state.replicas
    if not replicas.shard_optimizer or len(replicas.devices) == 1:
        return
    whole = [
        slot
        for slot in slots or ()
        if replicas.lay_out_slot(tuple(slot.shape)).dim is None
    ]
    size = sum(map(size_of, whole))
    yield (
        "The optimizer's variables are in parts, one on each device, but for "
        f"{len(whole)} that do not divide, {size} bytes together."
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
    losses = sorted(
        {
            getattr(loss, "__name__", type(loss).__name__)
            for loss in keras.tree.flatten(getattr(template, "loss", None))
            if loss is not None and not _is_of_keras(loss)
        }
    )
    if losses:
        yield (
            f"The loss {_listed(losses)} is your own. If it compares rows of a "
            "batch with each other, more crosses than is listed."
        )


def _is_of_keras(loss):
    if isinstance(loss, str):
        return True
    module = getattr(loss, "__module__", None) or type(loss).__module__
    return module.startswith("keras.")


def _listed(names, most=4):
    shown = ", ".join(repr(name) for name in names[:most])
    more = len(names) - most
    return shown if more <= 0 else f"{shown} and {more} more"
