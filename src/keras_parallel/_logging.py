"""The `keras_parallel` logger."""

import logging
import sys

logger = logging.getLogger("keras_parallel")


class _UntilConfigured(logging.Handler):
    """Prints to stderr as long as the program has set up no logging."""

    def emit(self, record):
        if not logging.getLogger().handlers:
            sys.stderr.write(f"keras-parallel: {record.getMessage()}\n")


def _show_when_unconfigured():
    # One line per fit is part of what people are promised to see, and the
    # standard library hides INFO in a program that configured nothing.
    if not logger.handlers:
        logger.addHandler(_UntilConfigured())
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


_show_when_unconfigured()
