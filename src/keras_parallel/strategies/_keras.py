"""The private names of Keras that the strategies depend on.

`tests/surface/test_keras_private.py` names each when a new Keras moves it.
"""

import keras

# What Keras's trainer keeps on a model: set by `Trainer.__init__`, by
# `compile`, or while `fit`, `evaluate` and `predict` run. A parallel model
# has these for itself and shares everything else with the user's model.
TRAINER_ATTRIBUTES = frozenset(
    {
        # Trainer.__init__
        "_compile_loss",
        "_compile_metrics",
        "_compute_loss_has_training_arg",
        "_initial_epoch",
        "_jit_compile",
        "_lock",
        "_loss_tracker",
        "_run_eagerly",
        "compiled",
        "loss",
        "predict_function",
        "steps_per_execution",
        "test_function",
        "train_function",
        # compile
        "_compile_config",
        "_compiled_trainable_state",
        "optimizer",
        "stop_training",
        # fit, evaluate, predict
        "_eval_epoch_iterator",
        "_losses_override",
        "history",
        "stop_evaluating",
        "stop_predicting",
    }
)

# The compiled functions among them belong to the model that made them.
COMPILED_FUNCTIONS = ("train_function", "test_function", "predict_function")


def supports_jit(model: keras.Model) -> bool:
    """Whether `jit_compile="auto"` compiles the steps of a model."""
    return all(layer.supports_jit for layer in model._flatten_layers())


def layout_of(variable: keras.Variable):
    """The layout that a `keras.distribution` gave to `variable`, if any."""
    return getattr(variable, "_layout", None)


def trained_by(optimizer: keras.optimizers.Optimizer) -> list:
    """The variables that a built optimizer has slots for."""
    return getattr(optimizer, "_trainable_variables", [])


def owners_of_slots(optimizer) -> dict:
    """The id of each slot of an optimizer -> the variable it belongs to."""
    trained, owners = trained_by(optimizer), {}
    if optimizer is None or not trained:
        return owners
    for name, value in vars(optimizer).items():
        # A list with an entry for each variable that is trained.
        if name in ("_variables", "_trainable_variables"):
            continue
        if isinstance(value, list) and len(value) == len(trained):
            owners |= {
                id(slot): variable
                for slot, variable in zip(value, trained)
                if isinstance(slot, keras.Variable)
            }
    return owners | owners_of_slots(getattr(optimizer, "inner_optimizer", None))


def layers_of(model: keras.Layer, with_self: bool = False) -> list:
    """All layers within `model`, at any depth, outer ones first."""
    return list(model._flatten_layers(include_self=with_self))


def metrics_to_build(compile_metrics) -> list:
    """What `compile` received as metrics, for all outputs."""
    # Not what the last call received: without metrics, Keras keeps the old.
    return [
        compile_metrics._user_metrics,
        compile_metrics._user_weighted_metrics,
    ]


def loss_trackers(model: keras.Model) -> list:
    """The mean of the loss, and that of each output once they are made."""
    losses = getattr(model, "_compile_loss", None)
    return [model._loss_tracker, *getattr(losses, "metrics", [])]


def is_loss_tracker(model: keras.Model, metric) -> bool:
    """Whether `metric` is the mean of the loss, or of that of one output."""
    return any(metric is tracker for tracker in loss_trackers(model))


def losses_are_built(model: keras.Model) -> bool:
    """Whether a first batch told which outputs have a loss."""
    return bool(getattr(getattr(model, "_compile_loss", None), "built", False))


def learns_shape(metric: keras.metrics.Metric) -> bool:
    """Whether `metric` makes variables at its first batch."""
    return not getattr(metric, "_built", True)


def global_seed_generator():
    """What draws for those who give no seed, if it has been made."""
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute("global_seed_generator")


# What Keras keeps for the whole process and a trace of a model may change.
_GLOBAL_ATTRIBUTES = (
    "global_seed_generator",
    "object_name_uids",
    "uninitialized_variables",
)


def global_attributes() -> dict:
    """What Keras keeps for the whole process; `None` if not made yet."""
    from keras.src.backend.common import global_state

    get = global_state.get_global_attribute
    return {name: get(name) for name in _GLOBAL_ATTRIBUTES}


def set_global_attributes(attributes: dict) -> None:
    """Puts back what `global_attributes` returned."""
    from keras.src.backend.common import global_state

    for name, value in attributes.items():
        global_state.set_global_attribute(name, value)


def forget_global_seed_generator() -> None:
    """As if nothing had been drawn without a seed yet."""
    from keras.src.backend.common import global_state

    global_state.set_global_attribute("global_seed_generator", None)


def optimizer_of_some(optimizer, variables: list):
    """A built optimizer that applies gradients of some of its variables only.

    It shares slots, step count and learning rate with `optimizer`, as
    `Optimizer.apply` with `trainable_variables` would use them.
    """
    of_some = object.__new__(type(optimizer))
    attributes = vars(of_some)
    attributes |= vars(optimizer)
    averages = getattr(optimizer, "_model_variables_moving_average", None)
    if averages:
        average_of = dict(zip(map(id, trained_by(optimizer)), averages))
        attributes["_model_variables_moving_average"] = [
            average_of[id(v)] for v in variables
        ]
    attributes["_trainable_variables"] = list(variables)
    index_of, key_of = (
        optimizer._trainable_variables_indices,
        optimizer._var_key,
    )
    # Those of the slots, which are in the order of all variables.
    attributes["_trainable_variables_indices"] = {
        key_of(v): index_of[key_of(v)] for v in variables
    }
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        attributes["inner_optimizer"] = optimizer_of_some(inner, variables)
    return of_some


def trainable_when_compiled(model: keras.Model) -> dict:
    """Layer -> whether it was trainable when `model` was compiled."""
    return dict(getattr(model, "_compiled_trainable_state", {}))


def arguments_of_compile(model: keras.Model) -> dict | None:
    """What `compile` received, if it is that of Keras."""
    config = getattr(model, "_compile_config", None)
    return None if config is None else dict(config.config)


def single_metrics(model: keras.Model) -> list:
    """The metrics of a model, those of all outputs taken apart."""
    return [
        single
        for metric in model.metrics
        for single in (getattr(metric, "metrics", None) or [metric])
    ]


def metrics_for_monitors(directions: dict[str, str]) -> list:
    """What callbacks that monitor a log read its direction from."""
    from keras.src.trainers.compile_utils import MetricsList

    metrics = []
    for name, direction in directions.items():
        metric = keras.metrics.Mean(name=name)
        metric._direction = direction
        metrics.append(metric)
    return [MetricsList(metrics)] if metrics else []
