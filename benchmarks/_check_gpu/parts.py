"""The parts, with the time that each may take."""

import dataclasses

# Of the whole script, in seconds, with some left for the report.
WHOLE = 470

# A variable to set, to see that the parts fail where gradients are wrong.
FAULT = "CHECK_GPU_FAULT"


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of the check.

    Args:
        name: What it is called in the table and on the command line.
        limit: Seconds after which it is ended.
        alone: Whether it measures time, so that nothing may run beside it.
        deterministic: Whether XLA may not choose kernels by timing them.
    """

    name: str
    limit: int
    alone: bool = False
    deterministic: bool = False


# Imports, the start of CUDA and compilation take most of it: about 10 s for a
# process, and 2 to 30 s for a program.
# The first process also reads the libraries of CUDA from a cold disk.
DEVICES = Part("devices", 120)
PARTS = (
    Part("equality", 180, deterministic=True),
    Part("like-one-device", 180, deterministic=True),
    Part("mixed-precision", 180, deterministic=True),
    Part("memory", 180),
    Part("classic", 120),
    Part("visible-devices", 120),
    Part("scopes", 120, deterministic=True),
    Part("trace", 90, alone=True),
    Part("host-cost", 90, alone=True),
    Part("step-time", 180, alone=True),
)

_HERE = "_check_gpu"
# `memory-of` and `devices-of` are processes of their parts.
FUNCTIONS = {
    "devices": (f"{_HERE}.devices", "check_devices"),
    "devices-of": (f"{_HERE}.devices", "devices_of"),
    "visible-devices": (f"{_HERE}.devices", "check_visible_devices"),
    "scopes": (f"{_HERE}.scopes", "check"),
    "classic": (f"{_HERE}.classic", "check"),
    "equality": (f"{_HERE}.equality", "check_cpu"),
    "like-one-device": (f"{_HERE}.equality", "check_one_device"),
    "mixed-precision": (f"{_HERE}.equality", "check_mixed_precision"),
    "memory": (f"{_HERE}.memory", "check"),
    "memory-of": (f"{_HERE}.memory", "memory_of"),
    "trace": (f"{_HERE}.tracing", "check"),
    "host-cost": (f"{_HERE}.timing", "check_host_cost"),
    "step-time": (f"{_HERE}.timing", "check_step_time"),
}
