"""Threads and processes that prepare the batches of a `keras.utils.PyDataset`.

A process is started afresh, never forked: a backend that has started holds
threads and locks that a forked copy would wait for for ever. Each is driven by
a thread of its own over a pipe of its own, whose end shows when it dies.

A worker process imports this module, so it imports neither Keras nor an engine.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import traceback
import typing

from keras_parallel._errors import DataWorkerError
from keras_parallel._logging import logger

# In the environment of a worker until it has imported the user's script: the
# process that started it.
_STARTING = "KERAS_PARALLEL_DATA_WORKER"

# After so long a worker that is still importing is worth a warning.
_PATIENCE_SECONDS = 60.0


def check_not_starting(what: str) -> None:
    """Raises if this process is a worker that imports the user's script.

    Args:
        what: What the script was about to do.

    Raises:
        DataWorkerError: if it is.
    """
    if os.environ.get(_STARTING) == str(os.getppid()):
        raise DataWorkerError(
            "A process that prepares batches imports your script, and must "
            f"not train. Received: {what} while the script was imported by "
            f"process {os.getpid()}. {_GUARD}"
        )


_GUARD = (
    "Put what is not an import, a function or a class below "
    '`if __name__ == "__main__":`.'
)


class Threads:
    """Prepares batches in threads that share the dataset.

    Args:
        dataset: The user's dataset.
    """

    # What is prepared while the dataset changes may be of either state.
    isolated = False

    def __init__(self, dataset):
        self._dataset = dataset
        self._executor = concurrent.futures.ThreadPoolExecutor(dataset.workers)

    def start(self) -> None:
        """Returns when the first worker can prepare batches."""

    def renew(self) -> bool:
        """Shows the workers the dataset as it is now.

        Returns:
            Whether batches prepared before are out of date.
        """
        return False

    def submit(self, index: int) -> concurrent.futures.Future:
        """Asks for the batch at `index`."""
        return self._executor.submit(self._dataset.__getitem__, index)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        # After an error nobody waits for a batch that may never come.
        self._executor.shutdown(wait=kind is None, cancel_futures=True)


class Processes:
    """Prepares batches in processes that have a copy of the dataset.

    Args:
        dataset: The user's dataset.
        environment: What is set in the environment of each process.

    Raises:
        DataWorkerError: if the dataset cannot be sent to another process.
    """

    isolated = True

    def __init__(self, dataset, environment):
        self._dataset = dataset
        self._pickled = b""
        self.renew()
        count = dataset.workers
        self._executor = concurrent.futures.ThreadPoolExecutor(count)
        self._all, self._idle = [], queue.SimpleQueue()
        try:
            for _ in range(count):
                self._all.append(_Worker(environment))
                self._idle.put(self._all[-1])
        except BaseException:
            self._stop()
            raise
        self._first = [
            self._executor.submit(self._ask, None) for _ in self._all
        ]

    def start(self) -> None:
        """Returns when the first worker can prepare batches.

        Raises:
            DataWorkerError: if it cannot.
        """
        done = self._wait(_PATIENCE_SECONDS)
        if not done:
            logger.warning(
                "the processes that prepare batches have been importing your "
                "script for %d seconds. If it trains meanwhile: %s",
                _PATIENCE_SECONDS,
                _GUARD,
            )
            done = self._wait(None)
        try:
            done.pop().result()
        except DataWorkerError:
            raise
        except Exception as error:
            name = type(self._dataset).__name__
            raise DataWorkerError(
                "A `PyDataset` with `use_multiprocessing=True` is loaded by "
                "processes that import its class. Received: "
                f"{name}, for which that raised {_named(error)}. Define the "
                "class at the top level of a module that imports without "
                "errors; in a notebook, of a file beside it. Threads load "
                f"nothing: `{_with_threads(self._dataset)}`."
            ) from error

    def _wait(self, timeout):
        return concurrent.futures.wait(
            self._first, timeout, concurrent.futures.FIRST_COMPLETED
        ).done

    def renew(self) -> bool:
        """Sends the workers the dataset as it is now.

        Returns:
            Whether batches prepared before are out of date.
        """
        try:
            pickled = pickle.dumps(self._dataset, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            name = type(self._dataset).__name__
            raise DataWorkerError(
                "A `PyDataset` with `use_multiprocessing=True` is sent to "
                f"other processes, so it must be picklable. Received: {name}, "
                f"for which pickle raised {_named(error)}. Define the class at "
                "the top level of a module, and open files, locks and "
                "connections in `__getitem__`; or use threads: "
                f"`{_with_threads(self._dataset)}`."
            ) from error
        changed = pickled != self._pickled
        if changed:
            self._pickled = pickled
        return changed

    def submit(self, index: int) -> concurrent.futures.Future:
        """Asks for the batch at `index` of the dataset as last renewed."""
        return self._executor.submit(self._ask, index)

    def _ask(self, index):
        worker = self._idle.get()
        try:
            return worker.ask(self._pickled, index)
        finally:
            self._idle.put(worker)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self._stop()

    def _stop(self):
        # Whatever they still prepare, nobody will ask for it.
        for worker in self._all:
            worker.stop()
        self._executor.shutdown(wait=True, cancel_futures=True)
        for worker in self._all:
            worker.close()


class _Worker:
    """One process, for one thread at a time."""

    def __init__(self, environment):
        context = multiprocessing.get_context("spawn")
        self._connection, other_end = context.Pipe()
        # A daemon ends with this process whatever ends this process's code.
        self._process = context.Process(
            target=_serve,
            args=(other_end,),
            name="keras-parallel data worker",
            daemon=True,
        )
        self._started = False
        self._sent = None
        with _environment({**environment, _STARTING: str(os.getpid())}):
            self._process.start()
        # Held here too, the end would stay open when the process dies.
        other_end.close()

    def ask(self, pickled, index):
        """Returns the batch at `index`, of the dataset that was pickled."""
        try:
            if not self._started:
                self._connection.recv()
                self._started = True
            error = None
            if self._sent is not pickled:
                self._connection.send_bytes(pickled)
                error, _ = self._connection.recv()
            batch = None
            if error is None:
                self._sent = pickled
                if index is not None:
                    self._connection.send(index)
                    error, batch = self._connection.recv()
        except (EOFError, ConnectionError) as cause:
            raise self._death(index) from cause
        # Not above: it may be an `EOFError` of the user's.
        if error is not None:
            raise error
        return batch

    def _death(self, index):
        self._process.join(5.0)
        code = self._process.exitcode
        ended = f"a process that ended with {_exit_code(code)}"
        if not self._started:
            return DataWorkerError(
                "The processes that prepare batches import your script first. "
                f"Received: {ended} while it did; what it printed says why. "
                f"{_GUARD}"
            )
        task = f"prepared batch {index}"
        if index is None:
            task = "loaded the dataset"
        return DataWorkerError(
            "The processes that prepare batches live as long as the training. "
            f"Received: {ended} while it {task}. A signal is often "
            "that of a system out of memory: use fewer `workers`, or hold "
            "paths in the dataset where it holds arrays."
        )

    def stop(self):
        self._process.kill()

    def close(self):
        self._process.join()
        self._process.close()
        self._connection.close()


def _exit_code(code):
    if code is None or code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"


def _named(error):
    return f"{type(error).__name__}: {error}"


def _with_threads(dataset):
    name = type(dataset).__name__
    return f"{name}(..., workers={dataset.workers}, use_multiprocessing=False)"


@contextlib.contextmanager
def _environment(values):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# In the worker


def _serve(connection):
    """Answers what a `_Worker` asks, until the other end is closed."""
    os.environ.pop(_STARTING, None)
    # Ctrl-C reaches all processes of a terminal. The first one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    dataset: typing.Any = None
    try:
        connection.send(None)
        while True:
            request = connection.recv_bytes()
            try:
                request = pickle.loads(request)
                if isinstance(request, int):
                    answer = None, dataset[request]
                else:
                    dataset, answer = request, (None, None)
                answer = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                answer = pickle.dumps((_portable(error), None))
            connection.send_bytes(answer)
    except (EOFError, ConnectionError):
        return


def _portable(error):
    """The exception as it arrives whole, with the traceback as a note."""
    note = f"In a process that prepares batches:\n{traceback.format_exc()}"
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(_named(error))
    error.add_note(note)
    return error
