"""Several processes of one job, and arrays that lie on devices of all of them.

Touches private names of JAX: `jax._src.distributed.global_state`, which has the
client of the job's key-value store: with the public functions of
`jax.experimental.multihost_utils` each byte would pass through a program that
is compiled for its shape. And one of Keras, `Variable._value`, the array that a
variable holds.
"""

import contextlib

import jax
import numpy as np
from jax._src import distributed
from jax.errors import JaxRuntimeError
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from keras_parallel._errors import AlreadyStartedError
from keras_parallel._errors import ClusterError
from keras_parallel._logging import logger
from keras_parallel.engines.base import Processes

# One message of gRPC has a limit of 4 MiB in some versions.
_CHUNK = 2**21
# Who waits says so in the log, each time so many seconds are over.
_SAYS_EVERY = 60


class JaxProcesses(Processes):
    """The processes of `jax.distributed`. See `Processes`."""

    def __init__(self, timeout):
        super().__init__(jax.process_count(), jax.process_index())
        self._client = distributed.global_state.client
        self._timeout = timeout
        # As many messages have been sent by each of the processes.
        self._number = 0
        self._written = []

    def shared(self, value, reason):
        key = self._next_key()
        if self.rank == 0:
            self._write(key, value)
            return value
        waited = 0
        while True:
            try:
                return self._read(key, _SAYS_EVERY)
            except JaxRuntimeError as failure:
                if "DEADLINE_EXCEEDED" not in str(failure):
                    raise _lost(reason, failure) from failure
            waited += _SAYS_EVERY
            logger.warning(
                "process %d waits for process 0 (%s) since %d s",
                self.rank,
                reason,
                waited,
            )

    def gathered(self, value, reason):
        key = self._next_key()
        before, self._written = self._written, []
        self._write(f"{key}/{self.rank}", value)
        found = []
        for rank in range(self.count):
            try:
                found.append(self._read(f"{key}/{rank}", self._timeout))
            except JaxRuntimeError as failure:
                if "DEADLINE_EXCEEDED" not in str(failure):
                    raise _lost(reason, failure) from failure
                raise ClusterError(
                    "All processes of a job do the same, one as soon as the "
                    f"others. Received: nothing from process {rank} within "
                    f"{self._timeout:g} s, for which process {self.rank} "
                    f"waits ({reason}). What it printed last says more; more "
                    "time: `keras_parallel.cluster.initialize(timeout="
                    f"{2 * self._timeout:g})`."
                ) from failure
        # All are here, so all have read what came before.
        for written in before:
            self._client.key_value_delete(written)
        return found

    def leave(self):
        jax.distributed.shutdown()

    def _next_key(self):
        self._number += 1
        return f"keras_parallel/{self._number}"

    def _write(self, key, value):
        parts = range(0, max(len(value), 1), _CHUNK)
        for i, start in enumerate(parts):
            part = value[start : start + _CHUNK]
            # The first one tells how many there are.
            head = len(parts).to_bytes(8) if i == 0 else b""
            self._client.key_value_set_bytes(f"{key}/part/{i}", head + part)
            self._written.append(f"{key}/part/{i}")

    def _read(self, key, seconds):
        def part(i):
            return self._client.blocking_key_value_get_bytes(
                f"{key}/part/{i}", int(1000 * seconds)
            )

        first = part(0)
        others = range(1, int.from_bytes(first[:8]))
        return b"".join([first[8:], *map(part, others)])


def _lost(reason, failure):
    return ClusterError(
        "A job goes on as long as all of its processes run. Received: no "
        f"answer from the process that coordinates it ({reason}): {failure}. "
        "Look for what the other processes printed last, and start the job "
        "again."
    )


def join(address, count, rank, timeout, local_devices):
    """Joins a job of several processes. See `Engine.join`."""
    if jax.distributed.is_initialized():
        raise ClusterError(
            "A process joins one job, once. Received: it is process "
            f"{jax.process_index()} of {jax.process_count()} already. Leave "
            "out the second call of `keras_parallel.cluster.initialize()`, or "
            "of `jax.distributed.initialize()`."
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            address,
            count,
            rank,
            local_device_ids=local_devices,
            initialization_timeout=int(timeout),
        )
    except RuntimeError as failure:
        if "must be called before" in str(failure):
            refuse_started()
        raise ClusterError(
            f"The {count} processes of a job meet at the address of process "
            f"0. Received: process {rank} of {count}, and no meeting at "
            f"{address} within {timeout:g} s: {failure} Is process 0 started, "
            "with the same address and count, and is its port reached from "
            "here? More time: `keras_parallel.cluster.initialize(timeout="
            f"{2 * timeout:g})`."
        ) from failure
    return JaxProcesses(timeout)


def refuse_started():
    """Raises: a job is joined too late."""
    raise AlreadyStartedError(
        "A job is joined before JAX starts. Received: initialize(), but JAX "
        "runs already. A layer, a tensor, a random seed or a list of devices "
        "starts it: move `keras_parallel.cluster.initialize()` to the line "
        "after the imports. In a notebook, restart the kernel first."
    )


def is_joint(sharding):
    """Whether devices of other processes belong to `sharding`."""
    return not sharding.is_fully_addressable


def put(values, shardings):
    """`jax.device_put`, with shardings that other processes belong to.

    Each process gives the whole value, the same one, and sends what its own
    devices hold of it.
    """
    values = list(map(_of_this_process, values))
    own = [_part_of_this_process(s) for s in shardings]
    if None not in own:
        placed = jax.device_put(values, own)
        return [
            jax.make_array_from_single_device_arrays(
                value.shape,
                sharding,
                [shard.data for shard in value.addressable_shards],
            )
            if is_joint(sharding)
            else value
            for value, sharding in zip(placed, shardings)
        ]
    return [
        jax.make_array_from_callback(
            np.shape(value), sharding, np.asarray(value).__getitem__
        )
        if is_joint(sharding)
        else jax.device_put(value, sharding)
        for value, sharding in zip(values, shardings)
    ]


def _part_of_this_process(sharding):
    """Where a process puts a value so that its part of an array is right."""
    if not is_joint(sharding):
        return sharding
    if sharding.spec != PartitionSpec():
        return None
    local = sharding.mesh.local_mesh
    return NamedSharding(local, PartitionSpec())


def _of_this_process(value):
    if isinstance(value, jax.Array) and is_joint(value.sharding):
        return value.addressable_data(0)
    return value


def whole_on_each(array, on_each):
    """An array whose parts lie in several processes, whole on each device."""
    return jax.jit(lambda a: a, out_shardings=on_each)(array)


@contextlib.contextmanager
def by_itself(variables):
    """See `Replicas.by_itself`."""
    held = [variable._value for variable in variables]
    for variable, value in zip(variables, held):
        # A step consumes what it takes, and others still need what is here.
        copy = np.array(_of_this_process(value))
        variable._value = jax.device_put(copy)
    try:
        yield
    finally:
        for variable, value in zip(variables, held):
            if _same_bits(variable._value, value):
                variable._value = value


def _same_bits(one, other):
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()
