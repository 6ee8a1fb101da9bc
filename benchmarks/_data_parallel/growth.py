"""How cost grows: with devices, with variables, with rows of a batch."""

import dataclasses

from _data_parallel.workloads import WORKLOADS
from _data_parallel.workloads import stack

# Steps of a turn, so that one takes about a second at most.
_STEPS = {"mlp": 12, "cnn": 2, "stack": 60}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is varied; the small ones are for `--quick`."""

    devices: tuple[int, ...] = (1, 2, 4, 8)
    batches: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    cnn_batches: tuple[int, ...] = (32, 64, 128)
    layers: tuple[int, ...] = (5, 15, 50, 150, 500)


QUICK = Sizes((1, 2), (32, 64), (16, 32), (2, 4))


@dataclasses.dataclass(frozen=True)
class Case:
    """One workload on a number of devices, and the tables it belongs to."""

    workload: object
    devices: int
    tables: tuple[str, ...]


def cases(sizes):
    """All of them, those of one number of devices together."""
    mlp, cnn = WORKLOADS["mlp"], WORKLOADS["cnn"]
    largest = {"mlp": max(sizes.batches), "cnn": max(sizes.cnn_batches) * 2}
    fixed = {"mlp": min(256, largest["mlp"]), "cnn": min(256, largest["cnn"])}
    found = []
    for n in sizes.devices:
        for workload in (mlp, cnn):
            tables = ["devices"]
            batch = fixed[workload.name]
            if workload is mlp and n == 2:
                tables.append("batches")
            found.append(Case(_sized(workload, batch), n, tuple(tables)))
    # One device also gives what a replica's share of the rows costs alone.
    for n in (1, 2):
        found += [
            Case(_sized(mlp, batch), n, ("batches",))
            for batch in sizes.batches
            if batch != fixed["mlp"]
        ]
        found += [
            Case(stack(layers, 32 * n, _STEPS["stack"]), n, ("variables",))
            for layers in sizes.layers
        ]
    found += [Case(_sized(cnn, batch), 1, ()) for batch in sizes.cnn_batches]
    return sorted(found, key=lambda case: case.devices)


def _sized(workload, batch):
    return workload.at_batch(batch, _STEPS[workload.name])


def measure(session, sizes):
    """Measures all cases; each is one entry of `session.data["growth"]`."""
    found = session.data["growth"] = []
    everything = cases(sizes)
    session = dataclasses.replace(
        session, rounds=min(session.rounds, 4), seconds=0
    )
    for devices in sizes.devices:
        keys = (
            ("ours-1", "keras")
            if devices == 1
            else ("ours", "keras-distribution")
        )
        with session.workers(keys, devices) as workers:
            for case in everything:
                if case.devices == devices:
                    found.append(_measured(session, workers, case))
    return session


def _measured(session, workers, case):
    given = dataclasses.asdict(case.workload)
    what = f"{case.workload.name} {case.workload.batch} on {case.devices}"
    started = {
        key: session.ask(workers, key, what, "start", workload=given)
        for key in list(workers)
    }
    turns = session.rounds_of(workers, what)
    return {
        "workload": given,
        "devices": case.devices,
        "tables": case.tables,
        "started": started,
        "turns": turns,
    }
