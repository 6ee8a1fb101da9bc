"""How cost grows: with devices, with variables, with rows of a batch."""

import dataclasses
import statistics

from _measuring import ratios
from _data_parallel.workloads import WORKLOADS
from _data_parallel.workloads import Workload
from _data_parallel.workloads import stack

# Steps of a turn, so that one takes about a second at most.
_STEPS = {"mlp": 12, "cnn": 2, "stack": 60}
# Rounds of each case.
ROUNDS = 4
# How far a prediction may be off.
LIMIT = 0.2
TABLES = ("devices", "variables", "batches")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is varied; what is in no table tells a replica's share alone.

    Args:
        devices: Numbers of devices.
        batches: Rows of a batch of the MLP, on 2 devices.
        mlp: Rows of a batch of the MLP where devices are varied.
        cnn: The same of the CNN.
        layers: Layers of a stack, of two variables each, on 2 devices.
    """

    devices: tuple[int, ...] = (1, 2, 4, 8)
    batches: tuple[int, ...] = (32, 64, 128, 512, 1024)
    mlp: int = 256
    cnn: int = 128
    layers: tuple[int, ...] = (5, 15, 50, 150, 500)


QUICK = Sizes((1, 2), (8, 32), 16, 16, (2, 4, 8))


@dataclasses.dataclass(frozen=True)
class Case:
    """One workload on a number of devices, and the tables it belongs to."""

    workload: Workload
    devices: int
    tables: tuple[str, ...] = ()


def cases(sizes):
    """All of them, those of one number of devices together."""
    mlp = _sized("mlp", sizes.mlp)
    both = ("devices", "batches")
    found = [Case(mlp, n, both) for n in sizes.devices]
    found += [
        Case(_sized("cnn", sizes.cnn), n, ("devices",)) for n in sizes.devices
    ]
    found += [
        Case(_sized("cnn", sizes.cnn // n), 1) for n in sizes.devices if n > 1
    ]
    smallest, *others = (stack(layers, 32, 60) for layers in sizes.layers)
    found += [Case(smallest, n, TABLES[:2]) for n in sizes.devices]
    for n in (1, 2):
        found += [Case(w, n, ("variables",)) for w in others]
        found += [
            Case(_sized("mlp", batch), n, ("batches",))
            for batch in sizes.batches
        ]
    return sorted(found, key=lambda case: case.devices)


def _sized(name, batch):
    return WORKLOADS[name].at_batch(batch, _STEPS[name])


def measure(session, sizes):
    """Measures all cases; each is one entry of `session.data["growth"]`."""
    found = session.data["growth"] = []
    for devices in sizes.devices:
        keys = _ONE if devices == 1 else _SEVERAL
        with session.workers(keys, devices) as workers:
            for case in cases(sizes):
                if case.devices == devices:
                    found.append(_measured(session, workers, case))


_ONE = ("ours-1", "keras")
_SEVERAL = ("ours", "keras-distribution")


def _measured(session, workers, case):
    w = case.workload
    given = dataclasses.asdict(w)
    what = f"{w.name} {w.layers or ''} {w.batch} on {case.devices}"
    started = {
        key: session.ask(workers, key, what, "start", workload=given)
        for key in list(workers)
    }
    turns = session.rounds_of(workers, what, rounds=ROUNDS)
    return {
        "workload": given,
        "devices": case.devices,
        "tables": case.tables,
        "started": started,
        "turns": turns,
    }


def ours_of(entry):
    """What was measured of ours: a key of `started` and `turns`."""
    return _ONE[0] if entry["devices"] == 1 else _SEVERAL[0]


def has_ours(entry):
    """Whether ours was measured."""
    return ours_of(entry) in entry["turns"]


def median_of(entry, field="seconds"):
    """The median of ours."""
    turns = entry["turns"][ours_of(entry)].values()
    return statistics.median(reply[field] for reply in turns)


def title_of(entry):
    w = entry["workload"]
    variables = f", {w['layers'] * 2} variables" if w["layers"] else ""
    return f"{w['name']}{variables}, batch {w['batch']}"


def tables(session, predictions):
    """One Markdown table for each thing that is varied.

    Args:
        session: The session.
        predictions: For each entry of the growth, its `Prediction`, or `None`
            where the model was calibrated with it.
    """
    lines = []
    for table in TABLES:
        rows = [
            _row(entry, prediction)
            for entry, prediction in zip(session.data["growth"], predictions)
            if table in entry["tables"] and has_ours(entry)
        ]
        header = ["workload", "devices", "ours, ms", "Keras's, ms"]
        header += ["ratio [95 %]", "predicted, ms", "error"]
        lines += ["", f"### By {table}", "", *ratios.table(header, rows)]
    return lines


def _row(entry, prediction):
    keys = _ONE if entry["devices"] == 1 else _SEVERAL
    seconds = [
        {r: t["seconds"] for r, t in entry["turns"].get(key, {}).items()}
        for key in keys
    ]
    shown = [
        ratios.spread(list(s.values()), 1e-3, 2) if s else "not run"
        for s in seconds
    ]
    ratio = ratios.paired(*seconds)
    cells = [title_of(entry), entry["devices"], *shown]
    cells.append(ratios.verdict(ratio, None)[0] if ratio else "-")
    if prediction is None:
        return [*cells, "calibrated with it", ""]
    predicted = prediction.seconds
    error = predicted / median_of(entry) - 1
    return [*cells, f"{predicted * 1e3:.2f}", f"{error:+.0%}"]


def summary(growth, predictions):
    """How far the predictions were off."""
    errors = [
        abs(prediction.seconds / median_of(entry) - 1)
        for entry, prediction in zip(growth, predictions)
        if prediction is not None and entry["tables"]
    ]
    if not errors:
        return []
    within = sum(error <= LIMIT for error in errors)
    return [
        f"Of {len(errors)} steps that the model was not calibrated with, "
        f"{within} are predicted within {LIMIT:.0%}; the farthest is "
        f"{max(errors):.0%} off."
    ]
