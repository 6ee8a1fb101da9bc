"""What feeds a parallel model, made to come exactly once and without a hang.

Keras prepares the batches of a `keras.utils.PyDataset` with workers itself:
in forked processes, which may hang once the backend has started, and with
batches left over from one epoch in the next, so that of a dataset longer than
its queue some rows come twice and others not at all (keras 3.15.1, threads and
processes). Here Keras is given a dataset without workers that has them itself.
"""

import collections
import concurrent.futures
import contextlib
import multiprocessing
import random
import sys

import keras

from keras_parallel._errors import DataWorkerError
from keras_parallel.engines import VIRTUAL_DEVICES_VARIABLE
from keras_parallel.engines import base
from keras_parallel.strategies._workers import Processes
from keras_parallel.strategies._workers import Threads
from keras_parallel.strategies._workers import check_not_starting


@contextlib.contextmanager
def fed(name: str, engine: base.Engine, args: tuple, kwargs: dict):
    """Makes datasets among the arguments of a method safe to read.

    Args:
        name: The method: `"fit"`, `"evaluate"` or `"predict"`.
        engine: The engine of the model that is fed.
        args: What the method was called with.
        kwargs: What it was called with by name.

    Yields:
        `args` and `kwargs` to call the method with.

    Raises:
        DataWorkerError: if processes that were asked for cannot be had, or
            could hang.
    """
    check_not_starting(f"`{name}` was called")
    with contextlib.ExitStack() as stack:
        found = []

        def prefetched(value):
            if isinstance(value, tuple | list) and len(value) == 1:
                inside = prefetched(value[0])
                return value if inside is value[0] else (inside,)
            _check_loader(value, engine)
            if not _has_workers(value):
                return value
            workers = stack.enter_context(_workers_of(value, engine))
            found.append(workers)
            return Prefetched(value, workers)

        args = tuple(map(prefetched, args))
        kwargs = {key: prefetched(value) for key, value in kwargs.items()}
        for workers in found:
            workers.start()
        yield args, kwargs


def _has_workers(value):
    return isinstance(value, keras.utils.PyDataset) and (
        value.workers > 1 or (value.workers > 0 and value.use_multiprocessing)
    )


def _workers_of(dataset, engine):
    if not dataset.use_multiprocessing:
        return Threads(dataset)
    environment = {
        # The Keras that is imported there is the one of here, and has no use
        # for devices that stand for GPUs.
        "KERAS_BACKEND": engine.backend,
        VIRTUAL_DEVICES_VARIABLE: "",
        **engine.worker_environment,
    }
    return Processes(dataset, environment)


def _check_loader(value, engine):
    # Only who has loaded torch can have a loader of it.
    torch_data = sys.modules.get("torch.utils.data")
    if (
        engine.fork_is_safe
        or torch_data is None
        or not isinstance(value, torch_data.DataLoader)
        or value.num_workers == 0
        # Who has asked for a way of starting them by name shall have it.
        or value.multiprocessing_context is not None
        or _start_method() != "fork"
    ):
        return
    raise DataWorkerError(
        f"A process is not forked once {engine.backend} has started: it holds "
        "threads, and a forked copy may wait for their locks for ever. "
        f"Received: a torch DataLoader with num_workers={value.num_workers}, "
        "which forks. A call that works: "
        f"`DataLoader(..., num_workers={value.num_workers}, "
        'multiprocessing_context="spawn", persistent_workers=True)`, in a '
        'script that trains below `if __name__ == "__main__":`.'
    )


def _start_method():
    # Asked for otherwise, it could not be chosen any more.
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


class Prefetched(keras.utils.PyDataset):
    """A dataset whose next batches are prepared by workers.

    It gives the very batches that the dataset gives without workers, whatever
    is asked for. Which are asked for next is only guessed, from the one that
    came before: a wrong guess costs time.

    Args:
        dataset: The user's dataset.
        workers: The workers that prepare its batches.
    """

    def __init__(self, dataset, workers: Threads | Processes):
        super().__init__(workers=0)
        self._dataset = dataset
        self._prepared_by = workers
        # Indices that will be asked for, and how many have been passed on.
        self._order = range(0)
        self._passed_on = 0
        # What has been passed on and not asked for yet.
        self._pending = collections.deque()
        self._before_shuffling = random.getstate()

    def __getattr__(self, name):
        # A `fit` of the user's own may use what the dataset has.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    @property
    def num_batches(self):
        # Keras reads it right before it shuffles the indices.
        self._before_shuffling = random.getstate()
        return self._dataset.num_batches

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, index):
        if self._upcoming() != index:
            self._drop()
            self._order = self._order_from(index)
            self._passed_on = 0
        self._pass_on()
        batch = self._pending.popleft()
        self._pass_on()
        return batch.result()

    def _upcoming(self):
        asked_for = self._passed_on - len(self._pending)
        in_order = asked_for < len(self._order)
        return self._order[asked_for] if in_order else None

    def _order_from(self, index):
        count = self._dataset.num_batches
        if count is None:
            return range(index, sys.maxsize)
        if random.getstate() != self._before_shuffling:
            # This is what Keras has done since it read the number of batches.
            order, shuffle = list(range(count)), random.Random()
            shuffle.setstate(self._before_shuffling)
            shuffle.shuffle(order)
        else:
            order = range(index, count)
        return order if order and order[0] == index else [index]

    def _pass_on(self):
        free = max(self._dataset.max_queue_size, 1) - len(self._pending)
        upcoming = self._order[self._passed_on : self._passed_on + free]
        self._pending.extend(map(self._prepared_by.submit, upcoming))
        self._passed_on += len(upcoming)

    def _drop(self):
        """Takes back what was passed on, and waits for what is running."""
        running = [batch for batch in self._pending if not batch.cancel()]
        concurrent.futures.wait(running)
        self._passed_on -= len(self._pending)
        self._pending.clear()

    def on_epoch_begin(self):
        self._dataset.on_epoch_begin()
        if self._prepared_by.renew():
            self._drop()

    def on_epoch_end(self):
        if not self._prepared_by.isolated:
            self._drop()
        self._dataset.on_epoch_end()
