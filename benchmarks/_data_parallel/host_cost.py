"""Host cost: `fit` with the compiled step replaced by one that does nothing.

The step runs once, for what it logs; afterwards it hands back the state that it
is given. What is left is the loop, the reading and placing of batches, and the
passing on of the state.
"""

import dataclasses

from _measuring import ratios
from _data_parallel.peers import KERAS_PAIRS
from _data_parallel.peers import PEERS
from _data_parallel.workloads import WORKLOADS

LIMIT, GOAL = 0.75, 0.5


def measure(session, workload=WORKLOADS["host-bound"]):
    """Measures ours and Keras's, on one device and on several."""
    keys = [k for pair in KERAS_PAIRS for k in pair[:2]]
    with session.workers(keys) as workers:
        for key in list(workers):
            session.ask(
                workers,
                key,
                "host",
                "start",
                workload=dataclasses.asdict(workload),
            )
            session.ask(workers, key, "host", "without_step")
        session.data["host"] = session.rounds_of(workers, "host")


def table(session):
    """Microseconds per step."""
    rows = []
    for ours, theirs, _ in reversed(KERAS_PAIRS):
        if not {ours, theirs} <= set(session.peers):
            continue
        found = session.data["host"]
        devices = session.devices if PEERS[ours].parallel else 1
        absent = [k for k in (ours, theirs) if k not in found]
        if absent:
            why = session.why_not(absent[0], "host")
            rows.append([devices, PEERS[theirs].title, "-", "-", why, "", ""])
            continue
        seconds = [
            {r: reply["seconds"] for r, reply in found[k].items()}
            for k in (ours, theirs)
        ]
        rows.append(
            [
                devices,
                PEERS[theirs].title,
                *(ratios.spread(list(s.values()), 1e-6, 0) for s in seconds),
                *ratios.verdict(ratios.paired(*seconds), LIMIT),
            ]
        )
    header = ["devices", "peer", "ours, us", "peer, us", "ratio [95 %]"]
    return ratios.table([*header, "at most", "held"], rows)
