"""The constants of the cost model, from some of the cases of growth.

The rest is predicted with them, and held against what was measured.
"""

import dataclasses
import os

import numpy as np
from _data_parallel.growth import has_ours
from _data_parallel.growth import median_of
from _data_parallel.growth import ours_of

from keras_parallel.planning import Collective
from keras_parallel.planning.cost import Compute
from keras_parallel.planning.cost import Host
from keras_parallel.planning.cost import Link
from keras_parallel.planning.cost import predict


@dataclasses.dataclass(frozen=True)
class Model:
    """The cost model with its constants.

    Args:
        shares: For each workload, what one device alone took: points of
            (rows, seconds, seconds of cores), by rows.
        link: The memory through which virtual devices exchange.
        host: What the host does.
    """

    shares: dict
    link: Link
    host: Host

    def prediction(self, entry):
        """For one case on the virtual devices of this host."""
        n = entry["devices"]
        return predict(
            n,
            compute=self.compute(entry, cores=os.cpu_count()),
            collectives=collectives_of(entry),
            link=self.link,
            host=self.host,
            num_variables=variables_of(entry),
            num_crossing=crossing_of(entry),
        )

    def compute(self, entry, cores=None):
        """What one replica computes."""
        shares = self.shares.get(entry["workload"]["name"])
        if shares is None:
            return Compute(0.0)
        rows = entry["workload"]["batch"] / entry["devices"]
        return Compute(*(_between(rows, shares, i) for i in (1, 2)), cores)


def calibrated(growth):
    """The model, and the positions of the cases that it was made with."""
    cases = {i: entry for i, entry in enumerate(growth) if has_ours(entry)}
    used = set()

    def chosen(name, devices, select):
        """Some of the cases of a workload, which are sorted by size."""
        found = sorted(
            (
                i
                for i, entry in cases.items()
                if entry["workload"]["name"] == name
                and entry["devices"] == devices
            ),
            key=lambda i: (
                cases[i]["workload"]["layers"],
                cases[i]["workload"]["batch"],
            ),
        )
        picked = sorted(set(select(found)), key=found.index)
        used.update(picked)
        return [cases[i] for i in picked]

    # The host on one device: the time of a stack is nearly all of that kind.
    stacks = chosen("stack", 1, _every_other)
    step, variable = _fitted(
        [[1, variables_of(e)] for e in stacks], list(map(median_of, stacks))
    )
    host = Host(step, variable)
    shares = {
        name: _share(chosen(name, 1, _every_other), host)
        for name in ("mlp", "cnn")
    }
    most = max(e["devices"] for e in cases.values())
    several = [
        *chosen("stack", 2, _every_other),
        *chosen("stack", most, _ends),
        *chosen("mlp", 2, _ends),
        *chosen("mlp", most, _ends),
    ]
    return _with_exchange(Model(shares, _NOTHING, host), several), used


def _every_other(found):
    return [*found[::2], *found[-1:]]


def _ends(found):
    return [*found[:1], *found[-1:]]


# Trainable bytes up to which the engine joins arrays.
_JOINED = 2**20
_NOTHING = Link(1e30, 0.0, shared=True)


def collectives_of(entry):
    """What crosses in a step, as planned: nothing on one device."""
    planned = entry["started"][ours_of(entry)]["collectives"]
    return [Collective(**collective) for collective in planned]


def variables_of(entry):
    return entry["started"][ours_of(entry)]["variables"]


def crossing_of(entry):
    """How many arrays cross: gradients of small models do as one."""
    started = entry["started"][ours_of(entry)]
    if started["trainable_bytes"] <= _JOINED:
        return 1
    return started["trainable_variables"]


def _share(entries, host):
    """What a replica computes, without the host's part."""
    fields = ("seconds", "core_seconds")
    return [
        (
            e["workload"]["batch"],
            *(
                max(median_of(e, f) - host.on(1, variables_of(e)), 0.0)
                for f in fields
            ),
        )
        for e in entries
    ]


def _between(rows, points, field):
    """On the straight line between points, or on the end ones going on."""
    if len(points) == 1:
        return points[0][field] * rows / points[0][0]
    following = [i for i, point in enumerate(points) if point[0] >= rows]
    right = max(1, following[0] if following else len(points) - 1)
    left, right = points[right - 1], points[right]
    slope = (right[field] - left[field]) / (right[0] - left[0])
    return max(left[field] + slope * (rows - left[0]), 0.0)


def _with_exchange(model, entries):
    """What is left of the time on several devices tells the rest."""
    columns, values, weights = [], [], []
    # The cost is linear in each constant: its factor is the cost at 1.
    for entry in entries:
        ones = [
            dataclasses.replace(model, link=Link(1.0, 0.0, shared=True)),
            dataclasses.replace(model, link=Link(1e30, 1.0, shared=True)),
            dataclasses.replace(
                model, host=dataclasses.replace(model.host, device=1.0)
            ),
            dataclasses.replace(
                model, host=dataclasses.replace(model.host, array=1.0)
            ),
            dataclasses.replace(
                model, host=dataclasses.replace(model.host, meeting=1.0)
            ),
        ]
        without = model.prediction(entry).seconds
        columns.append([m.prediction(entry).seconds - without for m in ones])
        values.append(median_of(entry) - without)
        weights.append(1 / median_of(entry))
    found = _fitted(columns, values, weights)
    inverse, latency, device, array, meeting = found
    return dataclasses.replace(
        model,
        link=Link(1 / max(inverse, 1e-30), latency, shared=True),
        host=dataclasses.replace(
            model.host, device=device, array=array, meeting=meeting
        ),
    )


def _fitted(columns, values, weights=None):
    """Least squares of relative errors, with no constant below 0.

    A constant that would be negative is 0, and the others are fitted again.
    """
    values = np.asarray(values, float)
    weights = 1 / values if weights is None else np.asarray(weights)
    columns = np.asarray(columns, float) * weights[:, None]
    kept = list(range(columns.shape[1]))
    while kept:
        scale = np.abs(columns[:, kept]).max(0) + 1e-300
        found = np.linalg.lstsq(
            columns[:, kept] / scale, values * weights, rcond=None
        )[0]
        found = found / scale
        if found.min() >= 0:
            break
        del kept[int(found.argmin())]
    result = np.zeros(columns.shape[1])
    if kept:
        result[kept] = found
    return result.tolist()
