"""Measures `fit` of a twin, each time from the same state."""

import collections
import dataclasses
import warnings

from keras_parallel.inspection._watch import Waiter
from keras_parallel.inspection._watch import Watch
from keras_parallel.inspection._watch import batch_hooks
from keras_parallel.planning import Busy
from keras_parallel.planning import busy_devices
from keras_parallel.planning import busy_together
from keras_parallel.planning import compile_seconds
from keras_parallel.planning import step_of
from keras_parallel.strategies import _twin
from keras_parallel.strategies._wording import error
from keras_parallel.testing import _state

_STEP = "train_step"


@dataclasses.dataclass(frozen=True)
class PerStep:
    """A `fit`, in seconds per step where it says nothing else.

    Args:
        total: From step to step, without compilation.
        input: In the data of the user.
        callbacks: In the hooks of batches of the user's callbacks.
        slowest: The class of the callback that took longest in them, if any
            took time.
        compilations: How often the step was compiled, in all.
        compile_seconds: How long that took, in all.
        batches: What was trained on.
        stopped: Whether a callback stopped it.
    """

    total: float
    input: float
    callbacks: float
    slowest: str | None
    compilations: int
    compile_seconds: float
    batches: list
    stopped: bool = False


class Bench:
    """Runs `fit` of a twin.

    Args:
        twin: The twin, which has not trained.
        parallel: The parallel one of the twins.
        start: The state from which each `fit` starts.
    """

    def __init__(self, twin, parallel, start):
        self._twin = twin
        self._start = start
        self._engine = parallel._keras_parallel.engine
        self._is_same_on_each = parallel._keras_parallel.splits_rows
        self._watch = Watch()
        _twin.watch(
            twin,
            self._watch.around_step,
            self._watch.around_preparation if twin is parallel else None,
        )

    def fit(self, arguments, steps, callbacks=()) -> PerStep:
        """Trains for some steps and says how long they took."""
        _state.restore(self._twin, self._start)
        watch = self._watch
        watch.reset(-(-steps // self._twin.steps_per_execution))
        hooks = batch_hooks(callbacks, watch) if callbacks else None
        with (
            self._engine.compilations() as compiled,
            warnings.catch_warnings(),
        ):
            # A dataset may have fewer batches than were asked for.
            warnings.filterwarnings("ignore", message=".*ran out of data")
            self._fit(arguments, hooks)
        own = [c for c in compiled if step_of(c.name) == _STEP]
        # A step of several programs is compiled as often as each of them.
        times = collections.Counter(c.name for c in own)
        done = len(watch.batches) or steps
        return PerStep(
            # What is compiled beside the step lies between the steps too.
            total=(watch.total - compile_seconds(compiled)) / done,
            input=watch.input / done,
            callbacks=sum(hooks.seconds.values()) / done if hooks else 0.0,
            slowest=hooks.slowest if hooks else None,
            compilations=max(times.values(), default=0),
            compile_seconds=compile_seconds(own),
            batches=watch.batches,
            stopped=hooks is not None and self._twin.stop_training,
        )

    def _fit(self, arguments, hooks):
        try:
            self._twin.fit(
                **arguments,
                epochs=1,
                verbose=0,
                callbacks=[hooks] if hooks else None,
            )
        except TypeError as failure:
            if hooks is None or self._twin.train_function is not None:
                raise
            # Keras made it before the first callback, and calls it after.
            raise error(
                "Callbacks leave the model as it was compiled while it trains.",
                "a callback that calls `compile`, which makes any `fit` end "
                "in a TypeError",
                "callback.model.optimizer.learning_rate = 0.01",
            ) from failure

    def seconds(self, arguments) -> float:
        """How long a step takes: the shorter of two measurements.

        Args:
            arguments: Returns a list of batches, as arguments of `fit`, and
                how many there are.
        """
        return min(self.fit(*arguments()).total for _ in range(2))

    def seconds_and_waiting(self, arguments) -> tuple[float, float]:
        """The same, and how much longer it takes with a hook that is empty.

        For a hook at the end of each batch Keras waits for its logs. The two
        are measured in turn, so that a busy machine is busy for both.
        """
        without, waiting = [], []
        for _ in range(3):
            for found, hooks in ((without, ()), (waiting, (Waiter(),))):
                batches, steps = arguments()
                found.append(self.fit(batches, steps, hooks).total)
        return min(without), max(min(waiting) - min(without), 0.0)

    def busy(self, arguments, steps, total) -> Busy:
        """What devices did in a step.

        That is the mean over devices that all do the same, and what at least
        one of them did where each does something else.

        Args:
            arguments: Arguments of `fit`.
            steps: How many steps they give.
            total: Seconds of such a step when it is not recorded, which slows
                it down.
        """
        with self._engine.profile() as recording:
            recorded = self.fit(arguments, steps)
        timeline = _of_steps(recording.timeline)
        if self._is_same_on_each:
            found = list(busy_devices(timeline).values())
        else:
            found = [busy_together(timeline)]
        scale = min(1.0, total / recorded.total) / max(len(found) * steps, 1)
        return Busy(
            scale * sum(b.compute for b in found),
            scale * sum(b.communication for b in found),
        )

    def program(self, batch, compiled: PerStep):
        """What a step was compiled to for a batch, and how long that took.

        Args:
            batch: The batch.
            compiled: The `fit` in which it was compiled first.
        """
        execution = self._twin._keras_parallel.execution
        program = execution.program(self._twin, "train", batch)
        if program is None or not compiled.compilations:
            return program
        seconds = compiled.compile_seconds / compiled.compilations
        return dataclasses.replace(program, compile_seconds=seconds)


def _of_steps(timeline):
    """What belongs to steps, where the timeline can tell."""
    events = tuple(e for e in timeline.events if _STEP in (e.program or _STEP))
    # Steps that are not compiled are many programs.
    return dataclasses.replace(timeline, events=events or timeline.events)
