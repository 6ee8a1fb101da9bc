"""From placed calls to stages and transfers."""

import collections
import dataclasses
import typing
from collections.abc import Iterator
from collections.abc import Sequence

from keras_parallel._errors import PlanError
from keras_parallel.planning.devices import Device
from keras_parallel.planning.stage_calls import PlacedCall
from keras_parallel.planning.stage_calls import Weight
from keras_parallel.planning.stage_plan import PlannedStage
from keras_parallel.planning.stage_plan import Transfer
from keras_parallel.planning.stage_plan import sent
from keras_parallel.planning.stages import Operation
from keras_parallel.planning.stages import cut_into_stages
from keras_parallel.planning.tensors import Tensor

# What, for what purpose, from where and to where.
_Sent = tuple[str, str, Device, Device]
# The host keeps what no device can hold.
_ON_HOST_ONLY = frozenset({"string", "object"})


@dataclasses.dataclass(frozen=True)
class PlannedStages:
    """The stages of a model, and what is sent between them.

    Args:
        stages: Those of the forward pass.
        transfers: What is sent in each training step.
    """

    stages: tuple[PlannedStage, ...]
    transfers: tuple[Transfer, ...]


def plan_stages(
    calls: Sequence[PlacedCall],
    outputs: Sequence[Tensor],
    rows: int,
) -> PlannedStages:
    """Groups calls into stages, and lists what these send to each other.

    Args:
        calls: The calls of a model, in an order in which they can run.
        outputs: What the model gives back.
        rows: Rows of a batch.

    Raises:
        PlanError: if a tensor that goes to another device cannot, or if the
            calls cannot run in their order.
    """
    return _Planner(calls, outputs, rows).planned()


class _Planner:
    def __init__(
        self,
        calls: Sequence[PlacedCall],
        outputs: Sequence[Tensor],
        rows: int,
    ):
        self._calls: dict[str, PlacedCall] = {c.name: c for c in calls}
        self._rows = rows
        self._made_on: dict[Tensor, Device] = {
            tensor: call.device for call in calls for tensor in call.makes
        }
        made = [t for t in outputs if t in self._made_on]
        self._cut = cut_into_stages(
            [Operation(c.name, c.device, c.takes, c.makes) for c in calls],
            made,
        )
        self._with_gradient = _that_have_gradients(calls, outputs)

    def planned(self) -> PlannedStages:
        transfers = (
            *self._tensors(),
            *self._gradients(),
            *self._weights(),
        )
        return PlannedStages(tuple(self._stages()), transfers)

    def _stages(self) -> Iterator[PlannedStage]:
        makers: dict[Tensor, int] = {}
        counted: set[Weight] = set()
        for number, stage in enumerate(self._cut):
            makers |= dict.fromkeys(stage.writes, number)
            calls = [self._calls[name] for name in stage.operations]
            weights = {w for c in calls for w in c.weights} - counted
            counted |= weights
            yield PlannedStage(
                stage.place,
                tuple(stage.operations),
                tuple(sorted({makers[v] for v in stage.reads if v in makers})),
                sum(w.bytes for w in weights if w.home == stage.place),
                _sum([call.activations for call in calls]),
                _sum([call.flops for call in calls]),
            )

    def _crossing(self) -> Iterator[tuple[Tensor, Device | None, Device]]:
        """Each tensor once for each device that it is sent to."""
        seen: set[tuple[Tensor, Device]] = set()
        for stage in self._cut:
            for tensor in stage.reads:
                source = self._made_on.get(tensor)
                if source == stage.place or (tensor, stage.place) in seen:
                    continue
                seen.add((tensor, stage.place))
                yield tensor, source, stage.place

    def _tensors(self) -> Iterator[Transfer]:
        for tensor, source, target in self._crossing():
            if source is not None:
                _check_can_cross(tensor, source, target)
            purpose = "input" if source is None else "activation"
            size = sent(tensor, self._rows)
            yield Transfer(tensor.name, purpose, source, target, **size)

    def _gradients(self) -> Iterator[Transfer]:
        for tensor, source, target in self._crossing():
            if source is not None and tensor in self._with_gradient:
                size = sent(tensor, self._rows)
                yield Transfer(tensor.name, "gradient", target, source, **size)

    def _weights(self) -> Iterator[Transfer]:
        """Copies for devices on which a weight does not live, and back."""
        users: dict[Weight, dict[Device, None]] = {}
        for call in self._calls.values():
            for weight in call.weights:
                users.setdefault(weight, {})[call.device] = None
        sizes: collections.Counter[_Sent] = collections.Counter()
        for weight, devices in users.items():
            kind = "weight" if weight.trainable else "state"
            for device in devices:
                if device == weight.home:
                    continue
                what = weight.name.rpartition("/")[0] or weight.name
                sizes[what, kind, weight.home, device] += weight.bytes
                if weight.trainable:
                    key = what, "gradient", device, weight.home
                    sizes[key] += weight.bytes
                elif weight.is_updated:
                    sizes[what, kind, device, weight.home] += weight.bytes
        for (what, purpose, source, target), size in sizes.items():
            yield Transfer(what, purpose, source, target, size)


def _that_have_gradients(
    calls: Sequence[PlacedCall], outputs: Sequence[Tensor]
) -> frozenset[Tensor]:
    """Tensors that a weight reaches, and that reach an output."""
    reached: set[Tensor] = set()
    for call in calls:
        trained = any(weight.trainable for weight in call.weights)
        if trained or reached.intersection(call.takes):
            reached |= {t for t in call.makes if t.has_gradient}
    needed = set(outputs)
    for call in reversed(calls):
        if needed.intersection(call.makes):
            needed.update(call.takes)
    return frozenset(reached & needed)


def _check_can_cross(tensor: Tensor, source: Device, target: Device) -> None:
    if tensor.dtype in _ON_HOST_ONLY:
        raise PlanError(
            "What goes from one device to another is an array of numbers. "
            f"Received: {tensor.name!r} of dtype {tensor.dtype!r}, which would "
            f"go from {source.name} to {target.name}. A call that works: "
            "`device_parallel(model, placement)` with all calls that take it "
            "on the device that makes it."
        )


def _sum(sizes: Sequence[typing.Any]) -> typing.Any:
    return None if None in sizes else sum(sizes)
