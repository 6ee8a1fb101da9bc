"""The outline of a parallel model, or why there is none."""

import dataclasses
import typing

from keras_parallel.strategies import _keras
from keras_parallel.strategies._memory import traced_only

_MOST_LETTERS = 200


@dataclasses.dataclass(frozen=True)
class Traced:
    """What came of tracing a model.

    Args:
        outline: What a step computes, if that could be found.
        why: The reason if not, as the end of a sentence.
        unbuilt: Names of layers that the first batch builds, or may build.
    """

    outline: typing.Any
    why: str = ""
    unbuilt: tuple[str, ...] = ()


def traced(state, model, rows: int, outline_of) -> Traced:
    """Traces a parallel model, and leaves it as it was.

    Args:
        state: What `model` holds beside the user's model.
        model: The parallel model.
        rows: Rows of a batch.
        outline_of: Takes the user's model and the rows, and returns what the
            engine says.
    """
    template = state.template
    before = {id(v) for v in template.variables}
    waiting = [x for x in _keras.layers_of(template) if not x.built]
    outline, why = None, "the shapes of its inputs are not known"
    with traced_only(model):
        try:
            outline = outline_of(template, rows)
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
