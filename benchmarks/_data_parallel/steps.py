"""Step time, and with it compile time, memory and what is exchanged.

The workers of one workload are started one after the other, so that each
compiles alone; then they train in turn.
"""

import dataclasses

from _measuring import ratios
from _data_parallel.peers import KERAS_PAIRS
from _data_parallel.peers import PEERS
from _data_parallel.peers import STEP_PAIRS

_MIB = 2**20


def measure(session):
    """Measures all workloads; what was found goes into `session.data`."""
    for workload in session.workloads:
        found = session.data.setdefault(workload.name, {})
        with session.workers(PEERS) as workers:
            _start(session, workers, workload, found)
            found["turns"] = session.rounds_of(workers, workload.name)
            found["programs"] = {
                key: session.ask(workers, key, workload.name, "program")
                for key in ("ours", "keras-distribution")
                if key in workers
            }
        for _ in range(session.fresh):
            _start_fresh(session, workload, found)


def _start(session, workers, workload, found):
    for key in list(workers):
        session.say(f"{workload.name}: {key} compiles")
        started = session.ask(
            workers,
            key,
            workload.name,
            "start",
            workload=dataclasses.asdict(workload),
        )
        if started is None:
            continue
        session.ask(workers, key, workload.name, "turn")
        memory = session.ask(workers, key, workload.name, "memory")
        if memory is not None:
            of_peer = found.setdefault("fresh", {}).setdefault(key, {})
            of_peer[0] = started | memory


def _start_fresh(session, workload, found):
    fresh = found.setdefault("fresh", {})
    number = 1 + max((max(of) for of in fresh.values()), default=0)
    for key in [k for pair in KERAS_PAIRS for k in pair[:2]]:
        with session.workers([key]) as workers:
            again = {}
            _start(session, workers, workload, again)
            for reply in again.get("fresh", {}).get(key, {}).values():
                fresh.setdefault(key, {})[number] = reply


def step_table(session):
    """Milliseconds per step, and the ratio to each peer."""
    rows = []
    for workload in session.workloads:
        turns = session.data[workload.name]["turns"]
        seconds = {
            key: {r: reply["seconds"] for r, reply in of.items()}
            for key, of in turns.items()
        }
        rows += _rows(session, workload.name, STEP_PAIRS, seconds, 1e-3)
    return ratios.table(_header("ms a step"), rows)


def compile_table(session):
    """Seconds to compile the first step."""
    pairs = [(ours, theirs, 1.1) for ours, theirs, _ in KERAS_PAIRS]
    return _fresh_table(session, pairs, "compile_seconds", 1, "seconds", 2)


def memory_table(session):
    """Peak memory of a fresh process after its first turn."""
    pairs = [(ours, theirs, 1.1) for ours, theirs, _ in KERAS_PAIRS]
    pairs += [(ours, theirs, None) for ours, theirs, _ in STEP_PAIRS[2:]]
    return _fresh_table(session, pairs, "bytes", _MIB, "MiB", 0)


def _fresh_table(session, pairs, field, unit, title, digits):
    rows = []
    for workload in session.workloads:
        fresh = session.data[workload.name].get("fresh", {})
        values = {
            key: {r: reply[field] for r, reply in of.items()}
            for key, of in fresh.items()
        }
        rows += _rows(session, workload.name, pairs, values, unit, digits)
    return ratios.table(_header(title), rows)


def _header(unit):
    return [
        "workload",
        "ours",
        "peer",
        f"ours, {unit}",
        f"peer, {unit}",
        "ratio [95 %]",
        "at most",
        "held",
    ]


def _rows(session, name, pairs, values, unit, digits=1):
    rows = []
    for ours, theirs, limit in pairs:
        if not {ours, theirs} <= set(session.peers):
            continue
        titles = [name, PEERS[ours].title, PEERS[theirs].title]
        absent = [k for k in (ours, theirs) if k not in values]
        if absent:
            why = session.why_not(absent[0], name)
            rows.append([*titles, *(["-"] * 2), why, "", ""])
            continue
        pair = ratios.paired(values[ours], values[theirs])
        shown = [
            ratios.spread(list(values[k].values()), unit, digits)
            for k in (ours, theirs)
        ]
        rows.append([*titles, *shown, *ratios.verdict(pair, limit)])
    return rows


def exchange_table(session):
    """What the compiled step exchanges, from the text of the compiler."""
    rows = []
    for workload in session.workloads:
        found = session.data[workload.name]
        for key, program in found["programs"].items():
            if program is None:
                continue
            trainable = found["fresh"][key][0]["trainable_bytes"]
            all_of_them = program["collectives"]
            largest = max((c["bytes"] for c in all_of_them), default=0)
            kinds = sorted({c["kind"] for c in all_of_them})
            rows.append(
                [
                    workload.name,
                    PEERS[key].title,
                    ", ".join(
                        f"{sum(c['kind'] == k for c in all_of_them)} {k}"
                        for k in kinds
                    )
                    or "none",
                    trainable,
                    largest,
                    f"{largest / trainable:.4f}",
                    sum(c["bytes"] for c in all_of_them),
                ]
            )
    header = [
        "workload",
        "peer",
        "collectives",
        "trainable bytes",
        "bytes of the largest",
        "ratio (ours at most 1.02)",
        "bytes of all",
    ]
    return ratios.table(header, rows)
