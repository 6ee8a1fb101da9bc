"""Who is measured, and the environment that each one runs in."""

import dataclasses
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
SOURCES = HERE.parents[1] / "src"
_ENVIRONMENTS = HERE.parent / ".envs"

# What is installed for each environment; the rest comes with it.
_PACKAGES = {
    "jax": ("keras==3.15.1", "jax==0.10.2"),
    "tensorflow": ("keras==3.15.1", "tensorflow-cpu==2.21.0"),
    "torch": ("torch==2.13.0", "numpy"),
}


@dataclasses.dataclass(frozen=True)
class Peer:
    """One system that is measured.

    Args:
        key: The name of the command line.
        title: The name in tables.
        environment: Key of the packages it needs.
        script: The worker.
        worker: What the worker calls it.
        parallel: Whether it runs on several devices.
        far: Whether it is far from ours, so that fewer rounds will do.
    """

    key: str
    title: str
    environment: str
    script: str
    worker: str
    parallel: bool = True
    far: bool = False


PEERS = {
    p.key: p
    for p in (
        Peer("ours", "keras-parallel", "jax", "jax_worker.py", "ours"),
        Peer(
            "keras-distribution",
            "keras.distribution.DataParallel",
            "jax",
            "jax_worker.py",
            "keras-distribution",
        ),
        Peer(
            "ours-1",
            "keras-parallel, 1 device",
            "jax",
            "jax_worker.py",
            "ours",
            parallel=False,
        ),
        Peer(
            "keras",
            "plain Keras, 1 device",
            "jax",
            "jax_worker.py",
            "keras",
            parallel=False,
        ),
        Peer(
            "mirrored",
            "tf.distribute.MirroredStrategy",
            "tensorflow",
            "tensorflow_worker.py",
            "mirrored",
            far=True,
        ),
        Peer(
            "ddp",
            "torch DDP, Gloo",
            "torch",
            "torch_worker.py",
            "ddp",
            far=True,
        ),
    )
}

# Ours, whom it is held against, and the limits of the ratio of their medians.
STEP_PAIRS = (
    ("ours", "keras-distribution", 1.02),
    ("ours-1", "keras", 1.02),
    ("ours", "mirrored", 0.6),
    ("ours", "ddp", None),
)
KERAS_PAIRS = STEP_PAIRS[:2]


class EnvironmentError_(Exception):
    """An environment could not be made."""


def python_of(environment, here, say):
    """The interpreter of an environment, which is made if it is not there.

    Args:
        environment: A key of the packages.
        here: Use the interpreter that runs this instead.
        say: Called with lines about progress.
    """
    if here:
        return sys.executable
    folder = _ENVIRONMENTS / environment
    python = folder / "bin" / "python"
    done = folder / ".installed"
    packages = _PACKAGES[environment]
    if done.exists() and done.read_text() == " ".join(packages):
        return str(python)
    say(f"making {folder.name}: {' '.join(packages)}")
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *packages],
    ):
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            last = (made.stderr.strip().splitlines() or ["no message"])[-1]
            raise EnvironmentError_(f"no environment: {last[:200]}")
    done.write_text(" ".join(packages))
    return str(python)
