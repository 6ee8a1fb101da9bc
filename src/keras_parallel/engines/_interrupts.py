"""Ctrl-C between two steps, never inside one, and never lost.

A step consumes the state and returns the next one. An exception raised by a
signal in between, after the one is gone and before the other is written to the
variables, would leave a model without weights. And where Keras waits for the
logs of a step, which is where most of the time goes, it catches every exception
that comes, Ctrl-C among them.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator

# The function of Keras that has a bare `except:` around the wait. Named in
# `tests/surface/test_keras_private.py`.
WAITS_FOR_LOGS = "pythonify_logs"


class Interrupts:
    """Makes signals that raise wait for the end of a step.

    Example:

    ```python
    with interrupts.watched():  # around a method
        with interrupts:  # around a step
            ...
    ```

    A signal inside a step is handled at its end; one that would be lost, before
    the next step. A second one is handled at once: what is stuck can be left.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self):
        self._depth = 0
        self._waiting = None
        self._watching = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """The context in which signals are looked at. May be nested."""
        if self._watching or not _in_main_thread():
            yield
            return
        self._watching = True
        set_here = []
        for number in self._SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):  # Others end the process, or do nothing.
                ours = self._held_back(handler)
                signal.signal(number, ours)
                set_here.append((number, handler, ours))
        try:
            yield
        finally:
            self._watching = False
            for number, handler, ours in set_here:
                if signal.getsignal(number) is ours:
                    signal.signal(number, handler)
            self._handle_waiting()

    def _held_back(self, handler):
        def handle(number, frame):
            if self._waiting is None and (self._depth or _is_caught(frame)):
                self._waiting = lambda: handler(number, frame)
            else:
                handler(number, frame)

        return handle

    def _handle_waiting(self):
        if self._waiting is not None and not self._depth:
            handle, self._waiting = self._waiting, None
            handle()

    def __enter__(self):
        if _in_main_thread():
            self._handle_waiting()
            self._depth += 1

    def __exit__(self, *_):
        if _in_main_thread():
            self._depth -= 1
            self._handle_waiting()


def _in_main_thread():
    # Python handles signals there only.
    return threading.get_ident() == threading.main_thread().ident


def _is_caught(frame):
    while frame is not None:
        if frame.f_code.co_name == WAITS_FOR_LOGS:
            return True
        frame = frame.f_back
    return False
