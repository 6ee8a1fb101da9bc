"""What `kp.trace` records, and the plan against what was compiled."""

import json
import pathlib
import tempfile

from _check_gpu import models
from _check_gpu import parallel

import keras_parallel as kp

# What crosses in a compiled step, to what the plan says.
PLAN_RATIO = 1.02
STEPS = 5


def check(found, tiny):
    """Traces some steps of a model that has been compiled before."""
    model = parallel.data_parallel(models.conv(tiny), len(parallel.gpus()))
    x, y = next(models.batches(model, tiny))
    model.fit(x, y, batch_size=len(x), epochs=2, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "run.json")
        with kp.trace(path) as trace:
            model.fit(x, y, batch_size=len(x), epochs=STEPS, verbose=0)
        written = json.loads(path.read_text())
    found.print(trace)
    timeline = trace.timeline
    for name in parallel.gpus():
        seconds = timeline.seconds(name, "compute")
        found.judge(
            f"{name}: computing", f"{seconds:.2e} s", "above 0", seconds > 0
        )
    program = timeline.programs[0] if timeline.programs else "none"
    runs = len(timeline.runs(program))
    found.judge(f"runs of {program}", runs, STEPS, runs == STEPS)
    events = len(written["traceEvents"])
    found.judge(
        "events in the file",
        events,
        f"at least {len(timeline.events)}",
        events >= len(timeline.events) > 0,
    )
    if len(parallel.gpus()) > 1:
        _check_plan(found, model, x, y)


def _check_plan(found, model, x, y):
    from tests.compiled import collectives_of_step

    planned = kp.plan(model, batch_size=len(x)).bytes_per_step
    compiled = sum(c.bytes for c in collectives_of_step(model, x, y))
    found.judge(
        "bytes that cross in a step",
        f"{compiled} compiled, {planned} in the plan",
        f"a factor of at most {PLAN_RATIO}",
        planned and 1 / PLAN_RATIO <= compiled / planned <= PLAN_RATIO,
    )
