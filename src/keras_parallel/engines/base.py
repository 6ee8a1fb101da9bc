"""The seam: what keras-parallel asks of a Keras backend.

An `Engine` knows the devices of one backend and opens an `Execution` on some of
them: `Replicas` of a model, or `Stages` of it. Strategies are written once over
these classes; nothing outside this folder asks which backend is active.

Whoever implements them guarantees rule 1 of the project: whatever runs on
several devices gives the losses, metrics, weights, optimizer slots and
non-trainable variables of the same model trained on one device with the same
global batches. `tests/contract` holds every engine to the text below.
"""

import abc
import contextlib
import dataclasses
import types
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from keras_parallel._errors import BackendError
from keras_parallel.planning import Compilation
from keras_parallel.planning import Device
from keras_parallel.planning import Outline
from keras_parallel.planning import Program
from keras_parallel.planning import RowLayout
from keras_parallel.planning import SlotLayout
from keras_parallel.planning import StagesOutline
from keras_parallel.planning import Timeline
from keras_parallel.planning import lay_out_slot


class Execution(abc.ABC):
    """A way of running the methods of a model on several devices.

    Args:
        devices: The devices.
    """

    # Methods that a model may not override beside the trainer layer.
    reserved_methods: tuple[str, ...] = ()

    def __init__(self, devices: tuple[Device, ...]):
        self.devices = devices

    @property
    @abc.abstractmethod
    def trainer_layer(self) -> type:
        """The class to put above the user's model class.

        It overrides what Keras's trainer of this backend offers for that, so
        that each compiled step of `fit`, `evaluate`, `predict` and
        `*_on_batch`, a custom `train_step` included, runs on all devices as
        one step over the global batch. The strategy gives it, in
        `self._keras_parallel`: `execution`, this; the dict `states`, to keep
        what it needs for each kind of step; `batch_preparation(self, kind)`,
        a function to apply to each batch, which places it; and `users(name,
        of_the_class)`, a step as the user has it. Guarantees:

        - one compilation for each distinct shape of a batch;
        - every batch of a step goes through its preparation;
        - between two steps the model's variables hold the values of the last
          finished step, and values assigned there are used by the next;
        - a signal that raises, such as Ctrl-C, does so between two steps.
        """

    @abc.abstractmethod
    def place_batch(self, batch: Any) -> Any:
        """Puts a batch where steps take it from; the same structure.

        `None` and leaves that are no numeric arrays are returned as they
        are. Placing a placed batch costs nothing.
        """

    @abc.abstractmethod
    def running(self, model: Any) -> contextlib.AbstractContextManager:
        """The context in which a method of the parallel `model` runs.

        May be nested. When the outermost one ends, normally or not, every
        variable of the model, its optimizer and its metrics holds an
        ordinary one-device value again, that of the last finished step. A
        slot that is sharded may wait with that until it is asked for.
        """

    @abc.abstractmethod
    def program(self, model: Any, kind: str, batch: Any) -> Program | None:
        """What the backend compiles for a step of the parallel `model`.

        Args:
            model: A parallel model that runs so, built and compiled.
            kind: `"train"` or `"test"`.
            batch: A batch as the step's preparation takes it.

        Returns:
            The program that runs when a step of `model` meets such a batch.
            `None` if steps are not compiled. Nothing is run, and no variable
            changes.
        """


class Replicas(Execution):
    """One copy of a model on each of several devices.

    Args:
        devices: The devices, in the order in which they take their rows.
        report: Called with the `RowLayout` of a batch when a batch with that
            number of rows is placed for the first time.
        shard_optimizer: Whether each device holds its own part of the
            optimizer's variables only, as `lay_out_slot` says. It computes
            the update of that part, and the devices exchange new weights.
            `False`: each device holds them whole.
    """

    def __init__(
        self,
        devices: tuple[Device, ...],
        report: Callable[[RowLayout], None],
        shard_optimizer: bool = False,
    ):
        super().__init__(devices)
        self.report = report
        self.shard_optimizer = shard_optimizer

    def lay_out_slot(self, shape: tuple[int, ...]) -> SlotLayout:
        """How an optimizer variable of `shape` lies while a step runs."""
        return lay_out_slot(shape, len(self.devices), self.shard_optimizer)

    @abc.abstractmethod
    def place_batch(self, batch: Any) -> Any:
        """Puts a batch on the devices and returns the same structure.

        Arrays whose first dim is the batch's number of rows are split by
        rows as `planning.lay_out_rows` says, so that each device receives
        its own rows only; other arrays go whole to each device. `None` and
        leaves that are no numeric arrays are returned as they are. Placing
        a placed batch costs nothing.
        """

    def by_itself(
        self, variables: list
    ) -> contextlib.AbstractContextManager[None]:
        """The context in which one process of a job uses `variables` alone.

        Inside they have the values that they had, in arrays that other
        processes do not belong to. A variable that has the same value when it
        ends holds what it held before.
        """
        del variables
        return contextlib.nullcontext()

    @abc.abstractmethod
    def rows_on(self, array: Any) -> dict[str, int]:
        """Reads from a placed array how many rows each device holds."""

    def outline(self, model: Any, rows: int) -> Outline | None:
        """What a training step of a built `model` would compute.

        Nothing runs for it: no device, no variable and no random state is
        touched.

        Returns:
            `None` where it cannot be told before the first batch.
        """
        del model, rows
        return None


