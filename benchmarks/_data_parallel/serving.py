"""How a worker takes orders: one line of JSON in, one line out."""

import json
import os
import resource
import sys
import time
import traceback


def serve(runner):
    """Runs what the parent asks `runner` for, until it closes the pipe.

    What libraries print goes to standard error, out of the way of replies.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        verb = order.pop("do")
        try:
            reply = getattr(runner, verb)(**order)
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), file=replies, flush=True)


def peak_memory():
    """The most memory that this process held so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def compile_seconds(run_one_batch):
    """What the first two runs of one batch took beyond the third.

    Two, because some peers compile a second time for the state that the first
    step returned.
    """
    took = []
    for _ in range(3):
        start = time.perf_counter()
        run_one_batch()
        took.append(time.perf_counter() - start)
    return took[0] + took[1] - 2 * took[2]


def timed(run, steps):
    """Seconds per step of `run`, and seconds of all cores per step."""
    start, cores = time.perf_counter(), time.process_time()
    run()
    return {
        "seconds": (time.perf_counter() - start) / steps,
        "core_seconds": (time.process_time() - cores) / steps,
    }
