"""The plan of a device-parallel model."""

import functools

from keras_parallel.graph import calls as graph_calls
from keras_parallel.graph.flow import flows_of
from keras_parallel.planning import DeviceShare
from keras_parallel.planning import PlacedCall
from keras_parallel.planning import StagePlan
from keras_parallel.planning import Weight
from keras_parallel.planning import plan_stages
from keras_parallel.strategies import _device_plan_notes
from keras_parallel.strategies import _sizes
from keras_parallel.strategies._outlines import traced
from keras_parallel.strategies._sizes import size_of


def check_placement(model, placement) -> None:
    """Raises `PlanError` if a placement is one that cannot run."""
    flows = flows_of(model, placement.calls)
    calls = _placed_calls(model, placement, flows, None)
    plan_stages(calls, flows.outputs, 1)


def plan_of(state, model, batch_size: int) -> StagePlan:
    """The plan of `model`, made parallel by `state`. Nothing runs.

    Args:
        state: The `DeviceParallelState` of the model.
        model: The parallel model; it is built.
        batch_size: Rows of a batch.
    """
    placement, template = state.placement, state.template
    flows = flows_of(template, placement.calls)
    trace = traced(
        state, model, batch_size, functools.partial(_outline, state, flows)
    )
    calls = _placed_calls(template, placement, flows, trace.outline)
    planned = plan_stages(calls, flows.outputs, batch_size)
    losses = _losses(model, flows, calls, placement.default)
    slots = _sizes.optimizer_slots(state, model)
    return StagePlan(
        model.name,
        batch_size,
        placement.default,
        tuple(_shares(state, model, batch_size, calls, slots)),
        planned.stages,
        planned.transfers,
        placement.to_dict(),
        losses,
        tuple(
            _device_plan_notes.notes(
                state, model, calls, planned, trace, batch_size
            )
        ),
    )


def _outline(state, flows, template, rows):
    numbers = {flow.call.nodes: i for i, flow in enumerate(flows.flows)}
    return state.execution.outline(
        template,
        rows,
        lambda on: graph_calls.placed(numbers, on),
        len(numbers),
    )


def _placed_calls(model, placement, flows, outline) -> list[PlacedCall]:
    updates = [] if outline is None else outline.updates
    updated = {
        id(v) for v, n in zip(model.non_trainable_variables, updates) if n
    }
    weights = {
        id(v): Weight(
            number,
            v.path,
            size_of(v),
            placement.home_of(v),
            bool(v.trainable),
            id(v) in updated,
        )
        for number, v in enumerate(model.variables)
    }
    found = []
    for number, flow in enumerate(flows.flows):
        variables = [
            v
            for v in getattr(flow.call.operation, "variables", ())
            if id(v) in weights and _is_used(v, updated)
        ]
        costs = {}
        if outline is not None:
            costs["flops"] = outline.calls[number].flops
            costs["activations"] = outline.calls[number].activations
        call = PlacedCall(
            flow.call.full_name,
            placement.device_of(flow.call),
            flow.takes,
            flow.makes,
            tuple(weights[id(v)] for v in variables),
            **costs,
        )
        found.append(call)
    return found


def _is_used(variable, updated):
    # Layers have the state of random numbers that they do not draw.
    return "float" in str(variable.dtype) or id(variable) in updated


def _shares(state, model, rows, calls, slots):
    """What each device holds: what lives there, and copies."""
    placement = state.placement
    held = {device: {} for device in placement.devices()}
    for call in calls:
        held[call.device] |= {w.number: w for w in call.weights}
    for number, variable in enumerate(model.variables):
        home = placement.home_of(variable)
        weight = Weight(
            number, variable.path, size_of(variable), home, variable.trainable
        )
        held[home].setdefault(number, weight)
    default = placement.default
    beside = _sizes.of_loss_trackers(model, None)
    beside += sum(_sizes.metrics(state, model).values())
    for device in state.engine.list_devices():
        if device not in held:
            continue
        weights = held[device]
        trainable, other = (
            sum(w.bytes for w in weights.values() if w.trainable == kind)
            for kind in (True, False)
        )
        kept = [call.activations for call in calls if call.device == device]
        yield DeviceShare(
            device,
            rows,
            weights=trainable,
            gradients=trainable,
            optimizer=_of_slots(placement, slots, device),
            non_trainable=other + beside * (device == default),
            activations=None if None in kept else sum(kept),
        )


def _of_slots(placement, slots, device):
    """What of the optimizer lives on a device, in bytes."""
    if slots is None:
        return None
    return sum(
        size_of(slot)
        for slot, owner in slots
        if device
        == (placement.default if owner is None else placement.home_of(owner))
    )


def _losses(model, flows, calls, default):
    """The names of outputs with a loss, and where that is computed."""
    if not model.compiled or not model.loss:
        return {}
    made_on = {tensor: call.device for call in calls for tensor in call.makes}
    names = list(getattr(model, "output_names", None) or ["output"])
    loss = model.loss
    if isinstance(loss, dict):
        with_loss = [name for name in names if loss.get(name) is not None]
    elif isinstance(loss, list | tuple):
        with_loss = [n for n, one in zip(names, loss) if one is not None]
    else:
        with_loss = names
    devices = dict(zip(names, (made_on.get(t, default) for t in flows.outputs)))
    return {name: devices[name] for name in with_loss if name in devices}
