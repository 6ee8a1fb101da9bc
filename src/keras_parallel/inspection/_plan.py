"""The public function `plan`."""

import numbers

import keras

from keras_parallel._errors import PlanError
from keras_parallel.planning import Plan
from keras_parallel.planning import StagePlan
from keras_parallel.strategies._overlay import Overlay
from keras_parallel.strategies._wording import error
from keras_parallel.strategies._wording import shown

# That of `fit`.
_BATCH_SIZE = 32


def plan(
    model: keras.Model, batch_size: int | None = None
) -> Plan | StagePlan:
    """Says where everything of a parallel model lives, and what crosses.

    Nothing runs for it: no program is compiled, no array is made on a device,
    and neither the variables nor the random state of the model change. What
    was compiled is what a test holds it against.

    Example:

    ```python
    print(keras_parallel.plan(parallel, batch_size=256))
    ```

    Args:
        model: A parallel model that is built. If it is compiled, the plan
            has its optimizer, losses and metrics.
        batch_size: Rows of a global batch, as in `fit`; `None` is 32.

    Returns:
        The plan, a `Plan` of `data_parallel` or a `StagePlan` of
        `device_parallel`: print it, or use `plan.to_dict()` and
        `plan.plot(path)`. Sizes are in bytes and for each device; for
        activations they are an estimate before the compiler, which may keep
        less.

    Raises:
        PlanError: if `model` is not parallel, or not built.
        InputError: if `batch_size` is no integer of at least 1.
    """
    if not issubclass(type(model), Overlay):
        name = "model" if isinstance(model, keras.Model) else "..."
        raise error(
            "A plan is that of a parallel model.",
            f"model={shown(model)}",
            f"kp.plan(kp.data_parallel({name}), batch_size=256)",
            PlanError,
        )
    rows = _BATCH_SIZE if batch_size is None else batch_size
    if isinstance(rows, bool) or not isinstance(rows, numbers.Integral):
        raise _wrong_batch_size(rows)
    if rows < 1:
        raise _wrong_batch_size(rows)
    if not model.built:
        raise error(
            "The variables that a plan counts are made when the model is "
            "built.",
            f"the model {model.name!r}, which is not built",
            "model.build((None, 784)); kp.plan(parallel, batch_size=256)",
            PlanError,
        )
    return model._keras_parallel.plan(model, int(rows))


def _wrong_batch_size(batch_size):
    return error(
        "`batch_size` is an integer of at least 1.",
        f"batch_size={shown(batch_size)}",
        "kp.plan(parallel, batch_size=256)",
    )
