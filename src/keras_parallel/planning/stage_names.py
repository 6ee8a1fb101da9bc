"""The names of the programs of a step that runs in stages."""

import re

from keras_parallel.planning.devices import KINDS
from keras_parallel.planning.devices import Device

# A profiler tells programs of one name apart by a number in brackets.
_NAME = re.compile(
    rf"(?P<step>.+)_(?:{'|'.join(KINDS)})_\d+_\d+(?P<other>(?: \(\d+\))?)"
)


def stage_name(step: str, device: Device, number: int) -> str:
    """The name of the program of one stage of a step."""
    return f"{step}_{device.kind}_{device.index}_{number}"


def step_of(program: str) -> str:
    """The step that a program belongs to, or the program itself."""
    found = _NAME.fullmatch(program)
    return program if found is None else found["step"] + found["other"]
