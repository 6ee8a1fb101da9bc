"""Where the calls of a model run, and where its variables live."""

import difflib
import re
import typing
from collections.abc import Mapping

import keras

from keras_parallel._errors import PlacementError
from keras_parallel.graph.calls import Call
from keras_parallel.planning import Device

_INDEXED = re.compile(r"(?P<name>.*)\[(?P<index>\d+)\]")


class Placement:
    """The device of each call of a model.

    Args:
        calls: The calls of the model.
        asked_for: Pairs of what the user named, and its device: the name of
            a layer, a layer, a name or layer with the index of a call, or
            `"name[index]"`.
        default: The device of calls without one.

    Raises:
        PlacementError: if a key names no call.
    """

    def __init__(
        self,
        calls: tuple[Call, ...],
        asked_for: Mapping[typing.Any, Device],
        default: Device,
    ):
        self.calls = calls
        self.default = default
        # Node -> what the user asked for it.
        self._asked = {}
        every = [call for top in calls for call in top.all()]
        # One call is asked for more exactly than all of a layer.
        for key in sorted(asked_for, key=_is_indexed):
            found = [call for call in every if _is_meant(key, call)]
            if not found:
                raise _unknown(key, every)
            for call in found:
                self._asked[call.node] = asked_for[key]
        # Node -> its device, and (id of a variable) -> where it lives.
        self.of_node: dict[typing.Any, Device] = {}
        self._homes: dict[int, Device] = {}
        for call in calls:
            self._place(call, default)

    def _place(self, call, around):
        device = self._asked.get(call.node) or call.scope or around
        self.of_node[call.node] = device
        for inner in call.inside:
            self._place(inner, device)
        for variable in getattr(call.operation, "variables", ()):
            # It lives where it is used first.
            self._homes.setdefault(id(variable), device)

    def home_of(self, variable: keras.Variable) -> Device:
        """Where a variable of the model lives."""
        return self._homes.get(id(variable), self.default)

    def devices(self) -> tuple[Device, ...]:
        """All devices, the default one first."""
        return tuple(dict.fromkeys([self.default, *self.of_node.values()]))

    def to_dict(self) -> dict[str, str]:
        """The device of each call, for `placement=`: by names, for JSON."""
        found = {}
        for top in self.calls:
            for call in top.all():
                if not call.inside:
                    devices = found.setdefault(call.name, {})
                    devices[call.index] = self.of_node[call.node].name
        result = {}
        for name, devices in found.items():
            if len({*devices.values()}) == 1:
                result[name] = next(iter(devices.values()))
            else:
                result |= {f"{name}[{i}]": d for i, d in devices.items()}
        return result


def _is_indexed(key):
    return isinstance(key, tuple) or (
        isinstance(key, str) and _INDEXED.fullmatch(key) is not None
    )


def _is_meant(key, call):
    if isinstance(key, tuple):
        what, index = key
        return call.index == index and _is_meant(what, call)
    if not isinstance(key, str):
        return call.operation is key
    if key in (call.name, call.operation.name):
        return True
    match = _INDEXED.fullmatch(key)
    return match is not None and _is_meant(
        (match["name"], int(match["index"])), call
    )


def _unknown(key, every):
    indexed = _is_indexed(key)
    what = key[0] if isinstance(key, tuple) else key
    name = what if isinstance(what, str) else getattr(what, "name", str(what))
    names = list(
        dict.fromkeys(
            f"{call.name}[{call.index}]" if indexed else call.name
            for call in every
        )
    )
    near = difflib.get_close_matches(name, names, n=3) or names[:3]
    return PlacementError(
        "A key of `placement` names a call of the model: a layer, its name, or "
        "either with the index of a call. Received: "
        f"placement={{{key!r}: ...}}, and no call has that name. Near it: "
        f"{near}. A call that works: "
        f"`device_parallel(model, placement={{{near[0]!r}: 'gpu:0'}})`."
    )
