"""The command `keras-parallel`."""

import argparse
import importlib.metadata
import os
import platform
import runpy
import sys
from collections.abc import Sequence

import keras_parallel
from keras_parallel._errors import KerasParallelError
from keras_parallel.engines import active_engine
from keras_parallel.engines import apply_environment
from keras_parallel.engines import choose_backend
from keras_parallel.engines import set_virtual_devices_from_outside


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except KerasParallelError as error:
        if options.command is _run:
            # Where in the user's script it happened is what they need.
            raise
        return _fail(error)


def _fail(message):
    print(f"keras-parallel: {message}", file=sys.stderr)
    return 2


def _parser():
    parser = argparse.ArgumentParser(
        prog="keras-parallel",
        description="Train Keras models on every device.",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"keras-parallel {keras_parallel.__version__}",
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    devices = commands.add_parser(
        "devices", help="list the devices that can be used"
    )
    _add_virtual_devices(devices)
    devices.set_defaults(command=_devices)

    run = commands.add_parser(
        "run",
        help="run a script, with virtual devices if asked for",
        description="Runs a Python script as `python script.py` would.",
    )
    _add_virtual_devices(run)
    run.add_argument("script", help="path of a Python script")
    run.add_argument(
        "args",
        nargs=argparse.REMAINDER,
        help="arguments of the script",
    )
    run.set_defaults(command=_run)

    check = commands.add_parser(
        "check",
        help="check the first `fit` of a script",
        description=(
            "Runs a Python script up to its first `fit`, and checks that "
            "model on that data, on one device and on all: what differs, what "
            "was compiled, where time goes. The exit status is 0 if all "
            "devices give what one gives, 1 if not, 2 if there was nothing to "
            "check or the report cannot be written."
        ),
    )
    _add_virtual_devices(check)
    check.add_argument(
        "--json", metavar="PATH", help="write the report there, too"
    )
    check.add_argument("script", help="path of a Python script")
    check.add_argument(
        "args",
        nargs=argparse.REMAINDER,
        help="arguments of the script",
    )
    check.set_defaults(command=_check)

    migrate = commands.add_parser(
        "migrate",
        help="rewrite scripts of Keras 2",
        description=(
            "Rewrites scripts of Keras 2 for Keras 3 and keras-parallel, and "
            "names what it cannot decide. The exit status is 0 if all is "
            "decided, 1 if something remains, 2 if a script cannot be read."
        ),
    )
    migrate.add_argument(
        "scripts", nargs="+", metavar="script", help="paths of Python scripts"
    )
    migrate.add_argument(
        "--write",
        action="store_true",
        help="change the scripts; without it the differences are shown",
    )
    migrate.set_defaults(command=_migrate)

    env = commands.add_parser("env", help="print versions, for a bug report")
    _add_virtual_devices(env)
    env.set_defaults(command=_env)
    return parser


def _add_virtual_devices(parser):
    parser.add_argument(
        "--virtual-devices",
        type=_positive_int,
        metavar="N",
        help="let N CPU devices stand for N GPUs",
    )


def _positive_int(text):
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(
            "it is an integer of at least 1. Received: "
            f"{text!r}. An option that works: `--virtual-devices 8`."
        )
    return number


def _start(options):
    choose_backend()
    if options.virtual_devices is not None:
        # Through the environment, so that processes of the script's own
        # have the same devices.
        set_virtual_devices_from_outside(options.virtual_devices)
    apply_environment()


def _devices(options):
    _start(options)
    for device in active_engine().list_devices():
        print(device)
    return 0


def _wrong_script(name, script):
    if os.path.isfile(script):
        return None
    folder = os.path.isdir(script)
    works = os.path.join(script if folder else "", "train.py")
    return (
        f"`{name}` takes the path of a Python file. Received: "
        f"{script!r}, a {'folder' if folder else 'path of no file'}"
        f". A call that works: `keras-parallel {name} {works}`."
    )


def _check(options):
    wrong = _wrong_script("check", options.script)
    if wrong is not None:
        return _fail(wrong)
    wrong = None if options.json is None else _cannot_write(options.json)
    if wrong is not None:
        return _fail(
            "`--json` takes the path of a file that can be written. Received: "
            f"{options.json!r}, {wrong}. An option that works: "
            "`--json report.json`."
        )
    _start(options)
    # It imports Keras, and the other commands do without it.
    from keras_parallel.inspection import _command

    return _command.run(options.script, options.args, options.json)


def _cannot_write(path):
    """Tries it, before the time of a check is spent."""
    is_new = not os.path.lexists(path)
    try:
        with open(path, "a", encoding="utf-8"):
            pass
        if is_new:
            os.remove(path)
    except OSError as error:
        return error.strerror
    return None


def _run(options):
    wrong = _wrong_script("run", options.script)
    if wrong is not None:
        return _fail(wrong)
    try:
        _start(options)
    except KerasParallelError as error:
        return _fail(error)
    sys.argv = [options.script, *options.args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
    runpy.run_path(options.script, run_name="__main__")
    return 0


def _migrate(options):
    # LibCST is an extra, and the other commands do without it.
    from keras_parallel.migrate import _command

    return _command.run(options.scripts, options.write)


def _env(options):
    _start(options)
    engine = active_engine()
    rows = {
        "keras-parallel": keras_parallel.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": str(os.cpu_count()),
        "keras": importlib.metadata.version("keras"),
        "backend": engine.backend,
        **engine.versions(),
        "devices": ", ".join(str(d) for d in engine.list_devices()),
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
