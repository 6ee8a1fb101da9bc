"""Memory of our training against plain Keras, each in a fresh process."""

from _check_gpu import children

RATIO = 1.1
_LIMIT = 60
_MIB = 2**20


def check(found, tiny, gpus):
    """The peak and what is held, for a model of weights and one of rows."""
    # Another model takes long to compile where nothing is large.
    for name in ("weights", "activations")[: 1 if tiny else 2]:
        outcomes = {
            who: _measured(name, who, tiny)
            for who in ("keras", "ours", *["all"] * (gpus > 1 and not tiny))
        }
        keras, ours = outcomes["keras"].data, outcomes["ours"].data
        for kind in ("peak", "held"):
            _judge(found, f"{name}: {kind} bytes on 1 GPU", kind, keras, ours)
        for who, outcome in outcomes.items():
            if outcome.problem:
                found.judge(f"{name}, {who}", outcome.problem, "it runs", False)
            elif who == "all":
                found.show(f"{name}: on {gpus} GPUs", _sizes(outcome.data))
        found.show(f"{name}: kp.plan on 1 GPU, total", _mib(ours.get("plan")))


def _measured(name, who, tiny):
    options = {"name": name, "who": who}
    return children.run("memory-of", _LIMIT, tiny, options, top=False)


def _judge(found, what, kind, keras, ours):
    if kind == "peak" and keras and keras.get(kind) is None:
        found.show(what, "this backend does not tell")
        return
    if not (keras.get(kind) and ours.get(kind)):
        found.judge(what, "not measured", f"at most {RATIO}", False)
        return
    ratio = ours[kind] / keras[kind]
    found.judge(
        what,
        f"{_mib(ours[kind])}, plain Keras {_mib(keras[kind])}: {ratio:.3f}",
        f"at most {RATIO}",
        ratio <= RATIO,
    )


def _sizes(data):
    return f"peak {_mib(data.get('peak'))}, held {_mib(data.get('held'))}"


def _mib(size):
    return "not told" if size is None else f"{size / _MIB:.1f} MiB"


def memory_of(found, tiny, name, who):
    """In a process of its own: trains, and says what the device held."""
    from _check_gpu import parallel
    from _measuring.turns import wait_for

    import keras_parallel as kp

    import numpy as np

    model, rows = _model(name, tiny)
    if who != "keras":
        count = 1 if who == "ours" else len(parallel.gpus())
        model = parallel.data_parallel(model, count)
        plan = kp.plan(model, batch_size=rows)
        found.keep(plan=max(share.total for share in plan.shares))
    shape = (4 * rows, *model.input_shape[1:])
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    y = np.zeros((len(x), 10), "float32")
    model.fit(x, y, batch_size=rows, epochs=2, verbose=0)
    wait_for(model)
    devices = parallel.jax_devices()
    found.keep(
        peak=_largest_peak(devices),
        held=max(map(_held, devices)),
    )


def _model(name, tiny):
    import keras
    from keras import layers

    if name == "weights":
        width, rows = (64, 16) if tiny else (4096, 256)
        inputs = x = keras.Input((width,))
        for _ in range(3):
            x = layers.Dense(width, activation="relu")(x)
    else:
        size, filters, rows = (8, 4, 16) if tiny else (64, 64, 256)
        inputs = x = keras.Input((size, size, 3))
        for _ in range(3):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10)(x))
    model.compile("adam", "mse")
    return model, rows


def _largest_peak(devices):
    peaks = [(d.memory_stats() or {}).get("peak_bytes_in_use") for d in devices]
    return None if None in peaks else max(peaks)


def _held(device):
    """Bytes of all arrays on a device, after training."""
    import jax

    # Several arrays may be views of one buffer.
    sizes = {}
    for array in jax.live_arrays(device.platform):
        for shard in array.addressable_shards:
            if shard.device == device and shard.data.nbytes:
                buffer = shard.data.unsafe_buffer_pointer()
                sizes[buffer] = max(sizes.get(buffer, 0), shard.data.nbytes)
    return sum(sizes.values())
