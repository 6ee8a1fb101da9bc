"""Device parallelism: the parts of one model on devices of their own.

Where a part runs is said by a scope around a call, or by a placement of a
model that is built. Parts that do not wait for each other run at the same
time, forward and backward.
"""

import warnings
from collections.abc import Mapping

import keras

from keras_parallel._errors import DeviceError
from keras_parallel._errors import PlacementError
from keras_parallel._errors import RefusedModelError
from keras_parallel.engines import active_engine
from keras_parallel.graph import calls as graph_calls
from keras_parallel.graph.placement import Placement
from keras_parallel.graph.placement import still_named
from keras_parallel.graph.scopes import Scope
from keras_parallel.planning import Device
from keras_parallel.planning.devices import best_kind
from keras_parallel.strategies import _device_plan
from keras_parallel.strategies import _feeding
from keras_parallel.strategies import _keras
from keras_parallel.strategies._overlay import Overlay
from keras_parallel.strategies._overlay import check_template
from keras_parallel.strategies._overlay import overlay
from keras_parallel.strategies._training import TrainingState
from keras_parallel.strategies._training import check_not_distributed
from keras_parallel.strategies._training import check_overrides
from keras_parallel.strategies._wording import error
from keras_parallel.strategies._wording import shown


def device_scope(name: str) -> Scope:
    """While a graph is built: the calls inside run on one device.

    The scope belongs to the call: a layer that is called in two scopes runs
    on both devices, with one set of weights. The innermost scope counts, and
    each thread has its own. `device_parallel` makes a model that obeys.

    A scope places calls on the tensors of `keras.Input`, `keras.ops` too, and
    layers that are added to a `Sequential`. It changes nothing about calls on
    arrays, for which there is `keras.device`, about the line that makes a
    layer, about what the `call` of a layer does, or about `fit`: a scope with
    nothing else inside warns.

    Example:

    ```python
    with keras_parallel.device_scope("/gpu:0"):
        encoded_a = shared_lstm(input_a)
    with keras_parallel.device_scope("/gpu:1"):
        encoded_b = shared_lstm(input_b)
    ```

    Args:
        name: The device, such as `"/gpu:0"` or `"cpu:0"`.

    Returns:
        What a `with` enters, as often as you like; also a decorator, for a
        function that builds a part of a graph.

    Raises:
        DeviceError: if there is no such device.
    """
    return Scope(_device(name, "device_scope({})"))


def device_parallel(
    model: keras.Model,
    placement: Mapping | None = None,
    default: str | None = None,
) -> keras.Model:
    """Makes a model whose parts run on devices of their own.

    Losses, metrics, weights, optimizer slots and non-trainable variables are
    those that one device would have given. Parts that do not wait for each
    other run at the same time. Weights lie where their layer runs first, and
    so do their gradients and slots. If nothing says where a call runs, neither
    a scope, nor `placement`, nor `default`, there is a warning.

    Example:

    ```python
    model = keras_parallel.device_parallel(
        model, placement={"block_3": "gpu:1", ("shared_lstm", 1): "gpu:1"}
    )
    ```

    Args:
        model: A functional or `Sequential` model that is built. It shares its
            variables with the one that is returned, and stays as it was.
        placement: The device of calls, beside those that scopes name: keys
            are the name of a layer or a layer, for all of its calls, or a
            tuple of either with the index of one call, from 0.
        default: The device of everything else; `None` is the first of the
            best kind.

    Returns:
        A `keras.Model` with the names, layers and outputs of `model`, that is
        saved as `model` would be.

    Raises:
        DeviceError: if a device is not there.
        PlacementError: if a key of `placement` names no call of the model.
        PlanError: if something would go to another device that cannot.
        RefusedModelError: if `model` has no graph.
        BackendError: if there is no engine for the Keras backend in use.
    """
    _feeding.check_not_starting("a parallel model was made")
    check_template(model, "device_parallel")
    engine = active_engine()
    if default is None:
        chosen = best_kind(engine.list_devices())[0]
    else:
        chosen = _device(default, "device_parallel(model, default={})")
    calls = _calls_of(model)
    asked_for = _asked_for(placement, calls)
    placed = _placed(model, asked_for, chosen)
    check_not_distributed(model)
    if model.compiled:
        _check_compiled(model, model.run_eagerly, model.jit_compile)
    state = DeviceParallelState(model, engine, placed, asked_for)
    check_overrides(model, state.execution)
    if calls and placement is None and default is None:
        _warn_if_nothing_is_placed(model, placed)
    return overlay(state)


def _placed(model, asked_for, default):
    placement = Placement(_calls_of(model), asked_for, default)
    _device_plan.check_placement(model, placement)
    return placement


def _warn_if_nothing_is_placed(model, placed):
    if any(map(placed.is_asked_for, placed.leaves())):
        return
    warnings.warn(
        f"No call of the model {model.name!r} has a device scope, and no "
        f"`placement` is given: all of it runs on {placed.default.name}. A "
        "model from a file or from `from_config` has no scopes. What works: "
        "`device_parallel(model, placement=plan.placement)`, with the plan of "
        "the model that was saved, or, if one device is what you want, "
        f"`device_parallel(model, default={placed.default.name!r})`.",
        # The line that called `device_parallel`.
        stacklevel=3,
    )


