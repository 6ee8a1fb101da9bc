"""An engine without devices, for tests of strategies.

It runs every step where Keras would have run it and records what it was
told. It works on any Keras backend.
"""

import contextlib
import dataclasses
import functools

import keras

from keras_parallel._errors import TraceError
from keras_parallel.engines.base import Engine
from keras_parallel.engines.base import Recording
from keras_parallel.engines.base import Replicas
from keras_parallel.engines.base import Stages
from keras_parallel.planning import HOST
from keras_parallel.planning import Device
from keras_parallel.planning import Event
from keras_parallel.planning import Program
from keras_parallel.planning import Timeline
from keras_parallel.planning import lay_out_rows


class FakeEngine(Engine):
    """`num_devices` GPUs and one CPU that exist in name only.

    Args:
        num_devices: How many GPUs to pretend.

    Attributes:
        calls: What the engine and its replicas were told, in order.
    """

    def __init__(self, num_devices: int = 8):
        self.calls = []
        self._num_devices = num_devices
        self._profiling = False

    @property
    def backend(self):
        return keras.config.backend()

    def list_devices(self):
        gpus = [Device("gpu", i) for i in range(self._num_devices)]
        return (*gpus, Device("cpu", 0))

    def use_virtual_devices(self, count):
        self.calls.append(("use_virtual_devices", count))
        self._num_devices = count

    def replicas(self, devices, report, shard_optimizer=False):
        self.calls.append(("replicas", tuple(d.name for d in devices)))
        if shard_optimizer:
            self.calls.append(("shard_optimizer",))
        return FakeReplicas(devices, report, shard_optimizer, calls=self.calls)

    def stages(self, devices, homes_of, traced):
        self.calls.append(("stages", tuple(d.name for d in devices)))
        return FakeStages(devices, homes_of, traced, calls=self.calls)

    @contextlib.contextmanager
    def profile(self):
        if self._profiling:
            raise TraceError(
                "One recording is made at a time. Received: a second one."
            )
        self._profiling, first = True, len(self.calls)
        recording = Recording()
        try:
            yield recording
        finally:
            self._profiling = False
            recording.timeline = _made_up(self.calls, first)

    @contextlib.contextmanager
    def compilations(self):
        yield []

    def versions(self):
        return {}


def _made_up(calls, first):
    """A timeline in which each step took 1 ms on each device."""
    devices, runs, events = (), {}, []
    for i, (told, what) in enumerate(calls):
        if told == "replicas":
            devices = what
        elif told == "step" and i >= first:
            program = f"{what}_step"
            run = runs[program] = runs.get(program, -1) + 1
            start = 2e-3 * sum(n + 1 for n in runs.values())
            events.append(
                Event(HOST, "host", program, start, 1e-3, program, run)
            )
            for device in devices:
                for kind, name, begin, seconds in (
                    ("compute", "update", start + 1e-3, 7e-4),
                    ("communication", "all-reduce", start + 1.7e-3, 3e-4),
                ):
                    events.append(
                        Event(device, kind, name, begin, seconds, program, run)
                    )
    return Timeline(tuple(sorted(events, key=lambda e: e.start)))


@dataclasses.dataclass(frozen=True)
class PlacedArray:
    """An array that says how its rows would lie."""

    array: object
    rows: dict[str, int]


def _taken_back(leaf):
    return leaf.array if isinstance(leaf, PlacedArray) else leaf


class FakeExecution:
    """What replicas and stages that exist in name only have in common."""

    def __init__(self, *args, calls):
        super().__init__(*args)
        self._calls = calls
        self._depth = 0

    @property
    def trainer_layer(self):
        return FakeTrainerLayer

    @contextlib.contextmanager
    def running(self, model):
        self._depth += 1
        self._calls.append(("enter", self._depth))
        try:
            yield
        finally:
            self._calls.append(("leave", self._depth))
            self._depth -= 1

    def program(self, model, kind, batch):
        self._calls.append(("program", kind))
        return Program(f"{kind}_step", (), None, 0, 0, 0, 0.0)


class FakeStages(FakeExecution, Stages):
    """Stages that exist in name only. See `FakeEngine`."""

    def place_batch(self, batch):
        return batch

    @contextlib.contextmanager
    def on(self, device):
        self._calls.append(("on", device.name))
        yield

    def settle(self, model):
        self._calls.append(("settle", model.name))


class FakeReplicas(FakeExecution, Replicas):
    """Replicas that exist in name only. See `FakeEngine`."""

    def place_batch(self, batch):
        rows = next(
            len(leaf) for leaf in keras.tree.flatten(batch) if leaf is not None
        )
        layout = lay_out_rows(rows, len(self.devices))
        self.report(layout)
        names = [d.name for d in self.devices]
        per_device = dict(zip(names, layout.per_device))
        self._calls.append(("place_batch", per_device))
        return keras.tree.map_structure(
            lambda a: a if a is None else PlacedArray(a, per_device), batch
        )

    def rows_on(self, array):
        return array.rows


def _recorded(name):
    def make(self, force=False):
        attribute = f"{name}_function"
        before = getattr(self, attribute)
        getattr(super(FakeTrainerLayer, self), f"make_{attribute}")(force)
        function = getattr(self, attribute)
        if function is before:
            return

        replicas = self._keras_parallel.execution
        prepare = self._keras_parallel.batch_preparation(self, name)

        def recorded(batch):
            return keras.tree.map_structure(_taken_back, prepare(batch))

        @functools.wraps(function)
        def step(*args):
            replicas._calls.append(("step", name))
            *state, iterator = args
            return function(*state, map(recorded, iterator))

        setattr(self, attribute, step)

    return make


class FakeTrainerLayer:
    """Records each step that Keras's trainer takes."""

    make_train_function = _recorded("train")
    make_test_function = _recorded("test")
    make_predict_function = _recorded("predict")
