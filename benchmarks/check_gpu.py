"""The checks that need a GPU, in at most 8 minutes.

    scripts/check_gpu
    python benchmarks/check_gpu.py --virtual-devices 2    # to try it without

Needs Keras, NumPy and a JAX for CUDA in the Python that runs it, and installs
nothing. Each part has a process and a time limit of its own. The exit status
is 0 if all is ok, 1 if something failed or was not run, 2 if the checks
cannot be run here.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import signal
import sys
import time

from _check_gpu import children
from _check_gpu import needs
from _check_gpu import report
from _check_gpu.parts import DEVICES
from _check_gpu.parts import FAULT
from _check_gpu.parts import PARTS
from _check_gpu.parts import WHOLE

# A part is not begun with less.
_LEAST_SECONDS = 15


def main():
    options = _options()
    missing = needs.lacking(bool(options.virtual_devices))
    if missing:
        return _cannot_run(f"{sys.executable} lacks: {', '.join(missing)}")
    if options.lacking:
        return 0
    # As Ctrl-C does, so that no child stays on a GPU.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    check = _Check(options)
    check.say(f"{sys.executable}, parts: {', '.join(options.parts)}")
    if not check.devices():
        return 2
    check.together([p for p in PARTS if not p.alone])
    check.together([p for p in PARTS if p.alone], alone=True)
    print("\n".join(["", *report.table(check.rows)]))
    for text in check.texts:
        print(f"\n{text}")
    print(f"\n{report.verdict(check.rows)}, in {check.seconds():.0f} s")
    if options.json:
        found = {"rows": check.rows, "seconds": round(check.seconds(), 1)}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(map(report.is_bad, check.rows)))


def _options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [part.name for part in PARTS]
    parser.add_argument(
        "--virtual-devices",
        type=int,
        metavar="N",
        help="run everything at the smallest sizes on N virtual devices",
    )
    parser.add_argument(
        "--parts",
        type=lambda text: text.split(","),
        default=names,
        help=f"with commas between, of: {', '.join(names)}",
    )
    parser.add_argument(
        "--lanes",
        type=int,
        default=3,
        help="parts that run at the same time, where no time is measured",
    )
    parser.add_argument("--json", type=pathlib.Path, help="file for the rows")
    parser.add_argument(
        "--plant-fault",
        action="store_true",
        help="make gradients wrong, to see that the checks fail",
    )
    parser.add_argument(
        "--lacking",
        action="store_true",
        help="only say which packages this Python lacks",
    )
    options = parser.parse_args()
    if options.virtual_devices is not None and options.virtual_devices < 1:
        parser.error("--virtual-devices counts from 1")
    unknown = sorted(set(options.parts) - set(names))
    if unknown:
        parser.error(f"no such parts: {unknown}; there are {names}")
    return options


def _cannot_run(why):
    print(f"check_gpu cannot run: {why}", file=sys.stderr)
    return 2


class _Check:
    """The run of all parts.

    Args:
        options: Those of the command line.
    """

    def __init__(self, options):
        self.rows, self.texts = [], []
        self._options = options
        self._began = time.monotonic()
        self._tiny = bool(options.virtual_devices)
        self._environment = _environment(options)
        self._gpus = 0

    def seconds(self):
        """Seconds since the start."""
        return time.monotonic() - self._began

    def say(self, line):
        minutes, seconds = divmod(int(self.seconds()), 60)
        print(f"[{minutes}:{seconds:02}] {line}", file=sys.stderr, flush=True)

    def devices(self):
        """Looks for GPUs; returns whether there are some."""
        outcome = self._run(DEVICES, {})
        self._gpus = outcome.data.get("gpus", 0)
        self._take(DEVICES, outcome)
        if self._gpus:
            return True
        why = outcome.problem or "no GPU was found"
        hint = outcome.log or "keras-parallel devices shows what JAX finds"
        _cannot_run(f"{why}\n{hint}\nTo try it: --virtual-devices 2")
        return False

    def together(self, parts, alone=False):
        """Runs parts, some at the same time; keeps the order of the table."""
        chosen = [p for p in parts if p.name in self._options.parts]
        # On virtual devices no time is judged.
        one = alone and not self._tiny
        lanes = 1 if one else max(self._options.lanes, 1)
        with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
            try:
                for part, outcome in zip(chosen, pool.map(self._try, chosen)):
                    self._take(part, outcome)
            except BaseException:
                children.end_all()
                raise

    def _try(self, part):
        if WHOLE - self.seconds() < _LEAST_SECONDS:
            return None
        options = {}
        if part.name == "visible-devices":
            options["visible"] = self._visible()
        if part.name == "memory":
            options["gpus"] = self._gpus
        return self._run(part, options)

    def _run(self, part, options):
        environment = dict(self._environment)
        if part.deterministic and not self._tiny:
            flags = environment.get("XLA_FLAGS", "")
            environment["XLA_FLAGS"] = f"{flags} {children.DETERMINISTIC}"
        limit = min(part.limit, WHOLE - self.seconds())
        self.say(f"{part.name} begins, at most {limit:.0f} s")
        outcome = children.run(
            part.name, limit, self._tiny, options, environment
        )
        end = outcome.problem or "done"
        self.say(f"{part.name}: {end}, {outcome.seconds:.1f} s")
        return outcome

    def _take(self, part, outcome):
        if outcome is None:
            why = "the time of the whole check is over"
            self.rows.append(report.not_run(part.name, why))
            return
        self.rows += report.rows_of(part.name, outcome)
        self.texts += outcome.texts
        if outcome.problem:
            self.texts.append(f"{part.name} printed last:\n{outcome.log}")

    def _visible(self):
        given = self._environment.get("CUDA_VISIBLE_DEVICES", "")
        names = [name for name in given.split(",") if name]
        return names or [str(i) for i in range(self._gpus)]


def _environment(options):
    """What all parts have in common."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        # Several of them use a GPU at the same time.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    environment.pop("KERAS_PARALLEL_VIRTUAL_DEVICES", None)
    if options.plant_fault:
        environment[FAULT] = "1"
    platforms = environment.get("JAX_PLATFORMS", "")
    if options.virtual_devices:
        count = str(options.virtual_devices)
        environment["KERAS_PARALLEL_VIRTUAL_DEVICES"] = count
        environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    elif platforms and "cpu" not in platforms.split(","):
        # GPUs are compared with it.
        environment["JAX_PLATFORMS"] = f"{platforms},cpu"
    return environment


if __name__ == "__main__":
    sys.exit(main())
