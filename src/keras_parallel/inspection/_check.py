"""Runs the user's own model for a few steps and says what came of it."""

import dataclasses
from typing import Any

import keras

from keras_parallel._errors import KerasParallelError
from keras_parallel._logging import logger
from keras_parallel.inspection import _differences
from keras_parallel.inspection._arguments import check_arguments
from keras_parallel.inspection._arguments import check_model
from keras_parallel.inspection._arguments import flat
from keras_parallel.inspection._bench import Bench
from keras_parallel.inspection._bench import PerStep
from keras_parallel.inspection._report import Report
from keras_parallel.inspection._source import Source
from keras_parallel.inspection._source import dataset
from keras_parallel.inspection._source import replayed
from keras_parallel.inspection._source import shape_of
from keras_parallel.inspection._stand_ins import stand_ins
from keras_parallel.inspection._untouched import untouched
from keras_parallel.inspection._watch import wait_for_logs
from keras_parallel.planning import compare
from keras_parallel.planning import lay_out_rows
from keras_parallel.planning import split_step
from keras_parallel.planning.diagnosis import Evidence
from keras_parallel.planning.diagnosis import diagnose
from keras_parallel.strategies import _twin
from keras_parallel.testing import _state
from keras_parallel.testing._run import rows_of

_ON_VIRTUAL = (
    "The devices are virtual: they share the cores of this host, so that the "
    "times of a step, the speed-up and the efficiency say nothing about real "
    "devices. Differences, what was compiled, and what devices wait for do."
)


def check(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    batch_size: int = 32,
    steps: int = 5,
    callbacks: Any = None,
) -> Report:
    """Runs a few steps of a model on one device and in parallel.

    The report says by how much the two differ and where; what was compiled,
    what the devices exchange, held against the plan; where the time of a step
    goes; and in one sentence what limits it, and what to do.

    The model is afterwards what it was, bit by bit: weights, optimizer,
    metrics, seeds, history, and the random state of Python and NumPy. So are
    the attributes of `callbacks`. Callbacks of Keras that write files write
    to a temporary folder meanwhile; what your own ones write stays.

    Example:

    ```python
    report = keras_parallel.check(model, x, y, batch_size=256)
    print(report)
    assert report.ok
    ```

    Args:
        model: A built and compiled model. A parallel one is checked on its
            devices, any other on all devices, as `data_parallel(model)`.
        x: Arrays, or anything else that `fit` takes. Of an iterator `steps`
            batches are read.
        y: Targets, if `x` is arrays.
        sample_weight: Weights, if `x` is arrays.
        batch_size: Rows of a batch, if `x` is arrays.
        steps: How many steps to compare and to measure.
        callbacks: One or several, whose hooks of batches are called and
            measured, after `set_params`, `set_model`, `on_train_begin` and
            `on_epoch_begin`. Hooks at the end of an epoch or of the training
            are not called.

    Returns:
        A `Report`. `print(report)` is for people, `report.ok` and
        `report.to_dict()` for programs.

    Raises:
        RefusedModelError: if the model is not compiled or not built, or no
            parallel model can be made of it.
        InputError: if `steps` or the data is nothing that can be trained on.
    """
    check_arguments(batch_size, steps, callbacks)
    check_model(model)
    callbacks = flat(callbacks)
    with untouched(model, [*callbacks, *dataset(x)]):
        # Inside, since reading a batch may draw random numbers.
        source = Source(x, y, sample_weight, int(batch_size), int(steps))
        return report_on(model, source, callbacks)


def with_notes(report, notes) -> Report:
    """The report with some more notes."""
    return dataclasses.replace(report, notes=(*notes, *report.notes))