def _calls_of(model):
    calls = graph_calls.calls_of(model)
    if calls is None:
        raise RefusedModelError(
            "Device parallelism places the calls of a graph. Received: the "
            f"model {model.name!r} of class {type(model).__name__!r}, which "
            "has none: it is subclassed, or not built. A call that works: "
            "`device_parallel(keras.Model(inputs, outputs))`."
        )
    return calls


def _asked_for(placement, calls):
    if placement is None:
        return {}
    name = calls[0].name if calls else "dense"
    works = f"device_parallel(model, placement={{{name!r}: {{}}}})"
    if not isinstance(placement, Mapping):
        raise error(
            "`placement` is a dictionary from calls to devices.",
            f"placement={shown(placement)}",
            works.replace("{}", repr(_there().name)),
            PlacementError,
        )
    return {key: _device(name, works) for key, name in placement.items()}


def _there():
    """A device for examples."""
    return best_kind(active_engine().list_devices())[0]


def _device(name, works) -> Device:
    """The device of that name; `works` is a call with a place for one."""
    works = works.replace("{}", repr(_there().name))
    device = Device.parse(name, works)
    available = {d: d for d in active_engine().list_devices()}
    if device in available:
        return available[device]
    virtual = (
        " To try without the hardware, call "
        f"`keras_parallel.use_virtual_devices({device.index + 1})` before the "
        "first layer is made."
        if device.kind == "gpu"
        else ""
    )
    raise DeviceError(
        f"A part of a model runs on a device of this host. Received: {name!r}, "
        f"and there are {[d.name for d in available]}. A call that works: "
        f"`{works}`.{virtual}"
    )


def _check_compiled(model, run_eagerly, jit_compile):
    if jit_compile is False and not _keras.supports_jit(model):
        jit_compile = "auto"  # Keras writes `False` for it then.
    if run_eagerly or jit_compile is False:
        raise RefusedModelError(
            "A device-parallel model runs compiled: where each part runs is "
            f"decided for a compiled step. Received: run_eagerly={run_eagerly}"
            f", jit_compile={jit_compile!r}. A call that works: "
            "`model.compile(optimizer, loss)`."
        )


class DeviceParallelState(TrainingState):
    """What a device-parallel model holds beside the user's model.

    Args:
        template: The user's model.
        engine: The engine of the backend.
        placement: Where its calls run.
        asked_for: What the user asked for beside scopes, as in `Placement`.
    """

    # A scope around a call says where it runs.
    obeys_scopes = True

    def __init__(
        self, template, engine, placement: Placement, asked_for, layers=()
    ):
        self.placement = placement
        self._asked_for = asked_for
        self._graphs = graph_calls.Graphs(template)
        stages = self._stages(engine)
        layers = (*layers, DeviceParallelLayer)
        super().__init__(template, engine, stages, layers)

    def _stages(self, engine):
        return engine.stages(
            self.placement.devices(), self._homes_of, self._traced
        )

    def _follow(self, model):
        """Places the calls again if layers were added or removed since."""
        if self._graphs.are_current():
            return
        template, default = self.template, self.placement.default
        asked_for = still_named(self._asked_for, _calls_of(template))
        self.placement = _placed(template, asked_for, default)
        self._graphs = graph_calls.Graphs(template)
        self.execution = self._stages(self.engine)
        self.states.clear()
        for name in _keras.COMPILED_FUNCTIONS:
            setattr(model, name, None)

    def like(self, template, layers=()):
        calls = _calls_of(template)
        asked_for = _asked_for(self.placement.to_dict(), calls)
        placement = _placed(template, asked_for, self.placement.default)
        return DeviceParallelState(
            template, self.engine, placement, asked_for, layers
        )

    def running(self, model):
        self._follow(model)
        if model.run_eagerly:  # Set after `compile`.
            _check_compiled(model, True, model.jit_compile)
        return super().running(model)

    def compile_arguments(self, model, args, kwargs):
        self._follow(model)
        args, kwargs = super().compile_arguments(model, args, kwargs)
        _check_compiled(
            model,
            kwargs.get("run_eagerly", False),
            kwargs.get("jit_compile", "auto"),
        )
        return args, kwargs

    def plan(self, model, batch_size):
        self._follow(model)
        return _device_plan.plan_of(self, model, batch_size)

    def _traced(self):
        return graph_calls.placed(self.placement.by_nodes(), self.execution.on)

    def _homes_of(self, model, variables):
        owners = _keras.owners_of_slots(getattr(model, "optimizer", None))
        return [self.placement.home_of(owners.get(id(v), v)) for v in variables]


class DeviceParallelLayer(Overlay):
    """What device parallelism puts above the engine's trainer layer."""

    def set_weights(self, weights):
        super().set_weights(weights)
        self._keras_parallel.execution.settle(self)

    def load_weights(self, filepath, skip_mismatch=False, **kwargs):
        result = super().load_weights(filepath, skip_mismatch, **kwargs)
        self._keras_parallel.execution.settle(self)
        return result
