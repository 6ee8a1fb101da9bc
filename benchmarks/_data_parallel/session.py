"""What all questions share: options, workers, and what could not run."""

import contextlib
import dataclasses
import random
import sys
import time

from _data_parallel.peers import PEERS
from _data_parallel.peers import EnvironmentError_
from _data_parallel.peers import python_of
from _data_parallel.working import Worker
from _data_parallel.working import WorkerError

# Peers that are far from ours take part in every third round.
FAR_EVERY = 3


@dataclasses.dataclass
class Session:
    """One run of the script.

    Args:
        peers: Keys of the peers that take part.
        workloads: The workloads.
        devices: Devices of the parallel peers.
        rounds: The least number of rounds.
        seconds: Further rounds are begun until so many have passed.
        fresh: Further fresh processes for compile time and memory.
        here: Whether all run in the interpreter that runs this.
    """

    peers: list
    workloads: list
    devices: int
    rounds: int
    seconds: float
    fresh: int
    here: bool

    def __post_init__(self):
        self.not_run = {}
        self.versions = {}
        self.idle = []
        self.data = {}
        self._order = random.Random(0)
        self._begun = time.monotonic()

    def say(self, line):
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        print(f"[{minutes}:{seconds:02}] {line}", file=sys.stderr, flush=True)

    def taking_part(self, keys=PEERS):
        return [k for k in keys if k in self.peers]

    @contextlib.contextmanager
    def workers(self, keys, devices=None):
        """Workers of those peers that can be had, by key, one start a time."""
        with contextlib.ExitStack() as stack:
            workers = {}
            for key in self.taking_part(keys):
                peer = PEERS[key]
                count = (devices or self.devices) if peer.parallel else 1
                try:
                    python = python_of(peer.environment, self.here, self.say)
                    worker = stack.enter_context(Worker(peer, python, count))
                    self.versions |= worker.ask("versions")
                except (EnvironmentError_, WorkerError) as error:
                    self.missing(key, "all", error)
                else:
                    workers[key] = worker
            yield workers

    def ask(self, workers, key, what, verb, **order):
        """The reply of a worker; `None`, and no worker, where it failed."""
        if key not in workers:
            return None
        others = [w for k, w in workers.items() if k != key]
        before = sum(w.core_seconds() for w in others)
        start = time.perf_counter()
        try:
            reply = workers[key].ask(verb, **order)
        except WorkerError as error:
            del workers[key]
            self.missing(key, what, error)
            return None
        elapsed = time.perf_counter() - start
        used = sum(w.core_seconds() for w in others) - before
        if verb == "turn" and others and elapsed > 0.2:
            self.idle.append(used / elapsed)
        return reply

    def rounds_of(self, workers, what, rounds=None):
        """Trains in turn, in an order that is shuffled anew in each round.

        Args:
            workers: By key; those that fail are taken out.
            what: What is measured, for progress and failures.
            rounds: How many rounds, if not as the session says.

        Returns:
            For each peer, from the number of the round to its reply.
        """
        replies = {key: {} for key in workers}
        # What the first runs still have to set up is not counted.
        for key in list(workers):
            self.ask(workers, key, what, "turn")
        begun, number = time.monotonic(), 0
        while number < min(rounds or self.rounds, self.rounds) or (
            rounds is None and time.monotonic() - begun < self.seconds
        ):
            keys = [
                k
                for k in workers
                if not PEERS[k].far or number % FAR_EVERY == 0
            ]
            self._order.shuffle(keys)
            for key in keys:
                reply = self.ask(workers, key, what, "turn")
                if reply is not None:
                    replies[key][number] = reply
            number += 1
            if not workers:
                break
        self.say(f"{what}: {number} rounds")
        return {key: of for key, of in replies.items() if of}

    def missing(self, key, what, error):
        self.not_run[key, what] = str(error)
        self.say(f"{key}, {what}: {error}")

    def why_not(self, key, what):
        """The cell of a peer that gave no number."""
        for scope in (what, "all"):
            if (key, scope) in self.not_run:
                return f"not run: {self.not_run[key, scope]}"
        return "not run"
