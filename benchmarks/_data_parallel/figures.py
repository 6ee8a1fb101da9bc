"""The plot of how cost grows: measured, and what the model says."""

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from _data_parallel.growth import LIMIT
from _data_parallel.growth import has_ours
from _data_parallel.growth import median_of
from matplotlib.ticker import LogLocator
from matplotlib.ticker import NullFormatter

_PANELS = {
    "devices": ("virtual devices", lambda e: e["devices"]),
    "variables": ("variables", lambda e: e["workload"]["layers"] * 2),
    "batches": ("rows of a batch", lambda e: e["workload"]["batch"]),
}


def draw(growth, model, used, path):
    """Draws the cases into four panels and writes them to `path`."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
    for ax, table in zip(axes.flat, _PANELS):
        _panel(ax, table, growth, model)
    _against(axes[1, 1], growth, model, used)
    figure.suptitle("One training step, keras-parallel on virtual CPU devices")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _panel(ax, table, growth, model):
    label, size = _PANELS[table]
    series = {}
    for entry in growth:
        if table in entry["tables"] and has_ours(entry):
            name = entry["workload"]["name"]
            if table != "devices":
                devices = entry["devices"]
                name += f", {devices} device{'s' * (devices > 1)}"
            series.setdefault(name, []).append(entry)
    # A line needs two points.
    series = {k: v for k, v in series.items() if len(v) > 1}
    for number, (name, entries) in enumerate(series.items()):
        entries = sorted(entries, key=size)
        sizes = [size(e) for e in entries]
        color = f"C{number}"
        ax.plot(
            sizes,
            [median_of(e) * 1e3 for e in entries],
            "o",
            color=color,
            label=name,
        )
        ax.plot(
            sizes,
            [model.prediction(e).seconds * 1e3 for e in entries],
            "--",
            color=color,
        )
    ax.plot([], [], "ko", label="measured")
    ax.plot([], [], "k--", label="cost model")
    ax.set(xscale="log", yscale="log", xlabel=label, ylabel="ms a step")
    ticks = sorted({size(e) for es in series.values() for e in es})
    ax.set_xticks(ticks, map(str, ticks))
    ax.set_xticks([], minor=True)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_title(f"By {table}")
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small")


def _against(ax, growth, model, used):
    shown = {"calibrated with it": [], "predicted": []}
    for i, entry in enumerate(growth):
        if has_ours(entry) and (i in used or entry["tables"]):
            kind = "calibrated with it" if i in used else "predicted"
            pair = median_of(entry) * 1e3, model.prediction(entry).seconds * 1e3
            shown[kind].append(pair)
    both = [v for pairs in shown.values() for pair in pairs for v in pair]
    ends = [min(both) / 1.3, max(both) * 1.3]
    ax.fill_between(
        ends,
        [v * (1 - LIMIT) for v in ends],
        [v * (1 + LIMIT) for v in ends],
        alpha=0.15,
        color="gray",
        label=f"within {LIMIT:.0%}",
    )
    for (kind, pairs), mark in zip(shown.items(), ("x", "o")):
        if pairs:
            ax.plot(*zip(*pairs), mark, label=kind)
    ax.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        ylim=ends,
        xlabel="measured, ms a step",
        ylabel="cost model, ms a step",
        title="Model against measurement",
    )
    ax.grid(alpha=0.3)
    ax.legend(fontsize="small")
