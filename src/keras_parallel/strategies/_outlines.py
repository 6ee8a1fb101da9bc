"""The outline of a parallel model, or why there is none."""

import dataclasses
import typing

from keras_parallel.strategies import _keras
from keras_parallel.strategies._memory import traced_only

if typing.TYPE_CHECKING:
    from keras_parallel.planning import Outline

_MOST_LETTERS = 200


@dataclasses.dataclass(frozen=True)
class Traced:
    """What came of tracing a model.

    Args:
        outline: What a step computes, if that could be found.
        why: The reason if not, as the end of a sentence.
        unbuilt: Names of layers that the first batch builds, or may build.
    """

    outline: "Outline | None"
    why: str = ""
    unbuilt: tuple[str, ...] = ()


def traced(state, model, rows: int) -> Traced:
    """Traces the parallel `model` for `rows` rows, and leaves it as it was."""
    template = state.template
    before = {id(v) for v in template.variables}
    waiting = [x for x in _keras.layers_of(template) if not x.built]
    outline, why = None, "the shapes of its inputs are not known"
    with traced_only(model):
        try:
            outline = state.replicas.outline(template, rows)
        except Exception as error:
            # The user's code, for rows that it may not be made for. Training
            # tells what is wrong with it.
            why = _reason(error)
        made = {id(v) for v in template.variables} - before
        if outline is not None:
            waiting = [x for x in waiting if x.built and made]
    if made:
        # Their variables were not known, nor who has them.
        outline, why = None, "it has layers that the first batch builds"
    names = tuple(layer.name for layer in waiting)
    return Traced(outline, why, names)


def _reason(error):
    said = " ".join(str(error).split())
    if len(said) > _MOST_LETTERS:
        said = said[:_MOST_LETTERS] + "…"
    return f"its code raised {type(error).__name__}: {said}"
