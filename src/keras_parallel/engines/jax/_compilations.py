"""What JAX compiles, as it tells those who ask (`jax.monitoring`)."""

import contextlib
import re
import time

import jax

from keras_parallel.planning import Compilation

_PREFIX = "/jax/core/compile/"
_TRACED = (
    _PREFIX + "jaxpr_trace_duration",
    _PREFIX + "jaxpr_to_mlir_module_duration",
)
_COMPILED = _PREFIX + "backend_compile_duration"


@contextlib.contextmanager
def compilations():
    """Yields a list that grows by what is compiled inside."""
    found, before = [], {}

    def hear(event, duration_secs, **about):
        name = _plain(str(about.get("fun_name", "")))
        if event in _TRACED:
            before[name] = before.get(name, 0.0) + duration_secs
        elif event == _COMPILED:
            seconds = duration_secs + before.pop(name, 0.0)
            found.append(Compilation(name, seconds, time.perf_counter()))

    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)


def _plain(name):
    """`"train_step"` of `"jit(train_step)"`."""
    inside = re.fullmatch(r"\w+\((.*)\)", name)
    return inside[1] if inside else name