class Stages(Execution):
    """The parts of a model, each on a device of its own.

    Args:
        devices: Every device that a part may run on; the first one is for
            what belongs to no part.
        homes_of: Gives, for a parallel model and some variables of it, its
            optimizer or its metrics, the device on which each lives.
        traced: The context in which a step is traced. Inside, what the
            strategy runs within `on(device)` is what runs there.
    """

    def __init__(
        self,
        devices: tuple[Device, ...],
        homes_of: Callable[[Any, list], list[Device]],
        traced: Callable[[], contextlib.AbstractContextManager],
    ):
        super().__init__(devices)
        self.homes_of = homes_of
        self.traced = traced

    @abc.abstractmethod
    def on(self, device: Device) -> contextlib.AbstractContextManager:
        """What is computed inside, and its gradient, runs on `device`.

        May be nested: the innermost one counts. Has an effect in a step that
        is being traced only.
        """

    def outline(
        self,
        model: Any,
        rows: int,
        numbered: Callable[[Any], contextlib.AbstractContextManager],
        count: int,
    ) -> StagesOutline | None:
        """What the calls of a built `model` would compute.

        Nothing runs for it: no device, no variable and no random state is
        touched.

        Args:
            model: The user's model.
            rows: Rows of a batch.
            numbered: Takes a function from the number of a call to a context,
                and gives the context in which each call runs within its own.
            count: How many calls there are.

        Returns:
            `None` where it cannot be told before the first batch.
        """
        del model, rows, numbered, count
        return None

    @abc.abstractmethod
    def settle(self, model: Any) -> None:
        """Puts each variable of the parallel `model` where it lives.

        So it is after each method that runs within `running` too.
        """


@dataclasses.dataclass
class Recording:
    """What `Engine.profile` is making.

    Args:
        timeline: What ran, once the context has ended.
    """

    timeline: Timeline | None = None


class Processes(abc.ABC):
    """The processes of a job, all of which run the same program.

    Each of them calls the same methods in the same order.

    Args:
        count: How many there are.
        rank: Which one this is, from 0.
    """

    def __init__(self, count: int, rank: int):
        self.count = count
        self.rank = rank

    @abc.abstractmethod
    def shared(self, value: bytes, reason: str) -> bytes:
        """What process 0 has.

        Process 0 does not wait. The others do, as long as it runs.

        Args:
            value: What this process has: counts in process 0.
            reason: What is shared, for who waits.

        Raises:
            ClusterError: if process 0 has ended.
        """

    @abc.abstractmethod
    def gathered(self, value: bytes, reason: str) -> list[bytes]:
        """What each process has, by rank.

        Raises:
            ClusterError: if one of them does not answer within the time that
                the job was joined with.
        """

    @abc.abstractmethod
    def leave(self) -> None:
        """Leaves the job, once all others have come to do so too."""


