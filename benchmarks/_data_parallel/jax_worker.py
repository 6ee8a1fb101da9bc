"""The peers on JAX: `python jax_worker.py PEER DEVICES`.

`ours`, `keras-distribution` with `keras.distribution.DataParallel`, and
`keras`, which is plain Keras on one device.
"""

import dataclasses
import os
import re
import sys

PEER, DEVICES = sys.argv[1], int(sys.argv[2])

if PEER == "ours":
    import keras_parallel as kp

    if DEVICES > 1:
        kp.use_virtual_devices(DEVICES)
elif DEVICES > 1:
    # The same number of threads as ours asks for; without it XLA hangs where
    # there are more devices than cores.
    os.environ["PJRT_NPROC"] = str(2 * (DEVICES + 1))

import jax  # noqa: E402  the environment comes first

if PEER == "keras-distribution":
    jax.config.update("jax_num_cpu_devices", DEVICES)

import keras  # noqa: E402
from keras.src.backend.jax import trainer as keras_trainer  # noqa: E402
from keras_runner import KerasRunner  # noqa: E402
from null_step import NullStep  # noqa: E402
from null_step import replaced  # noqa: E402
from serving import serve  # noqa: E402

# Sizes of the element types in XLA's text, in bytes.
_SIZES = {"f32": 4, "bf16": 2, "f16": 2, "f64": 8, "pred": 1, "s64": 8}
_SIZES |= {"s32": 4, "u32": 4, "s8": 1, "u8": 1, "u64": 8}
_COLLECTIVE = re.compile(
    r"= (?P<shape>.+?) (?P<kind>all-reduce|all-gather|reduce-scatter|"
    r"all-to-all|collective-permute)(-start)?\("
)


class JaxRunner(KerasRunner):
    def make(self, workload):
        if PEER == "keras-distribution":
            devices = keras.distribution.list_devices("cpu")[:DEVICES]
            keras.distribution.set_distribution(
                keras.distribution.DataParallel(devices=devices)
            )
        model = super().make(workload)
        if PEER == "ours":
            return kp.data_parallel(model, DEVICES if DEVICES > 1 else None)
        return model

    def start(self, workload):
        started = super().start(workload)
        if PEER == "ours":
            plan = kp.plan(self.model, self.workload.batch)
            started["collectives"] = list(
                map(dataclasses.asdict, plan.collectives)
            )
        return started

    def wait(self):
        model = self.model
        variables = model.variables + model.optimizer.variables
        jax.block_until_ready([v.value for v in variables])

    def versions(self):
        return {"keras": keras.__version__, "jax": jax.__version__}

    def without_step(self):
        """From here on the compiled step does nothing."""
        return self._with_jit(NullStep)

    def program(self):
        """What the compiled step exchanges between devices."""
        steps = []

        def recorded(function, **arguments):
            steps.append(_Recorded(function, **arguments))
            return steps[-1]

        self._with_jit(recorded)
        return steps[0].program()

    def _with_jit(self, jit):
        # Keras compiles its step with this name, and so do we through it.
        with replaced(keras_trainer, "jit", jit):
            self.model.make_train_function(force=True)
        first = slice(self.workload.batch)
        self._fit(self.x[first], self.y[first])
        return {}


class _Recorded:
    """The step, with the shapes and places of what it was called with."""

    def __init__(self, function, **arguments):
        self._step = jax.jit(function, **arguments)
        self._given = None

    def __call__(self, *given):
        self._given = self._given or jax.tree.map(_description, given)
        return self._step(*given)

    def program(self):
        compiled = self._step.lower(*self._given).compile()
        found = _COLLECTIVE.finditer(compiled.as_text())
        cost = compiled.cost_analysis() or {}
        return {
            "flops": cost.get("flops"),
            "collectives": [
                {"kind": c["kind"], "bytes": _bytes_of(c["shape"])}
                for c in found
            ],
        }


def _description(leaf):
    sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
    if sharding is not None and not leaf.committed:
        sharding = None
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _bytes_of(shape):
    total = 0
    for element, dims in re.findall(r"(\w+)\[([\d,]*)\]", shape):
        count = 1
        for dim in filter(None, dims.split(",")):
            count *= int(dim)
        total += count * _SIZES[element]
    return total


if __name__ == "__main__":
    serve(JaxRunner())
