"""Data parallelism beside its peers: time, memory, compilation, exchange.

    python benchmarks/data_parallel.py [--quick] [--json FILE] [--figures DIR]

Prints Markdown; what goes on is told on standard error. Each peer has a process
of its own, in an environment that is made in `benchmarks/.envs`. The parent
asks them in turn, in shuffled order, so that only one works at a time, and
compares what was measured in the same round. See benchmarks/README.md.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import sys

from _data_parallel import host_cost
from _data_parallel import steps
from _data_parallel.peers import PEERS
from _data_parallel.session import FAR_EVERY
from _data_parallel.session import Session
from _data_parallel.workloads import WORKLOADS
from _measuring import conditions
from _measuring import ratios
from _measuring.options import add_turns
from _measuring.options import names_in
from _measuring.options import set_unless_given
from _measuring.options import plain

QUESTIONS = ("steps", "host", "growth")
_QUICK_ROWS, _QUICK_BATCH = 64, 16


def main():
    options = _options()
    session = Session(
        peers=options.peers,
        workloads=[
            _sized(WORKLOADS[w], options.quick) for w in options.workloads
        ],
        devices=options.devices,
        rounds=options.rounds,
        seconds=options.seconds,
        fresh=options.fresh,
        here=options.here,
    )
    lines = []
    try:
        for section in _answer(session, options):
            lines += section
    finally:
        # What was measured before a mistake, or Ctrl-C, is not lost.
        print("\n".join([*_conditions(session), *lines]))
        if options.json:
            options.json.write_text(json.dumps(plain(session.data), indent=1))
    return 1 if session.not_run else 0


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--workloads", type=names_in(WORKLOADS), default=list(WORKLOADS))
    add("--peers", type=names_in(PEERS), default=list(PEERS))
    add("--questions", type=names_in(QUESTIONS), default=list(QUESTIONS))
    add("--devices", type=int, default=2, help="of the parallel peers")
    add_turns(parser)
    add("--fresh", type=int, help="further processes for compile time")
    add("--quick", action="store_true", help="tiny, to see that all runs")
    add("--here", action="store_true", help="make no environments")
    add("--json", type=pathlib.Path, help="file for all that was measured")
    add("--figures", type=pathlib.Path, help="folder for the plot of growth")
    options = parser.parse_args()
    rounds, seconds, fresh = (2, 0.0, 0) if options.quick else (9, 60.0, 2)
    set_unless_given(options, rounds=rounds, seconds=seconds, fresh=fresh)
    return options


def _sized(workload, quick):
    if not quick:
        return workload
    return dataclasses.replace(
        workload, rows=_QUICK_ROWS, batch=_QUICK_BATCH, epochs=1
    )


def _answer(session, options):
    """The sections of the report, each as soon as it is there."""
    if "steps" in options.questions:
        steps.measure(session)
        for title, table in (
            ("Step time", steps.step_table),
            ("Compile time", steps.compile_table),
            ("Peak memory of the host", steps.memory_table),
            ("What the compiled step exchanges", steps.exchange_table),
        ):
            yield ["", f"## {title}", "", *table(session)]
    if "host" in options.questions:
        host_cost.measure(
            session, _sized(WORKLOADS["host-bound"], options.quick)
        )
        yield ["", "## Host cost per step", "", *host_cost.table(session)]
    if "growth" in options.questions:
        yield _growth(session, options)


def _growth(session, options):
    # These need the library and NumPy, and matplotlib for the plot. The
    # library would say which backend it picks; the parent uses none.
    os.environ.setdefault("KERAS_BACKEND", "jax")
    from _data_parallel import calibration
    from _data_parallel import growth
    from _data_parallel import outlook

    if not {"ours", "ours-1"} <= set(session.peers):
        session.missing("ours", "growth", "needs the peers ours and ours-1")
        return []
    growth.measure(session, growth.QUICK if options.quick else growth.Sizes())
    found = session.data["growth"]
    model, used = calibration.calibrated(found)
    predictions = [
        None
        if i in used or not growth.has_ours(entry)
        else model.prediction(entry)
        for i, entry in enumerate(found)
    ]
    if options.figures:
        from _data_parallel import figures

        options.figures.mkdir(parents=True, exist_ok=True)
        figures.draw(found, model, used, options.figures / "growth.png")
    return [
        "",
        "## How cost grows",
        *growth.tables(session, predictions),
        "",
        f"Constants: {model.link}, {model.host}, shares {model.shares}.",
        *growth.summary(found, predictions),
        "",
        "## Prediction, not measured: many devices",
        "",
        "Each device computes as this host does on one device, has a batch of",
        "the same size of its own, and a host that drives it. Links assumed.",
        "",
        *outlook.table(model, found),
    ]


def _conditions(session):
    idle = f"{statistics.median(session.idle):.1%}" if session.idle else "-"
    versions = ", ".join(
        f"{k} {v}" for k, v in sorted(session.versions.items())
    )
    facts = conditions.of_machine() | {
        "packages": versions,
        "devices": f"{session.devices} virtual devices or processes on the CPU",
        "rounds": f"at least {session.rounds}, and as many as begin in "
        f"{session.seconds:.0f} s; MirroredStrategy and DDP in every "
        f"{FAR_EVERY}rd",
        "threads": "as each system chooses, with PJRT_NPROC = 2 (n + 1) for "
        "both JAX peers on n devices and one thread for each DDP rank, as "
        "torchrun sets it",
        "BatchNormalization": "over the global batch on JAX; over each "
        "replica's rows with MirroredStrategy and DDP, their defaults",
        "cores used by idle workers": f"{idle} of one, median over turns",
    }
    lines = conditions.listed(facts)
    return ["# Data parallelism and its peers", "", *lines, "", *ratios.METHOD]


if __name__ == "__main__":
    sys.exit(main())