def report_on(model, source, callbacks) -> Report:
    """The report on a model that is built and compiled, and is trained."""
    many = _twin.parallel_twin(model)
    one = _twin.one_device_twin(model, many)
    if model.optimizer is not None:
        model.optimizer.build(model.trainable_variables)
    start = _state.snapshot(model)
    on_many, on_one = Bench(many, many, start), Bench(one, many, start)

    _say(model, "compiling a step for all devices")
    warm_up = on_many.fit(source.warm_up(), source.steps)
    _say(model, "measuring on all devices")
    with stand_ins(callbacks) as (called, left_out):
        live = on_many.fit(source.measured(), source.steps, called)
    batches = live.batches
    waits = wait_for_logs(called)
    step_seconds, for_logs = (
        on_many.seconds_and_waiting(lambda: _again(batches))
        if waits
        else (on_many.seconds(lambda: _again(batches)), 0.0)
    )
    busy = on_many.busy(*_again(batches), step_seconds)
    _say(model, "compiling and measuring a step on one device")
    plain = [_twin.in_plain_form(many, batch) for batch in batches]
    on_one.fit(*_again(plain))  # Compiles.
    one_device_seconds = on_one.seconds(lambda: _again(plain))
    _say(model, "comparing")
    differences, noise = _differences.largest(model, one, many, plain, start)

    usual = _usual(batches)
    rows = rows_of(usual)
    devices = many._keras_parallel.execution.devices
    in_stages = not many._keras_parallel.splits_rows
    layout = lay_out_rows(rows, 1 if in_stages else len(devices))
    program = on_many.program(usual, warm_up)
    plan = _plan_of(model, many, rows)
    against_plan = (
        None if plan is None or program is None else compare(plan, program)
    )
    time = _time(live, for_logs, busy, warm_up)
    # Those for which was compiled, in both runs: a dataset may shuffle.
    seen = [*batches, *(() if source.is_iterator else warm_up.batches)]
    evidence = Evidence(
        devices=len(devices),
        steps=len(seen),
        rows=rows,
        shapes=len({shape_of(batch) for batch in seen}),
        compilations=warm_up.compilations + live.compilations,
        compile_seconds=time.compilation,
        split=layout.split or in_stages,
        in_stages=in_stages,
        speedup_bound=getattr(plan, "speedup_bound", None),
        sent_bytes=sum(row.compiled for row in against_plan or ()),
        time=time,
        compiled=program is not None,
        virtual=devices[0].virtual,
        callback=live.slowest,
        waiting_callback=type(waits[0]).__name__ if waits else None,
        logs_share=for_logs / (for_logs + live.callbacks or 1.0),
        flops=None if program is None else program.flops,
        steps_per_execution=many.steps_per_execution,
        against_plan=against_plan or (),
        **_gradients(model),
    )
    return Report(
        model=model.name,
        devices=tuple(d.name for d in devices),
        virtual=devices[0].virtual,
        batch_size=rows,
        rows_each=layout.per_device[0],
        steps=len(batches),
        differences=differences,
        noise=noise,
        program=program,
        against_plan=against_plan,
        time=time,
        compilations=evidence.compilations,
        step_seconds=step_seconds,
        one_device_seconds=one_device_seconds,
        bottleneck=diagnose(evidence),
        notes=(*left_out, *_notes(devices, source, live)),
    )


def _again(batches):
    return replayed(batches), len(batches)


def _say(model, what):
    logger.info("check of %r: %s", model.name, what)


def _time(live: PerStep, for_logs, busy, warm_up: PerStep):
    return split_step(
        live.total,
        input=live.input,
        callbacks=live.callbacks + for_logs,
        compute=busy.compute,
        communication=busy.communication,
        compilation=warm_up.compile_seconds + live.compile_seconds,
    )


def _usual(batches):
    """A batch of the shape that most of them have."""
    shapes = [shape_of(batch) for batch in batches]
    return batches[shapes.index(max(shapes, key=shapes.count))]


def _gradients(model):
    sizes = {}
    for v in model.trainable_variables:
        layer = v.path.rpartition("/")[0] or v.path
        # A gradient has the dtype and the shape of its variable.
        sizes[layer] = sizes.get(layer, 0) + v.value.nbytes
    largest = max(sizes.items(), key=lambda item: item[1], default=("", 0))
    return {"gradient_bytes": sum(sizes.values()), "largest": largest}


def _plan_of(model, many, rows):
    """The plan, of a mode that makes one."""
    make = getattr(many._keras_parallel, "plan", None)
    try:
        return None if make is None else make(many, rows)
    except KerasParallelError:
        return None  # There are models that cannot be planned.


def _notes(devices, source, live):
    if live.stopped:
        yield (
            "A callback set `stop_training`: "
            f"{len(live.batches)} of {source.steps} steps were taken."
        )
    if source.ended_after is not None:
        count = source.ended_after
        yield (
            f"The data holds {count} batch{'es' * (count > 1)}, which "
            "came again and again."
        )
    if devices[0].virtual:
        yield _ON_VIRTUAL
