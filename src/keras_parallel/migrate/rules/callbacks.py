"""Callbacks."""

from keras_parallel.migrate import _arguments
from keras_parallel.migrate._context import function
from keras_parallel.migrate._facts import literal


@function("keras.callbacks.ModelCheckpoint")
def checkpoint(call, called, context):
    """`period` is gone."""
    if len(_arguments.positional(call)) == 7 and not (
        context.is_tensorflow(called.original.func) or context.facts.is_keras_3
    ):
        call = _arguments.name_positional(call, 6, ["period"])
    period = _arguments.find(call, "period")
    if period is None:
        return call
    if literal(period.value) == 1:
        return _arguments.drop(call, period)
    context.note(
        called.original,
        "`ModelCheckpoint(period=...)`: gone in Keras 3. "
        "`save_freq=period * steps_per_epoch` counts batches.",
    )
    return call


@function("keras.callbacks.TensorBoard")
def tensorboard(call, called, context):
    """Arguments that had an effect on graphs of TensorFlow 1 only."""
    for keyword in (
        *("batch_size", "write_grads", "embeddings_layer_names"),
        "embeddings_data",
    ):
        found = _arguments.find(call, keyword)
        if found is not None:
            call = _arguments.drop(call, found)
    return call
