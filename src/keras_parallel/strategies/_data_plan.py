"""The plan of a data-parallel model."""

from keras_parallel.planning import DeviceShare
from keras_parallel.planning import Plan
from keras_parallel.planning import lay_out_rows
from keras_parallel.strategies import _crossings
from keras_parallel.strategies import _plan_notes
from keras_parallel.strategies import _sizes
from keras_parallel.strategies._outlines import traced
from keras_parallel.strategies._sizes import size_of


def plan_of(state, model, batch_size: int) -> Plan:
    """The plan of `model`, made parallel by `state`. Nothing runs.

    Args:
        state: The `DataParallelState` of the model.
        model: The parallel model; it is built.
        batch_size: Rows of a global batch.
    """
    devices = state.replicas.devices
    layout = lay_out_rows(batch_size, len(devices))
    trace = traced(state, model, batch_size, state.replicas.outline)
    outline = trace.outline
    slots = _sizes.optimizer_variables(state, model)
    held = _held_slots(state, slots)
    metrics = _sizes.metrics(state, model)
    activations = None
    if outline is not None:
        parts = len(devices) if layout.split else 1
        activations = outline.activations(parts)
    weights = sum(map(size_of, model.trainable_variables))
    non_trainable = sum(map(size_of, model.non_trainable_variables))
    non_trainable += _sizes.of_loss_trackers(model, outline)
    non_trainable += sum(metrics.values())
    crosses = layout.split and len(devices) > 1 and model.trainable_variables
    collectives = ()
    if crosses:
        collectives = (
            *_crossings.collectives(model, len(devices), outline, metrics),
            *_crossings.new_weights(state.replicas, model, slots),
        )
    return Plan(
        model.name,
        batch_size,
        tuple(
            DeviceShare(
                device,
                rows,
                weights,
                gradients=weights,
                optimizer=held,
                non_trainable=non_trainable,
                activations=activations,
            )
            for device, rows in zip(devices, layout.per_device)
        ),
        collectives,
        tuple(_plan_notes.notes(state, model, layout, trace, slots, metrics)),
    )


def _held_slots(state, slots):
    """What each device holds of the optimizer's variables, in bytes."""
    if slots is None:
        return None
    lay_out = state.replicas.lay_out_slot
    return sum(size_of(v) // lay_out(tuple(v.shape)).parts for v in slots)
