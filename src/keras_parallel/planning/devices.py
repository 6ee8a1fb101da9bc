"""Device names: what a user may write, and which devices that selects."""

import dataclasses
import numbers
import re
from collections.abc import Iterable
from collections.abc import Sequence
from typing import TypeGuard

from keras_parallel._errors import DeviceError

# The order in which "the best kind" is looked for.
KINDS = ("gpu", "tpu", "cpu")

# TensorFlow writes "/job:localhost/replica:0/task:0/device:GPU:0".
_SPELLING = re.compile(
    r"(?:/job:localhost/replica:0/task:0(?=/))?"
    r"(?:/?worker:(?P<worker>[0-9]+)(?=/))?"
    r"/?(?:device:)?(?P<kind>[a-z]+):(?P<index>[0-9]+)",
    re.IGNORECASE,
)

_TRY_VIRTUAL = (
    "To try {n} devices without the hardware, call "
    "`keras_parallel.use_virtual_devices({n})` before the first layer is made, "
    "or start the script with "
    "`keras-parallel run --virtual-devices {n} script.py`."
)


@dataclasses.dataclass(frozen=True, order=True)
class Device:
    """One accelerator, one CPU device, or one virtual device.

    Args:
        kind: `"gpu"`, `"tpu"` or `"cpu"`.
        index: Position among the devices of that kind, from 0. GPUs count
            within `CUDA_VISIBLE_DEVICES`.
        virtual: Whether it is a CPU device that stands for another.
        worker: The rank of the process that has it, in a job of several:
            `index` counts within that process.
    """

    kind: str
    index: int
    virtual: bool = dataclasses.field(default=False, compare=False)
    worker: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DeviceError(
                f"The kind of a device is one of {list(KINDS)}. "
                f"Received: {self.kind!r}. A name that works: `'gpu:0'`."
            )
        if self.index < 0:
            raise DeviceError(
                "The index of a device counts from 0. Received: "
                f"{self.index}. A name that works: `'{self.kind}:0'`."
            )

    @property
    def name(self) -> str:
        """The name as users write it: `"gpu:0"`, or `"worker:1/gpu:0"`."""
        of_worker = "" if self.worker is None else f"worker:{self.worker}/"
        return f"{of_worker}{self.kind}:{self.index}"

    def __str__(self) -> str:
        return f"{self.name} (virtual)" if self.virtual else self.name

    @classmethod
    def parse(
        cls, name: object, works: str = "devices=['gpu:0', 'gpu:1']"
    ) -> "Device":
        """Reads `"gpu:0"`, `"/gpu:0"`, `"GPU:0"` or `"/device:GPU:0"`.

        What TensorFlow calls a device of this host is read too:
        `"/job:localhost/replica:0/task:0/device:GPU:0"`.

        Args:
            name: What a user wrote for one device.
            works: An argument that would work, for messages.

        Raises:
            DeviceError: if `name` is none of these.
        """
        match = _SPELLING.fullmatch(name) if isinstance(name, str) else None
        if match is None:
            raise DeviceError(
                "A device is named by its kind and its index, such as "
                f"'gpu:0' or 'cpu:0'. Received: {name!r}. An argument "
                f"that works: `{works}`."
            )
        worker = match["worker"] and int(match["worker"])
        return cls(match["kind"].lower(), int(match["index"]), worker=worker)


def best_kind(available: Sequence[Device]) -> tuple[Device, ...]:
    """The devices of the best kind among `available`, in order."""
    for kind in KINDS:
        chosen = tuple(d for d in available if d.kind == kind)
        if chosen:
            return chosen
    raise DeviceError(
        "A model runs on a device of one of the kinds "
        f"{list(KINDS)}. Received: a backend with the devices "
        f"{_names(available)}. To see them: `keras-parallel devices`."
    )


