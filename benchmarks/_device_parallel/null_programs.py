"""Compiled programs and transfers that can be told to do nothing.

`engines/jax/_stage_programs.py` compiles with `jax.jit(...).lower(...)
.compile()` and transfers with `jax.device_put`. Here both are found in its name
`jax`. If it goes another way, nothing is counted, and `Seam.check` says so.
"""

import contextlib
from unittest import mock

import jax

from keras_parallel.engines.jax import _stage_programs


class Seam:
    """Stands for `jax` in the file that runs stages. Counts what is called."""

    def __init__(self):
        self.runs_programs = self.transfers = True
        self.calls = {"programs": 0, "transfers": 0}
        self._received = {}

    @contextlib.contextmanager
    def in_place(self):
        with mock.patch.object(_stage_programs, "jax", self):
            yield

    def __getattr__(self, name):
        return getattr(jax, name)

    def jit(self, function, **arguments):
        return _Jitted(self, jax.jit(function, **arguments))

    def device_put(self, values, device):
        """What was received before where transfers do nothing.

        The values are not those that were sent, which no time depends on.
        """
        self.calls["transfers"] += 1
        if not isinstance(values, list):
            return jax.device_put(values, device)
        key = device, tuple([(v.shape, v.dtype) for v in values])
        if self.transfers or key not in self._received:
            self._received[key] = jax.device_put(values, device)
        return self._received[key]

    def counted(self, run, steps):
        """Runs `steps` steps; returns what each of them called.

        Raises:
            RuntimeError: if nothing was called.
        """
        before = dict(self.calls)
        run()
        found = {k: (n - before[k]) / steps for k, n in self.calls.items()}
        if not all(found.values()):
            raise RuntimeError(
                f"Of the programs and transfers of stages none is seen: {found}"
                ". Their way to run has changed: see _stage_programs.py."
            )
        return found


class _Jitted:
    def __init__(self, seam, function):
        self._seam = seam
        self._function = function

    def lower(self, *arguments):
        self._lowered = self._function.lower(*arguments)
        return self

    def compile(self):
        return _Program(self._seam, self._lowered.compile())


class _Program:
    """A compiled program; returns its last results where it does nothing."""

    def __init__(self, seam, compiled):
        self._seam = seam
        self._compiled = compiled
        self._results = None

    def __call__(self, *arguments):
        seam = self._seam
        seam.calls["programs"] += 1
        if seam.runs_programs or self._results is None:
            # It may take the memory of what it returned last.
            self._results = None
            self._results = self._compiled(*arguments)
        return self._results
