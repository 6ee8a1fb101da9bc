"""What a check found, printed and as JSON, from values made up."""

import dataclasses
import json
import math

from keras_parallel.inspection._report import LargestDifference
from keras_parallel.inspection._report import Report
from keras_parallel.planning import Collective
from keras_parallel.planning import KindAgainstPlan
from keras_parallel.planning import Program
from keras_parallel.planning import split_step
from keras_parallel.planning.diagnosis import Diagnosis

LONG = "jit(train_step)/" + "/".join(f"part_{i}" for i in range(40))
REPORT = Report(
    model="digits",
    devices=tuple(f"gpu:{i}" for i in range(8)),
    virtual=False,
    batch_size=64,
    rows_each=8,
    steps=5,
    differences=(
        LargestDifference("log", 0.0, 1e-6, 0.0, "loss", 1),
        LargestDifference("weight", 2e-6, 4e-6, 1e-6, "dense/kernel", 3),
    ),
    noise=(),
    program=Program(
        "train_step",
        tuple(Collective("all-reduce", LONG, 10**i, 2) for i in range(8)),
        *(2.5e9, 10**6, 10**3, 10**9, 4.0),
    ),
    against_plan=(KindAgainstPlan("all-reduce", 10**8, 10**8),),
    time=split_step(
        2.0, input=0.5, callbacks=0.0, compute=1.0, communication=0.0
    ),
    compilations=1,
    step_seconds=1.5,
    one_device_seconds=6.0,
    bottleneck=Diagnosis("input", "Input: slow."),
    notes=("A note.",),
)


def test_a_page_to_read():
    text = str(REPORT)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert not any(line.endswith(" ") for line in lines)
    assert lines[0] == "Check of 'digits' on 8 devices: gpu:0, ..., gpu:7"
    assert "Equal to one device: yes" in text
    assert "2.0e-06 of the largest entry (allowed 4.0e-06, one device" in text
    assert "dense/kernel, step 3" in text
    assert "2.5 G operations; 1.0 MB in, 1.0 kB out, 1.0 GB beside" in text
    assert "2 x all-reduce" in text and "and 3 smaller; 11.1 MB in all" in text
    assert "plan, all-reduce: 100.0 MB planned, 100.0 MB compiled, 1.00" in text
    assert "speed-up 4.00, efficiency 50 %" in text
    assert lines[-1] == "What limits it: input: slow."


def test_ok_is_equal_and_within_the_plan():
    assert REPORT.ok and REPORT.equal and REPORT.within_plan
    wrong = LargestDifference("slot", math.inf, 1e-6, 0.0, "momentum", 2)
    differs = dataclasses.replace(REPORT, differences=(wrong,))
    assert not differs.ok and not differs.equal and differs.within_plan
    assert "WRONG: momentum, step 2" in str(differs)
    gather = Collective("all-gather", LONG, 10**9)
    row = KindAgainstPlan("all-gather", 0, 10**9, (gather,))
    more = dataclasses.replace(REPORT, against_plan=(row,))
    assert not more.ok and more.equal and not more.within_plan
    assert "MORE THAN PLANNED" in str(more)
    unknown = dataclasses.replace(REPORT, against_plan=None, program=None)
    assert unknown.ok
    assert "steps run eagerly" in str(unknown)


def test_json_holds_all_of_it():
    wrong = LargestDifference("slot", math.inf, 1e-6, 0.0, "momentum", 2)
    report = dataclasses.replace(REPORT, differences=(wrong,))
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert found["differences"][0]["difference"] == "inf"
    assert found["program"]["collectives"][0]["bytes"] == 1
    assert found["time"]["input"] == 0.5
    assert found["against_plan"][0]["planned"] == 10**8
    assert (found["ok"], found["speed_up"]) == (False, 4.0)
    assert found["bottleneck"] == {"name": "input", "sentence": "Input: slow."}
