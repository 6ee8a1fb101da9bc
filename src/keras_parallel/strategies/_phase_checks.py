"""What phases have to be, and how they have to fit together."""

import difflib
import warnings
from collections.abc import Sequence

import keras

from keras_parallel._errors import RefusedModelError
from keras_parallel.strategies import _keras
from keras_parallel.strategies import _twin
from keras_parallel.strategies._wording import error
from keras_parallel.strategies._wording import shown


def check_phase(phase) -> None:
    """Raises if a `Phase` is none, for itself."""
    name, model = phase.name, phase.model
    if not isinstance(name, str) or not name or "/" in name:
        raise error(
            "`name` is what the logs of a phase begin with, without '/'.",
            f"name={shown(name)}",
            'keras_parallel.Phase("rpn", rpn_model)',
        )
    works = f'keras_parallel.Phase("{name}", model'
    if not isinstance(model, keras.Model):
        raise error(
            "`model` of a phase is a compiled `keras.Model`.",
            f'Phase("{name}", {shown(model)})',
            f"{works})",
            RefusedModelError,
        )
    if not model.compiled:
        raise error(
            "The model of a phase is compiled: with the loss that the phase "
            "trains, and its optimizer.",
            f'Phase("{name}", ...) with the model {model.name!r}, which is '
            "not compiled",
            f'model.compile("adam", loss="mse"); {works})',
            RefusedModelError,
        )
    if phase.make_batch is not None and not callable(phase.make_batch):
        raise error(
            "`make_batch` is a function of the batch and of the predictions "
            "of earlier phases.",
            f'Phase("{name}", make_batch={shown(phase.make_batch)})',
            f"{works}, make_batch=lambda batch, predictions: batch)",
        )
    for argument in ("steps", "every", "epochs"):
        value = getattr(phase, argument)
        if value is None and argument == "epochs":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise error(
                f"`{argument}` is an integer of at least 1.",
                f'Phase("{name}", {argument}={shown(value)})',
                f"{works}, {argument}=2)",
            )
    frozen_layers(phase)


def frozen_layers(phase) -> list[keras.Layer]:
    """The layers that a phase freezes.

    Raises:
        InputError: if one is no layer of its model.
    """
    model, freeze = _twin.template_of(phase.model), phase.freeze
    works = f'keras_parallel.Phase("{phase.name}", model, freeze=[layer])'
    if isinstance(freeze, str | keras.Layer) or not isinstance(
        freeze, Sequence
    ):
        raise error(
            "`freeze` is a list of layers of the model, or of their names.",
            f'Phase("{phase.name}", freeze={shown(freeze)})',
            works,
        )
    inside, found = {id(layer): layer for layer in _keras.layers_of(model)}, []
    by_name = {layer.name: layer for layer in inside.values()}
    for wanted in freeze:
        layer = by_name.get(wanted) if isinstance(wanted, str) else wanted
        if isinstance(layer, keras.Model):
            layer = _twin.template_of(layer)
        parts = _parts_in(layer, inside)
        if not parts:
            name = getattr(wanted, "name", wanted)
            near = difflib.get_close_matches(str(name), by_name, n=3)
            raise error(
                f"`freeze` names layers of the model {model.name!r}, and they "
                "are found in it.",
                f'Phase("{phase.name}", freeze=[{shown(wanted)}])'
                + (f"; near names are {near}" if near else ""),
                works,
            )
        found += parts
    return found


def _parts_in(layer, inside):
    """What of a layer, or of the layers within it, a model has."""
    if not isinstance(layer, keras.Layer):
        return []
    if id(layer) in inside:
        return [layer]
    # A functional model of which layers were taken is not itself in another.
    parts = [
        part
        for part in _keras.layers_of(layer)
        if not isinstance(part, keras.layers.InputLayer)
    ]
    return parts if parts and all(id(p) in inside for p in parts) else []


def check_phases(phases) -> list:
    """Raises unless these are phases that fit together."""
    # Not imported above: it imports this.
    from keras_parallel.strategies.alternating import Phase

    works = "keras_parallel.AlternatingTrainer([keras_parallel.Phase(...)])"
    if (
        not isinstance(phases, Sequence)
        or not phases
        or not all(isinstance(phase, Phase) for phase in phases)
    ):
        raise error(
            "`phases` is a list of `Phase`s, at least one.",
            f"phases={shown(phases)}",
            works,
        )
    names = [phase.name for phase in phases]
    if len(set(names)) < len(names):
        raise error("Each phase has a name of its own.", f"{names}", works)
    _check_optimizers(phases)
    return list(phases)


def _check_optimizers(phases):
    owners = {}
    for phase in phases:
        optimizer = (
            phase.model.optimizer
            if phase.optimizer is None
            else phase.optimizer
        )
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            continue
        owner = owners.setdefault(id(optimizer), phase)
        if owner is phase:
            continue
        same = owner.model is phase.model
        raise error(
            "Each phase has an optimizer of its own, with its own slots"
            + (
                ": a second phase on the same model is given one"
                if same and phase.optimizer is None
                else ""
            )
            + ".",
            f"the phases {owner.name!r} and {phase.name!r} with one "
            f"{type(optimizer).__name__}",
            f'keras_parallel.Phase("{phase.name}", model, '
            f"optimizer=keras.optimizers.{type(optimizer).__name__}())",
        )


def model_of_all(phases, model) -> keras.Model:
    """The model that callbacks see and that is saved."""
    works = (
        "keras_parallel.AlternatingTrainer(phases, model=keras.Model(inputs, "
        "[*first.outputs, *second.outputs]))"
    )
    if model is not None:
        if not isinstance(model, keras.Model):
            raise error(
                "`model` is the `keras.Model` that holds all parts.",
                f"model={shown(model)}",
                works,
                RefusedModelError,
            )
        return model
    wanted = {id(v) for phase in phases for v in phase.model.variables}
    for phase in phases:
        if wanted <= {id(v) for v in phase.model.variables}:
            return phase.model
    raise error(
        "Callbacks see one model, and one is saved: that which holds the "
        "layers of all phases. Where none of the phases has such a model, it "
        "is given.",
        f"model=None, and the phases {[phase.name for phase in phases]}, none "
        "of whose models holds the weights of all others",
        works,
    )


def trained_elsewhere(phases, model):
    """Each phase, with the paths of what it trains and `model` lacks."""
    held = {id(v) for v in model.variables}
    for phase in phases:
        trained = phase.model.trainable_variables
        yield phase, [v.path for v in trained if id(v) not in held]


def warn_of_what_is_apart(phases, model) -> None:
    """Warns of models that share nothing, and of what is not saved."""
    weights = [{id(v) for v in phase.model.variables} for phase in phases]
    for i, phase in enumerate(phases):
        others = set().union(*weights[:i], *weights[i + 1 :])
        if len(phases) > 1 and weights[i] and not weights[i] & others:
            warnings.warn(
                f"The model of the phase {phase.name!r} shares no layer with "
                "those of other phases, so that training it in turn with them "
                "changes nothing about either. To share a layer, call the same "
                "layer object in both models.",
                stacklevel=3,
            )
    for phase, lost in trained_elsewhere(phases, model):
        if lost:
            warnings.warn(
                f"The phase {phase.name!r} trains {len(lost)} variables that "
                f"`model` ({model.name!r}) does not hold, such as {lost[0]!r}: "
                "they are in no file of it. To save them, pass a `model` of "
                "all parts.",
                stacklevel=3,
            )
