"""One call of `fit`, `evaluate` or `predict` in all processes of a job.

Each process calls it on the same data and takes rows of its own. What may
differ between them when it begins, random numbers and weights that were drawn
without a seed, is made what process 0 has; that weights are equal is checked at
the end of each epoch.
"""

import contextlib
import contextvars
import inspect
import json
import pickle
import zlib
from collections.abc import Callable

import numpy as np

from keras_parallel._errors import ClusterError
from keras_parallel._logging import logger
from keras_parallel.engines import Processes
from keras_parallel.strategies import _once
from keras_parallel.strategies import _random

# Whether a call is under way in all processes.
_under_way = contextvars.ContextVar("under way in all processes", default=False)


@contextlib.contextmanager
def together(
    processes: Processes | None,
    method: Callable,
    variables: Callable[[], list],
    args: tuple,
    kwargs: dict,
):
    """The context in which a method runs in all processes.

    Args:
        processes: The job; `None` if the model runs in this process alone.
        method: The method, as the user's model has it.
        variables: Returns all variables that the method may change, in an
            order that is the same in all processes.
        args: What the method was called with.
        kwargs: What it was called with by name.

    Yields:
        `args` and `kwargs` to call the method with.

    Raises:
        ClusterError: if the processes do not do the same, or if one does not
            answer.
    """
    if processes is None or _under_way.get() or _once.in_callback():
        yield args, kwargs
        return
    token = _under_way.set(True)
    try:
        args, kwargs = _by_name(method, args, kwargs)
        agreement = Agreement(processes, method.__name__, variables)
        agreement.on_call(_once.described(kwargs.get("callbacks")))
        with _once.callbacks_once(processes, agreement, kwargs) as kwargs:
            yield args, kwargs
    finally:
        _under_way.reset(token)


def _by_name(method, args, kwargs):
    """The same arguments, by name where that can be."""
    try:
        bound = inspect.signature(method).bind(*args, **kwargs)
    except TypeError:
        return args, kwargs  # The method says what is wrong with them.
    named = dict(bound.kwargs)
    names = list(bound.signature.parameters)
    if any(p.kind is p.VAR_POSITIONAL for p in bound.signature.parameters.values()):
        return args, kwargs
    return (), dict(zip(names, bound.args)) | named


def variables_of(*models) -> list:
    """All variables of models, of their optimizers and their metrics."""
    found = {}
    for model in models:
        optimizer = getattr(model, "optimizer", None)
        for variable in (
            *model.variables,
            *getattr(optimizer, "variables", ()),
            *model.metrics_variables,
        ):
            found[id(variable)] = variable
    return list(found.values())


class Agreement:
    """What all processes of a job have in common while a method runs.

    Args:
        processes: The job.
        name: The method.
        variables: See `together`.
    """

    def __init__(self, processes, name, variables):
        self.variables = variables
        self._processes = processes
        self._name = name

    def on_call(self, callbacks: list[str]) -> None:
        """All call the same method, and will draw the same numbers."""
        random_state = _random.state()
        found = self._gathered(
            {
                "method": self._name,
                "callbacks": callbacks,
                "random": zlib.crc32(json.dumps(random_state).encode()),
            },
            f"begin of `{self._name}`",
        )
        for what in ("method", "callbacks"):
            if any(other[what] != found[0][what] for other in found):
                raise ClusterError(
                    "All processes of a job call the same methods in the same "
                    "order, with callbacks of the same kinds. Received, by "
                    f"rank: {[other[what] for other in found]}. What only one "
                    "process is to do is a callback: those run in process 0."
                )
        if any(other["random"] != found[0]["random"] for other in found):
            mine = json.dumps(random_state).encode()
            shared = self._processes.shared(mine, "random state")
            _random.set_state(json.loads(shared))

    def on_begin(self) -> None:
        """All begin with the same weights: those of process 0."""
        variables = self.variables()
        mine = hashes(variables)
        found = self._gathered(
            {"shapes": _shapes(variables), "hashes": mine}, "weights"
        )
        for other in found:
            self._check_shapes(found[0]["shapes"], other["shapes"])
        wrong = sorted(
            {
                i
                for other in found
                for i, (a, b) in enumerate(
                    zip(found[0]["hashes"], other["hashes"])
                )
                if a != b
            }
        )
        if not wrong:
            return
        if self._processes.rank == 0:
            logger.info(
                "%d variables, such as %r, began with other values in other "
                "processes: those of process 0 are taken",
                len(wrong),
                variables[wrong[0]].path,
            )
        own = {i: np.asarray(variables[i]) for i in wrong}
        shared = self._processes.shared(pickle.dumps(own), "weights")
        if self._processes.rank:
            for i, value in pickle.loads(shared).items():
                variables[i].assign(value)

    def on_epoch_end(self) -> None:
        """All have the same weights and statistics, and the same slots."""
        variables = self.variables()
        found = self._gathered(hashes(variables), "end of an epoch")
        for i, variable in enumerate(variables):
            of_all = [other[i] for other in found]
            if len({*of_all}) > 1:
                raise ClusterError(
                    "Weights, statistics and optimizer slots are equal in all "
                    "processes at the end of each epoch. Received: the "
                    f"variable {variable.path!r} differs; its hashes, by rank, "
                    f"are {[f'{h:08x}' for h in of_all]}. Something that only "
                    "one process did has changed it: a `train_step` or a data "
                    "pipeline that asks for the rank, or weights that were "
                    "assigned outside of a callback."
                )

    def _gathered(self, value, reason):
        found = self._processes.gathered(json.dumps(value).encode(), reason)
        return [json.loads(other) for other in found]

    def _check_shapes(self, first, other):
        if first == other:
            return
        differing = next(
            ((a, b) for a, b in zip(first, other) if a != b), (None, None)
        )
        raise ClusterError(
            "All processes of a job build the same model. Received: "
            f"{len(first)} variables in process 0 and {len(other)} in "
            f"another; the first that differ are {differing[0]} and "
            f"{differing[1]}."
        )


def hashes(variables) -> list[int]:
    """A hash of the value of each variable."""
    return [_hash(np.asarray(variable)) for variable in variables]


def _hash(array):
    array = np.ascontiguousarray(array)
    return zlib.crc32(array.reshape(-1).view("uint8"))


def _shapes(variables):
    return [[list(v.shape), str(v.dtype)] for v in variables]
