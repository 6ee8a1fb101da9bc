"""What a training step of a model computes, found by tracing: nothing runs."""

import inspect
import itertools
from typing import Any

import jax
import keras
from jax.extend.core import jaxpr_as_fun

from keras_parallel.engines.jax._widths import ROWS
from keras_parallel.engines.jax._widths import STATE
from keras_parallel.engines.jax._widths import Reader
from keras_parallel.engines.jax._widths import weight
from keras_parallel.planning import Outline

# Of which all combinations of dtypes are tried.
_MOST_INPUTS = 3


def outline_of(model, rows, widths):
    """The `Outline` of a built model for a batch of `rows` rows.

    Args:
        model: The user's model.
        rows: Rows of the batch.
        widths: Bytes of an entry, for the dtypes that cross between devices
            in another size than their own.

    Returns:
        `None` if the shapes of the inputs are not known.
    """
    inputs = inputs_of(model, rows)
    if inputs is None:
        return None
    failed = None
    for possible in _with_dtypes(model, inputs):
        try:
            return _outline(model, rows, widths, possible)
        except Exception as error:
            failed = failed or error
    raise failed or AssertionError


def _outline(model, rows, widths, inputs):
    trainable = [abstract(v) for v in model.trainable_variables]
    others = [abstract(v) for v in model.non_trainable_variables]
    updated = []
    traced = jax.make_jaxpr(forward_of(model, updated))(
        trainable, others, inputs
    )
    # How each argument of the trace came about.
    origins: list[Any] = list(map(weight, range(len(trainable))))
    origins += [STATE] * len(others)
    origins += [ROWS] * (len(traced.in_avals) - len(origins))
    reader = Reader(len(trainable), widths)
    reader.read(traced.jaxpr, origins)
    by_row, beside = _kept(traced, origins, len(trainable), rows)
    return Outline(
        by_row,
        beside,
        tuple(v.size * n for v, n in zip(trainable, reader.widths_met)),
        tuple(
            sum(v is each for each in updated)
            for v in model.non_trainable_variables
        ),
        merged=reader.merged,
        gathered=tuple(reader.gathered),
        outputs=len(traced.out_avals),
    )


class _Scope(keras.StatelessScope):
    """Notes which variables are assigned."""

    def __init__(self, state_mapping, updated):
        super().__init__(state_mapping, initialize_variables=False)
        self._updated = updated

    def add_update(self, update):
        self._updated.append(update[0])
        super().add_update(update)


def forward_of(model, updated):
    """The forward pass in training, as a function of its state."""
    options = {}
    if "training" in inspect.signature(model.call).parameters:
        options["training"] = True

    def forward(trainable, others, inputs):
        mapping = [
            *zip(model.trainable_variables, trainable),
            *zip(model.non_trainable_variables, others),
        ]
        with _Scope(mapping, updated):
            return model.call(inputs, **options)

    return forward


def _kept(traced, origins, trainable, rows):
    """Bytes of the residuals: those of rows, and the others."""
    forward = jaxpr_as_fun(traced)

    def residuals(*arguments):
        weights, rest = arguments[:trainable], arguments[trainable:]
        return jax.vjp(lambda *weights: forward(*weights, *rest), *weights)[1]

    backward = jax.make_jaxpr(residuals)(*traced.in_avals).jaxpr
    reached = Reader(trainable, {}).read(backward, origins)
    state = set(backward.invars[: len(origins) - origins.count(ROWS)])
    by_row = beside = 0
    kept = dict(zip(backward.outvars, reached))
    for variable, origin in kept.items():
        if variable in state or origin is None:
            continue  # A weight is there in any case, a constant never.
        aval = variable.aval
        # A copy of a weight in float16 may be as wide as the batch is long.
        of_rows = origin == ROWS
        if of_rows and any(n and n % rows == 0 for n in aval.shape):
            by_row += aval.size * aval.dtype.itemsize
        else:
            beside += aval.size * aval.dtype.itemsize
    return by_row, beside


def abstract(variable):
    return _array(variable.shape, variable.dtype)


def _array(shape, dtype):
    held = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(tuple(shape), held)


def inputs_of(model, rows):
    """Shapes and dtypes of the inputs for `rows` rows, if they are known."""
    if isinstance(model, keras.Sequential):
        inputs = model.inputs[0] if model.inputs else None
    elif isinstance(model, keras.models.Model) and _is_functional(model):
        inputs = model.input
    else:
        shapes = (model.get_build_config() or {}).get("input_shape")
        inputs = _tensors(shapes, model.input_dtype)
    known = inputs is not None and all(
        None not in tensor.shape[1:] and not tensor.sparse
        for tensor in keras.tree.flatten(inputs)
    )
    if not known:
        return None
    return keras.tree.map_structure(
        lambda t: _array((rows, *t.shape[1:]), t.dtype), inputs
    )


def _with_dtypes(model, inputs):
    """The inputs in the dtypes that they may have, the likeliest first.

    A subclassed model knows the shapes of its inputs only: some may be
    indices, as an embedding takes them.
    """
    yield inputs
    leaves = keras.tree.flatten(inputs)
    if _is_functional(model) or len(leaves) > _MOST_INPUTS:
        return
    choices = itertools.product((False, True), repeat=len(leaves))
    for integers in sorted(choices, key=sum)[1:]:
        changed = [
            jax.ShapeDtypeStruct(leaf.shape, "int32") if integer else leaf
            for leaf, integer in zip(leaves, integers)
        ]
        yield keras.tree.pack_sequence_as(inputs, changed)


def _is_functional(model):
    return bool(getattr(model, "inputs", None))


def _tensors(shapes, dtype):
    if isinstance(shapes, dict):
        return {key: _tensors(value, dtype) for key, value in shapes.items()}
    if not isinstance(shapes, list | tuple) or not shapes:
        return None
    if all(n is None or isinstance(n, int) for n in shapes):
        return keras.KerasTensor(tuple(shapes), dtype)
    # Keras gives lists that track, which JAX does not take.
    kind = tuple if isinstance(shapes, tuple) else list
    return kind(_tensors(shape, dtype) for shape in shapes)
