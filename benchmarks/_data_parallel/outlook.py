"""What 64 and 1,024 devices would do. Predictions, not measured."""

from _measuring import ratios
from _data_parallel.calibration import collectives_of
from _data_parallel.calibration import variables_of
from _data_parallel.growth import title_of

from keras_parallel.planning.cost import Host
from keras_parallel.planning.cost import Link
from keras_parallel.planning.cost import predict

# Assumed: bytes per second and seconds of latency.
_LINKS = {
    "10 Gb/s, 50 us": Link(1.25e9, 50e-6),
    "400 Gb/s, 5 us": Link(50e9, 5e-6),
}
_DEVICES = (1, 8, 64, 1024)


def table(model, growth):
    """Each device like this host alone, with a batch of its own size."""
    rows = []
    # Each host drives its own device.
    host = Host(model.host.step, model.host.variable)
    varied = [e for e in growth if "devices" in e["tables"]]
    on_several = {
        title_of(e): collectives_of(e) for e in varied if e["devices"] > 1
    }
    for entry in varied:
        if entry["devices"] != 1 or title_of(entry) not in on_several:
            continue
        for name, link in _LINKS.items():
            made = [
                predict(
                    n,
                    compute=model.compute(entry),
                    collectives=on_several[title_of(entry)],
                    link=link,
                    host=host,
                    num_variables=variables_of(entry),
                )
                for n in _DEVICES
            ]
            rows += [
                [
                    title_of(entry) + " on each device",
                    name,
                    p.num_devices,
                    f"{p.seconds * 1e3:.1f}",
                    f"{p.communication / p.seconds:.0%}",
                    f"{made[0].seconds / p.seconds:.0%}",
                ]
                for p in made[1:]
            ]
    header = ["workload", "link", "devices", "ms a step", "exchange"]
    header.append("of perfect scaling")
    return ratios.table(header, rows)
