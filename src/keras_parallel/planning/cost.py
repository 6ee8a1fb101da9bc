"""What a training step costs, predicted from a plan and a few rates.

Every value that comes out is a prediction; nothing here measures.
"""

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Iterable

from keras_parallel.planning.plan import Collective


@dataclasses.dataclass(frozen=True)
class Link:
    """What carries the exchange between devices.

    Args:
        bandwidth: Bytes per second that one device sends, or that a shared
            memory reads or writes.
        latency: Seconds that one message takes beyond its bytes.
        shared: Whether devices exchange by reading and writing one memory, as
            the virtual devices of a host do.
    """

    bandwidth: float
    latency: float
    shared: bool = False

    def __post_init__(self) -> None:
        _check_positive("bandwidth", self.bandwidth)
        _check_not_negative("latency", self.latency)


@dataclasses.dataclass(frozen=True)
class Compute:
    """What one replica computes in a step, its share of the rows alone.

    Args:
        seconds: Time on a device that nothing else uses.
        core_seconds: Time that it keeps cores of the host busy, summed over
            the cores; only for devices that share them.
        cores: How many cores the devices share; `None` where each device
            computes by itself.
    """

    seconds: float
    core_seconds: float = 0.0
    cores: int | None = None

    def __post_init__(self) -> None:
        _check_not_negative("seconds", self.seconds)
        _check_not_negative("core_seconds", self.core_seconds)
        if self.cores is not None:
            _check_positive("cores", self.cores)

    @classmethod
    def from_flops(cls, flops: float, rate: float) -> "Compute":
        """On a device of its own.

        Args:
            flops: Floating-point operations of one replica in a step.
            rate: How many of them the device does in a second.
        """
        _check_positive("rate", rate)
        return cls(flops / rate)

    def on(self, num_devices: int) -> float:
        """Seconds until the last of `num_devices` devices is done."""
        if self.cores is None:
            return self.seconds
        # Virtual devices queue for the cores once those are busy.
        return max(self.seconds, num_devices * self.core_seconds / self.cores)


@dataclasses.dataclass(frozen=True)
class Host:
    """What the host does in each step before the devices can go on.

    Args:
        step: Seconds of each step.
        variable: Seconds more for each variable.
        device: Seconds more for each device beyond the first.
        array: Seconds more for each variable on each device beyond the first.
        meeting: Seconds more for each array that crosses, on each device
            beyond the first, where devices wait for each other array by array.
    """

    step: float = 0.0
    variable: float = 0.0
    device: float = 0.0
    array: float = 0.0
    meeting: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_not_negative(field.name, getattr(self, field.name))

    def on(
        self, num_devices: int, num_variables: int, num_crossing: int = 0
    ) -> float:
        """Seconds of one step, in which `num_crossing` arrays cross."""
        more = num_devices - 1
        return (
            self.step
            + self.variable * num_variables
            + self.device * more
            + self.array * more * num_variables
            + self.meeting * more * num_crossing
        )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The seconds of one step, not measured.

    Args:
        num_devices: How many devices it is for.
        compute: Arithmetic.
        communication: Exchange between devices.
        host: Work of the host.
    """

    num_devices: int
    compute: float
    communication: float
    host: float

    @property
    def seconds(self) -> float:
        """The whole step. Nothing is taken to overlap, so it is no less."""
        return self.compute + self.communication + self.host

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {getattr(self, name) * 1e3:.4g}"
            for name in ("compute", "communication", "host")
        )
        return (
            f"prediction, not measured: {self.seconds * 1e3:.4g} ms a step on "
            f"{self.num_devices} device{'s' * (self.num_devices > 1)} ({parts})"
        )


def predict(
    num_devices: int,
    *,
    compute: Compute,
    collectives: Iterable[Collective],
    link: Link,
    host: Host | None = None,
    num_variables: int = 0,
    num_crossing: int = 0,
) -> Prediction:
    """Predicts the time of one training step.

    Args:
        num_devices: Number of devices.
        compute: What one replica computes, with its share of the rows.
        collectives: What crosses in a step: `Plan.collectives`.
        link: What carries it.
        host: What the host does; nothing by default.
        num_variables: Variables of the model, its optimizer and metrics.
        num_crossing: Arrays that cross in a step.

    Raises:
        ValueError: `num_devices` is not at least 1.
    """
    if num_devices < 1:
        raise ValueError(
            "A step runs on at least one device. Received: num_devices="
            f"{num_devices}. A value that works: `num_devices=1`."
        )
    return Prediction(
        num_devices,
        compute.on(num_devices),
        sum(exchange_seconds(c, num_devices, link) for c in collectives),
        (host or Host()).on(num_devices, num_variables, num_crossing),
    )


def exchange_seconds(
    collective: Collective, num_devices: int, link: Link
) -> float:
    """Seconds that a collective takes, by the best algorithm that is common.

    An all-reduce sends from each device 2 (n - 1) / n of the bytes, the least
    that there can be (Patarasuk and Yuan, "Bandwidth optimal all-reduce
    algorithms for clusters of workstations", 2009). A ring does so in
    2 (n - 1) messages, Rabenseifner's halving and doubling in 2 log2(n)
    (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
    operations in MPICH", 2005); where n is no power of two the next one
    counts. The additions are taken to be part of the bandwidth. The halves of
    an all-reduce, reduce-scatter and all-gather, cost half of it.

    In a shared memory nothing is sent: what each device puts in is read once,
    and what each gets is written.
    """
    if num_devices == 1:
        return 0.0
    messages, part = _SENT[collective.kind](num_devices)
    if link.shared:
        part = num_devices + _WRITTEN[collective.kind](num_devices)
    return (
        collective.count * messages * link.latency
        + part * collective.bytes / link.bandwidth
    )


def _rounds(num_devices: int) -> int:
    return min(num_devices - 1, math.ceil(math.log2(num_devices)))


# For each kind, how many messages a device sends one after the other, and how
# much in all, as a multiple of what it puts in.
_SENT: dict[str, Callable[[int], tuple[int, float]]] = {
    "all-reduce": lambda n: (2 * _rounds(n), 2 * (n - 1) / n),
    "reduce-scatter": lambda n: (_rounds(n), (n - 1) / n),
    "all-gather": lambda n: (_rounds(n), n - 1),
    "all-to-all": lambda n: (n - 1, (n - 1) / n),
    "collective-permute": lambda n: (1, 1),
}


# For each kind, how much all devices get, as a multiple of what one puts in.
_WRITTEN: dict[str, Callable[[int], int]] = {
    "all-reduce": lambda n: n,
    "reduce-scatter": lambda n: 1,
    "all-gather": lambda n: n * n,
    "all-to-all": lambda n: n,
    "collective-permute": lambda n: n,
}


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(
            f"{name} is a positive number. Received: {name}={value!r}. A value "
            f"that works: `{name}=1`."
        )


def _check_not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(
            f"{name} is 0 or more. Received: {name}={value!r}. A value that "
            f"works: `{name}=0`."
        )
