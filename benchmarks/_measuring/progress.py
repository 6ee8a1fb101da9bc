"""What a script tells while it runs."""

import sys
import time

_BEGUN = time.monotonic()


def say(line):
    """Prints a line on standard error, with the time since the start."""
    minutes, seconds = divmod(int(time.monotonic() - _BEGUN), 60)
    print(f"[{minutes}:{seconds:02}] {line}", file=sys.stderr, flush=True)