class Engine(abc.ABC):
    """The devices of one Keras backend, and replicas on them."""

    # What Keras's trainer of this backend sets on a model while it runs.
    runtime_attributes: tuple[str, ...] = ()
    # Whether a process may be forked once the backend has started in it.
    fork_is_safe: bool = False
    # The environment in which a process that imports the backend, to prepare
    # batches, takes no accelerator.
    worker_environment: Mapping[str, str] = types.MappingProxyType({})

    @property
    @abc.abstractmethod
    def backend(self) -> str:
        """The name of the backend, as `keras.config.backend()` gives it."""

    @abc.abstractmethod
    def list_devices(self) -> tuple[Device, ...]:
        """Every device that can be used, best kind first.

        Virtual devices, if there are any, stand in place of those they
        imitate. Starts the backend if it has not started.
        """

    @abc.abstractmethod
    def use_virtual_devices(self, count: int) -> None:
        """Makes CPU devices that stand for `count` GPUs and one CPU.

        `gpu:0` to `gpu:{count-1}` and `cpu:0` are devices of their own, and
        no program on them can hang for want of threads. On a host with real
        accelerators those are used, and a warning is logged when the devices
        are first listed. Does not start the backend; until that has started,
        the last call counts.

        Raises:
            AlreadyStartedError: if the backend runs already with other
                devices.
        """

    @property
    def processes(self) -> Processes | None:
        """The job that was joined, if there are other processes in it."""
        return None

    def join(
        self,
        address: str,
        count: int,
        rank: int,
        timeout: float,
        local_devices: list[int] | None,
    ) -> None:
        """Joins a job of several processes, each with devices of its own.

        Afterwards `list_devices()` lists those of all, and replicas on
        devices of several processes run in all of them. Called before the
        backend starts.

        Args:
            address: `"host:port"` of process 0.
            count: How many processes there are.
            rank: Which one this is, from 0.
            timeout: Seconds to wait for the others, now and later.
            local_devices: Indices of the accelerators that this process takes
                of those it sees. `None` for all of them.

        Raises:
            AlreadyStartedError: if the backend runs already.
            ClusterError: if there is no such job, or a process that does not
                come, or if processes have devices of different kinds.
            BackendError: if this engine runs in one process only.
        """
        del address, count, rank, timeout, local_devices
        raise BackendError(
            "A job of several processes runs on an engine that joins it. "
            f"Received: the Keras backend {self.backend!r}. A setting that "
            "works: KERAS_BACKEND=jax."
        )

    @property
    def rounds_layer(self) -> type:
        """The class to put above a model whose steps the strategy takes.

        With it, `fit` and `evaluate` of Keras's trainer read data, count
        epochs and steps and call callbacks as ever, and compute nothing: each
        batch goes to `self._keras_parallel.train_round(batch)` or
        `.test_round(batch)`, with NumPy arrays for those of the backend, and
        what that returns are the logs of the step.

        Raises:
            BackendError: if this engine has none.
        """
        raise BackendError(
            "Models train in turn on an engine that has rounds. Received: the "
            f"Keras backend {self.backend!r}. A setting that works: "
            "KERAS_BACKEND=jax."
        )

    @abc.abstractmethod
    def replicas(
        self,
        devices: tuple[Device, ...],
        report: Callable[[RowLayout], None],
        shard_optimizer: bool = False,
    ) -> Replicas:
        """Opens replicas on `devices`. See `Replicas`.

        Raises:
            BackendError: if a setting of the backend makes equality with one
                device impossible; the message names it.
        """

    def stages(
        self,
        devices: tuple[Device, ...],
        homes_of: Callable[[Any, list], list[Device]],
        traced: Callable[[], contextlib.AbstractContextManager],
    ) -> Stages:
        """Opens stages on `devices`. See `Stages`.

        Raises:
            BackendError: if this engine has none, or a setting of the backend
                makes equality with one device impossible.
        """
        del devices, homes_of, traced
        raise BackendError(
            "A model runs in stages on an engine that has them. Received: the "
            f"Keras backend {self.backend!r}. A setting that works: "
            "KERAS_BACKEND=jax."
        )

    def imagined(self, make: Callable[[], Iterable[Any]]) -> list[Any] | None:
        """Shapes and dtypes of the variables that `make()` would return.

        No array is made for them.

        Returns:
            `None` where that cannot be told without making them.
        """
        del make
        return None

    def held_dtype(self, dtype: str) -> str:
        """The dtype in which a variable of `dtype` is held."""
        return dtype

    @abc.abstractmethod
    def profile(self) -> contextlib.AbstractContextManager[Recording]:
        """Records what runs inside, on devices of `list_devices()` and host.

        When the context ends, normally or not, everything that was asked for
        inside has run, and the recording has its `Timeline`. Each run of a
        program has events on every device that took part, with the number of
        the run; an exchange between devices is an event on each of them.
        What was asked for before does not appear. An exception inside goes
        through.

        Raises:
            TraceError: if a profiler of the backend runs already, or if it
                was stopped inside.
        """

    @abc.abstractmethod
    def compilations(
        self,
    ) -> contextlib.AbstractContextManager[list[Compilation]]:
        """Notes what is compiled inside, in any thread.

        The list that is yielded grows by an entry for each function that the
        backend compiles, the moment it has done so.
        """

    @abc.abstractmethod
    def versions(self) -> dict[str, str]:
        """Packages that matter for a bug report, with their versions."""
