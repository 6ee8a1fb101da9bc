"""Worker processes, as the parent sees them."""

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import threading

from _data_parallel.peers import HERE
from _data_parallel.peers import SOURCES

# A worker that takes longer hangs, and is ended.
LIMIT_SECONDS = 600

_KEPT = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "VIRTUAL_ENV")


class WorkerError(Exception):
    """A worker said that it failed, or ended."""


class Worker:
    """A process of one peer. Use it in a `with` statement.

    Args:
        peer: Which peer.
        python: The interpreter of its environment.
        devices: How many devices it trains on.
    """

    def __init__(self, peer, python, devices):
        self.peer = peer
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [python, str(HERE / peer.script), peer.worker, str(devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=_environment(peer),
        )

    def ask(self, verb, **order):
        """Sends an order and waits for the reply."""
        alarm = threading.Timer(LIMIT_SECONDS, self._process.kill)
        alarm.start()
        try:
            print(json.dumps({"do": verb, **order}), file=self._process.stdin)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            alarm.cancel()
        if not line:
            raise WorkerError(f"it ended: {self._last_words()}")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def core_seconds(self):
        """What it and its children used of all cores so far."""
        return sum(map(_core_seconds, _family(self._process.pid)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _last_words(self):
        code = self._process.wait(20)
        if code < 0:
            return f"by signal {-code}"
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return (lines or ["no message"])[-1][:300]


def _environment(peer):
    # Nothing of the caller's settings for backends gets through.
    environment = {k: os.environ[k] for k in _KEPT if k in os.environ}
    environment |= {
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": peer.environment,
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if peer.worker == "ours":
        environment["PYTHONPATH"] = str(SOURCES)
    if peer.environment == "torch":
        # The ranks of one host; `torchrun` sets the second.
        environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return environment


def _family(pid):
    tasks = pathlib.Path(f"/proc/{pid}/task")
    children = [
        int(child)
        for task in _listed(tasks)
        for child in _text(task / "children").split()
    ]
    return [pid, *(p for c in children for p in _family(c))]


def _core_seconds(pid):
    fields = _text(pathlib.Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    if not fields:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# A thread or a process may end while it is looked at.


def _listed(folder):
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(path):
    try:
        return path.read_text()
    except OSError:
        return ""
