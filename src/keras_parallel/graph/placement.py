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
_HAS_INDEX = re.compile(r"\[\d+\]")
_INDEX_AT_END = re.compile(r"\[\d+\]$")


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
        # Call -> what the user asked for it.
        self._asked = {}
        every = [call for top in calls for call in top.all()]
        # One call is asked for more exactly than all of a layer.
        for key in sorted(asked_for, key=_is_indexed):
            found = [call for call in every if _is_meant(key, call)]
            if not found:
                raise _unknown(key, every, default)
            for call in found:
                self._asked[call.nodes] = asked_for[key]
        # The nodes of a call -> its device, and the id of a variable -> where
        # it lives.
        self._devices: dict[tuple, Device] = {}
        self._homes: dict[int, Device] = {}
        # The nodes of calls for which nobody asked.
        self._by_default: set[tuple] = set()
        for call in calls:
            self._place(call, None)

    def _place(self, call, around):
        own = self._asked.get(call.nodes) or call.scope
        device = own or around
        self._devices[call.nodes] = device or self.default
        for inner in call.inside:
            self._place(inner, device)
        if device is None:
            self._by_default.add(call.nodes)
        for variable in getattr(call.operation, "variables", ()):
            # It lives where it is used first.
            self._homes.setdefault(id(variable), device or self.default)

    def device_of(self, call: Call) -> Device:
        """Where a call of the model runs."""
        return self._devices[call.nodes]

    def leaves(self) -> list[Call]:
        """The calls that run no graph themselves, in their order."""
        return [call for top in self.calls for call in top.leaves()]

    def is_asked_for(self, call: Call) -> bool:
        """Whether a scope or the user says where a call runs."""
        return call.nodes not in self._by_default

    def by_nodes(self) -> dict[tuple, Device]:
        """The nodes of a call -> its device, for `calls.placed`.

        A model that lies in another one may be called alone too, as by the
        user's own `train_step`: it runs where its first call does.
        """
        found = dict(self._devices)
        for nodes, device in self._devices.items():
            for start in range(1, len(nodes)):
                found.setdefault(nodes[start:], device)
        return found

    def home_of(self, variable: keras.Variable) -> Device:
        """Where a variable of the model lives."""
        return self._homes.get(id(variable), self.default)

    def devices(self) -> tuple[Device, ...]:
        """All devices, the default one first."""
        return tuple(dict.fromkeys([self.default, *self._devices.values()]))

    def to_dict(self) -> dict[str, str]:
        """The device of each call, for `placement=`: by names, for JSON."""
        found: dict[str, dict[str, str]] = {}
        for call in self.leaves():
            devices = found.setdefault(call.name, {})
            devices[call.full_name] = self.device_of(call).name
        result = {}
        for name, devices in found.items():
            if len({*devices.values()}) == 1:
                result[name] = next(iter(devices.values()))
            else:
                result |= devices
        return result


def still_named(asked_for: Mapping, calls: tuple[Call, ...]) -> dict:
    """What was asked for, without the keys that name none of `calls`."""
    every = [call for top in calls for call in top.all()]
    return {
        key: device
        for key, device in asked_for.items()
        if any(_is_meant(key, call) for call in every)
    }


def _is_indexed(key):
    return isinstance(key, tuple) or (
        isinstance(key, str) and _HAS_INDEX.search(key) is not None
    )


def _is_meant(key, call):
    if isinstance(key, tuple):
        return key[1:] == (call.index,) and _is_meant(key[0], call)
    if not isinstance(key, str):
        return call.operation is key
    if key in (call.name, call.full_name, call.operation.name):
        return True
    match = _INDEXED.fullmatch(key)
    return match is not None and _is_meant(
        (match["name"], int(match["index"])), call
    )


def _unknown(key, every, default):
    indexed = _is_indexed(key)
    what = key[0] if isinstance(key, tuple) and key else key
    name = what if isinstance(what, str) else getattr(what, "name", str(what))
    # Those of the layer, if it was the index that named no call.
    meant = [c for c in every if _is_meant(_INDEX_AT_END.sub("", name), c)]
    names = list(
        dict.fromkeys(
            _with_index(call) if indexed else call.name
            for call in (meant or every)
        )
    )
    near = names[:3]
    if not meant:
        near = difflib.get_close_matches(name, names, n=3) or near
    return PlacementError(
        "A key of `placement` names a call of the model: a layer, its name, or "
        "either with the index of a call. Received: "
        f"placement={{{key!r}: ...}}, and no call has that name. Near it: "
        f"{near}. A call that works: `device_parallel(model, "
        f"placement={{{near[0]!r}: {default.name!r}}})`."
    )


def _with_index(call):
    if _HAS_INDEX.search(call.full_name):
        return call.full_name
    return f"{call.name}[{call.index}]"