def choose_devices(
    devices: int | Sequence[str] | None,
    available: Sequence[Device],
    argument: str = "devices",
) -> tuple[Device, ...]:
    """Selects devices as `data_parallel(model, devices)` does.

    Args:
        devices: `None` for all of the best kind, an int for the first that
            many of them, or a list of names.
        available: The devices that the engine can use.
        argument: What the user calls `devices`, for messages.

    Returns:
        The chosen devices, in the order asked for.

    Raises:
        DeviceError: for devices that are not there, duplicates, mixed kinds,
            an empty list, a bool, and numbers below 1.
    """
    best = best_kind(available)
    if devices is None:
        return best
    if isinstance(devices, bool):
        raise DeviceError(
            f"`{argument}` is `None`, an integer, or a list. "
            f"Received: {argument}={devices}. A call that works: "
            f"`{argument}=2`."
        )
    if _is_integer(devices):
        return _first(int(devices), best, available, argument)
    if not isinstance(devices, Sequence) or isinstance(devices, str | bytes):
        raise DeviceError(
            f"`{argument}` is `None`, an integer, or a list. Received: "
            f"{argument}={devices!r} (of type {type(devices).__name__}). "
            f"A call that works: `{argument}={[best[0].name]}`."
        )
    return _by_name(list(devices), available, argument)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, numbers.Integral)  # NumPy's count.


def _first(
    count: int,
    best: tuple[Device, ...],
    available: Sequence[Device],
    argument: str,
) -> tuple[Device, ...]:
    if count < 1:
        raise DeviceError(
            f"`{argument}` counts at least 1. Received: {argument}={count}. "
            f"A call that works: `{argument}=1`."
        )
    if count > len(best):
        kind = best[0].kind
        raise DeviceError(
            f"Expected {count} {'GPUs' if argument == 'gpus' else 'devices'}, "
            f"but this host has {len(best)} of kind {kind!r}"
            f"{' (virtual)' if best[0].virtual else ''}: {_names(available)}."
            f" Received: {argument}={count}. A call that works: "
            f"`{argument}={len(best)}`. " + _TRY_VIRTUAL.format(n=count)
        )
    return best[:count]


def _by_name(
    names: Sequence[str], available: Sequence[Device], argument: str
) -> tuple[Device, ...]:
    if not names:
        raise DeviceError(
            f"At least one device is needed. Received: {argument}=[]. A call "
            f"that works: `{argument}=None` takes all of the best kind."
        )
    works = f"{argument}={_names(best_kind(available)[:2])}"
    chosen = tuple(Device.parse(name, works) for name in names)
    duplicates = sorted({d.name for d in chosen if chosen.count(d) > 1})
    if duplicates:
        raise DeviceError(
            "Each device holds one replica, so a device is named once. "
            f"Received: {argument}={list(names)}, with {duplicates} more than "
            "once. A call that works: "
            f"`{argument}={_names(dict.fromkeys(chosen))}`."
        )
    kinds = [kind for kind in KINDS if any(d.kind == kind for d in chosen)]
    if len(kinds) > 1:
        raise DeviceError(
            "Replicas compute the same thing at the same time, so their "
            f"devices are of one kind. Received: {argument}={list(names)}, of "
            f"the kinds {kinds}. A call that works: "
            f"`{argument}={_names(d for d in chosen if d.kind == kinds[0])}`."
        )
    known = {d: d for d in available}
    missing = [d.name for d in chosen if d not in known]
    if missing:
        raise DeviceError(
            f"Expected the devices {_names(chosen)}, but {missing} "
            f"{'is' if len(missing) == 1 else 'are'} not on this host, which "
            f"offers {_names(available)}. Received: {argument}={list(names)}. "
            f"A call that works: `{argument}={[available[0].name]}`. "
            + _try_virtual(chosen)
        )
    return tuple(known[d] for d in chosen)


def _try_virtual(chosen: Iterable[Device]) -> str:
    gpus = [d.index for d in chosen if d.kind == "gpu"]
    return _TRY_VIRTUAL.format(n=max(gpus) + 1) if gpus else ""


def _names(devices: Iterable[Device]) -> list[str]:
    return [d.name for d in devices]
