"""What the ways of running a model on JAX devices have in common."""

import contextlib
import threading

import jax

from keras_parallel.engines._interrupts import Interrupts
from keras_parallel.engines.jax._trainer import JaxTrainerLayer

_KINDS = ("train", "test", "predict")


class JaxExecution:
    """The methods of a model that run on several devices, one at a time.

    `JaxTrainerLayer` asks it for the state of a step, for its function, and
    for what is put around a step while that is traced.
    """

    reserved_methods = ("_get_jax_state", "jax_state_sync")

    def __init__(self, *args):
        super().__init__(*args)
        # Where Keras keeps a model that is not parallel.
        self.home = next(iter(jax.numpy.zeros(()).devices()))
        # How many methods run, one inside another or in several threads.
        self._depth = 0
        # A step consumes the state that it is given: one thread at a time.
        self.lock = threading.RLock()
        self.of_thread = threading.local()
        self.interrupts = Interrupts()

    @property
    def trainer_layer(self):
        return JaxTrainerLayer

    def function_of(self, model, kind):
        """What Keras has made for `kind`, or what runs in its place."""
        return getattr(model, f"{kind}_function")

    @contextlib.contextmanager
    def running(self, model):
        with self.lock:
            self._depth += 1
        try:
            with self.interrupts.watched():
                try:
                    yield
                finally:
                    with self.lock, self.interrupts:
                        # Another thread may still run a method.
                        if self._depth == 1:
                            states = model._keras_parallel.states
                            # First the one that has all variables, and sees
                            # which of them hold one array.
                            for kind in sorted(states, key=_KINDS.index):
                                states[kind].bring_home()
        finally:
            with self.lock:
                self._depth -= 1
