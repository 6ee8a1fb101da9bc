"""The checks that need a GPU run, on virtual devices, and find faults."""

import json
import pathlib
import subprocess
import sys

import pytest

from tests import selection

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


def run(tmp_path, *options):
    found = tmp_path / "found.json"
    done = subprocess.run(
        [
            *(sys.executable, BENCHMARKS / "check_gpu.py"),
            *("--virtual-devices=2", "--lanes=2", f"--json={found}"),
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=540,
    )
    rows = json.loads(found.read_text())["rows"] if found.exists() else []
    return done, rows


PARTS = (
    *("devices", "equality", "like-one-device", "mixed-precision"),
    *("memory", "classic", "visible-devices", "scopes"),
    *("trace", "host-cost", "step-time"),
)
# Beside what runs below, and in `test_examples.py`; one of two that time.
FEWER = tuple(
    part
    for part in PARTS
    if part
    not in ("equality", "like-one-device", "classic", "scopes", "step-time")
)


@pytest.mark.parametrize("parts", selection.every(2, [FEWER, PARTS]), ids=len)
def test_every_part_runs_and_is_judged(parts, tmp_path):
    chosen = [] if parts == PARTS else [f"--parts={','.join(parts[1:])}"]
    done, rows = run(tmp_path, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    results = {}
    for row in rows:
        results.setdefault(row["part"], set()).add(row["result"])
    assert tuple(results) == parts
    for part, of_part in results.items():
        assert {"ok"} <= of_part <= {"ok", "shown"}, part
        assert f"| {part} |" in done.stdout


def test_a_fault_is_found(tmp_path):
    done, rows = run(
        tmp_path, "--plant-fault", "--parts=equality,like-one-device"
    )
    assert done.returncode == 1
    failed = {row["part"] for row in rows if row["result"] == "FAILED"}
    assert failed == {"equality", "like-one-device"}
    assert "failed or did not run" in done.stdout


def test_a_part_that_hangs_or_breaks_takes_no_other_along(tmp_path):
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "os.environ['KERAS_PARALLEL_VIRTUAL_DEVICES'] = '2'\n"
        "from _check_gpu import children, report\n"
        "for part, limit in (('scopes', 60), ('equality', 0), ('none', 60)):\n"
        "    outcome = children.run(part, limit, True)\n"
        "    print(report.rows_of(part, outcome)[-1]['result'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(BENCHMARKS)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.split("\n")[:3] == ["ok", "FAILED", "FAILED"]


def test_without_a_gpu_it_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "check_gpu.py", "--lacking"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    # JAX for CUDA is what the tests run without.
    if "jax[cuda" in done.stderr:
        assert done.returncode == 2
        assert "check_gpu cannot run" in done.stderr
