"""The benchmark scripts run: at their smallest, and no time is asserted."""

import json
import pathlib
import subprocess
import sys

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


def tables_of(markdown):
    """From the title of each section to the cells of its table."""
    tables = {}
    for section in markdown.split("\n## ")[1:]:
        title, *lines = section.splitlines()
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in lines
            if line.startswith("|")
        ]
        tables[title] = [dict(zip(rows[0], row)) for row in rows[2:]]
    return tables


PEERS = ["keras.distribution.DataParallel", "plain Keras, 1 device"]


def run(*options):
    return subprocess.run(
        [
            *(sys.executable, BENCHMARKS / "data_parallel.py"),
            *("--quick", "--here"),
            "--workloads=host-bound",
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=540,
    )


def test_steps_and_host_cost(tmp_path):
    found = tmp_path / "found.json"
    peers = "--peers=ours,keras-distribution,ours-1,keras"
    done = run("--questions=steps,host", peers, f"--json={found}")
    assert done.returncode == 0, done.stderr
    assert "- packages: jax " in done.stdout
    tables = tables_of(done.stdout)
    for title in ("Step time", "Compile time", "Peak memory of the host"):
        assert [row["peer"] for row in tables[title]] == PEERS
        assert {row["held"] for row in tables[title]} <= {"yes", "no"}
    for row in tables["What the compiled step exchanges"]:
        # 4 layers of 32 with biases, and the loss beside the gradients.
        assert row["trainable bytes"] == str(4 * 4 * 32 * 33)
        assert row["collectives"] == "1 all-reduce"
        assert 1 <= float(row["ratio (ours at most 1.02)"]) <= 1.02
    one, several = tables["Host cost per step"]
    assert [several["peer"], one["peer"]] == PEERS
    assert {one["held"], several["held"]} <= {"yes", "no"}
    turns = json.loads(found.read_text())["host-bound"]["turns"]
    assert all(len(of_peer) == 2 for of_peer in turns.values())


def test_host_cost_with_a_peer_that_cannot_run():
    # `DataParallel` cannot run on 0 devices.
    peers = "--peers=ours,keras-distribution"
    done = run("--questions=host", "--devices=0", peers)
    assert done.returncode == 1
    (several,) = tables_of(done.stdout)["Host cost per step"]
    assert several["peer"] == PEERS[0]
    assert several["ratio [95 %]"].startswith("not run: RuntimeError")


def test_device_parallel(tmp_path):
    found = tmp_path / "found.json"
    done = subprocess.run(
        [
            *(sys.executable, BENCHMARKS / "device_parallel.py"),
            *("--quick", f"--json={found}"),
        ],
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    tables = tables_of(done.stdout)
    assert list(tables) == [
        "Two branches at the same time",
        "Time per step",
        "A chain of two stages",
        "Host cost per stage and direction",
    ]
    raw, one, *_ = tables["Two branches at the same time"]
    (chain,) = tables["A chain of two stages"]
    assert [raw["at most"], one["at most"], chain["at most"]] == [
        *("1.1", "1", "1.05")
    ]
    assert {row["held"] for row in (raw, one, chain)} <= {"yes", "no"}
    # A stage of a chain runs forward and backward, and sends both ways.
    calls = json.loads(found.read_text())["host"]["calls"]
    for kind in ("programs", "transfers"):
        assert calls["4"][kind] - calls["2"][kind] == 2 * (4 - 2)


def test_alternating(tmp_path):
    found = tmp_path / "found.json"
    done = subprocess.run(
        [
            *(sys.executable, BENCHMARKS / "alternating.py"),
            *("--quick", f"--json={found}"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    one, two = tables_of(done.stdout)["A round"]
    assert one["models"].endswith("1 device")
    assert two["models"].endswith("2 devices")
    for row in (one, two):
        assert row["at most"] == "1.05" and row["held"] in ("yes", "no")
    for seconds in json.loads(found.read_text()).values():
        assert {*seconds} == {"ours", "by hand"}
        assert all(len(of_turns) == 2 for of_turns in seconds.values())
