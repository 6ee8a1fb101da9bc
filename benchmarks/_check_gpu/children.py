"""Child processes: one for each part, ended when its time is over."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

from _check_gpu import findings

_CHILD = pathlib.Path(__file__).with_name("child.py")
_LINES_KEPT = 12
_UNKNOWN_FLAG = "XLA does not know one of its flags"

# XLA chooses among kernels by timing them, so that two compilations round
# differently; with this it does not. It is for comparisons only.
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


_running = set()
_over = threading.Event()


def end_all():
    """Ends all children, and those that would be started after them."""
    _over.set()
    for process in list(_running):
        _kill(process, True)


@dataclasses.dataclass
class Outcome:
    """What became of a child.

    Args:
        rows: The rows that it found.
        data: What it keeps for its parent.
        texts: What it wants printed.
        problem: Why it is not complete; empty if it is.
        log: The last lines that it printed.
        seconds: How long it took.
    """

    rows: list
    data: dict
    texts: list
    problem: str
    log: str
    seconds: float


def run(part, limit, tiny, options=None, environment=None, top=True):
    """Runs a part in a process of its own.

    Args:
        part: Its name.
        limit: Seconds after which it is ended.
        tiny: Whether sizes are the smallest.
        options: Arguments of the part.
        environment: The environment; this one if `None`.
        top: Whether it may have children, which end with it.
    """
    environment = os.environ if environment is None else environment
    order = json.dumps({"part": part, "tiny": tiny, "options": options or {}})
    outcome = _run(order, limit, environment, top)
    flags = environment.get("XLA_FLAGS", "")
    if outcome.problem == _UNKNOWN_FLAG and DETERMINISTIC in flags:
        without = {**environment, "XLA_FLAGS": flags.replace(DETERMINISTIC, "")}
        left = limit - outcome.seconds
        outcome = _run(order, left, without, top)
    return outcome


def _run(order, limit, environment, top):
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="check-gpu-") as folder:
        found = pathlib.Path(folder, "found.jsonl")
        log = pathlib.Path(folder, "log")
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, str(_CHILD), order, str(found)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=top,
            )
            _running.add(process)
            problem = _wait(process, 0 if _over.is_set() else limit, top)
            _running.discard(process)
        lines = log.read_text(errors="replace").strip().splitlines()
        rows, data, texts = findings.read(found)
    if problem and any("Unknown flag" in line for line in lines):
        problem = _UNKNOWN_FLAG
    elif problem == "error":
        problem = (lines or ["no message"])[-1][:400]
    seconds = time.perf_counter() - began
    log = "\n".join(lines[-_LINES_KEPT:])
    return Outcome(rows, data, texts, problem, log, seconds)


def _wait(process, limit, top):
    try:
        code = process.wait(max(limit, 0.1))
    except subprocess.TimeoutExpired:
        return f"ended after its {limit:.0f} s"
    finally:
        # The children of a part that was ended, or ended early, too.
        _end(process, top)
    if code < 0:
        return f"ended by signal {signal.Signals(-code).name}"
    return "error" if code else ""


def _end(process, top):
    _kill(process, top)
    process.wait()


def _kill(process, top):
    try:
        if top:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except ProcessLookupError:
        pass
