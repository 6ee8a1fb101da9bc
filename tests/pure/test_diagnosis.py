"""The rules that name a bottleneck, on numbers made up for each."""

import dataclasses

import pytest

from keras_parallel.planning import Crossing
from keras_parallel.planning import KindAgainstPlan
from keras_parallel.planning import split_step
from keras_parallel.planning.diagnosis import RULES
from keras_parallel.planning.diagnosis import Evidence
from keras_parallel.planning.diagnosis import diagnose


def step(**parts):
    """A step of 100 seconds of which the rest is the host."""
    given = dict.fromkeys(
        ("input", "callbacks", "compute", "communication"), 0.0
    )
    return split_step(100.0, **given | parts)


EVIDENCE = Evidence(
    devices=4,
    steps=5,
    rows=32,
    shapes=1,
    compilations=1,
    compile_seconds=10.0,
    split=True,
    time=step(compute=90.0),
    flops=1e12,
    gradient_bytes=2**30,
    largest=("model/dense", 2**29 + 1),
)

REDUCED = KindAgainstPlan("all-reduce", 10**6, 10**6)
GATHERED = KindAgainstPlan(
    "all-gather", 0, 2000, (Crossing("all-gather", "norm/mean", 1500),)
)
REDUCED_TWICE = KindAgainstPlan("all-reduce", 10**6, 2 * 10**6)

CASES = [
    ({}, "compute", "90 % of a step"),
    ({"against_plan": (REDUCED,)}, "compute", ""),
    (
        {"against_plan": (REDUCED, GATHERED), "compiled": False},
        "more than planned",
        "2.0 kB go into all-gather, 'norm/mean', which is not planned",
    ),
    (
        {"against_plan": (GATHERED, REDUCED_TWICE)},
        "more than planned",
        "2.0 MB go into all-reduce, where 1.0 MB are planned",
    ),
    ({"rows": 1, "split": False}, "uneven batches", "1 row does not divide"),
    (
        {"shapes": 5, "compilations": 5},
        "recompilation",
        "5 shapes of batch in 5 steps were compiled one by one, 2 s each",
    ),
    # The last batch of an epoch.
    ({"shapes": 2, "compilations": 2}, "compute", ""),
    ({"compilations": 5}, "recompilation", "5 times for 1 shape of batch"),
    (
        {"rows": 30, "split": False},
        "uneven batches",
        "a batch_size of 32 is shared out, 8 rows each",
    ),
    ({"compiled": False}, "eager steps", "run_eagerly=False"),
    ({"devices": 1, "split": False}, "compute", ""),
    ({"time": step(input=60.0, compute=40.0)}, "input", "60 %"),
    ({"time": step(input=90.0, compute=80.0)}, "compute", "80 %"),
    (
        {"time": step(input=25.0, compute=45.0, communication=5.0)},
        "mixed",
        "compute 45 %, input 25 %, host 25 %",
    ),
    (
        {"time": step(callbacks=50.0, compute=40.0), "callback": "Saver"},
        "callbacks",
        "50 % of a step goes by in callbacks (most of it in `Saver`)",
    ),
    (
        {
            "time": step(callbacks=50.0, compute=40.0),
            "callback": "Saver",
            "waiting_callback": "Saver",
            "logs_share": 0.2,
        },
        "callbacks",
        "(a hook after each batch makes Keras wait for its logs)",
    ),
    (
        {
            "time": step(callbacks=50.0, compute=40.0),
            "waiting_callback": "Empty",
            "logs_share": 0.9,
        },
        "callbacks",
        "(`Empty` has one), and most of it in waiting",
    ),
    (
        {
            "time": step(compute=55.0, communication=40.0),
            "flops": 2.0**30,
        },
        "large layer",
        "50 % of the 1073.7 MB of gradients",
    ),
    (
        {
            "time": step(compute=55.0, communication=40.0),
            "flops": 2.0**30,
            "largest": ("model/dense", 2**28),
        },
        "gradients",
        "exchanging 1073.7 MB of gradients",
    ),
    (
        {
            "in_stages": True,
            "time": step(compute=60.0, communication=30.0),
            "sent_bytes": 4 * 10**6,
        },
        "transfers",
        "30 % of a step goes by in sending 4.0 MB",
    ),
    (
        {"in_stages": True, "speedup_bound": 1.0},
        "one after another",
        "4 devices hold a larger model and compute no faster",
    ),
    ({"in_stages": True, "speedup_bound": 1.9}, "compute", ""),
    ({"in_stages": True, "speedup_bound": None}, "compute", ""),
    (
        {
            "in_stages": True,
            "against_plan": (KindAgainstPlan("gpu:0 to gpu:1", 0, 2000),),
        },
        "more than planned",
        "2.0 kB go from gpu:0 to gpu:1, which is not planned",
    ),
    # Few operations for each byte, and yet nothing waits.
    ({"time": step(compute=99.0), "flops": 2.0**30}, "compute", ""),
    # Many operations: it is not the gradients.
    (
        {"time": step(compute=55.0, communication=44.0)},
        "waiting",
        "waiting for the slowest device",
    ),
    (
        {"time": step(compute=55.0, communication=44.0), "virtual": True},
        "waiting",
        "their turn on the cores of this host",
    ),
    (
        {
            "time": step(compute=5.0, communication=80.0),
            "gradient_bytes": 100,
            "virtual": True,
        },
        "tiny steps",
        "95 % of a step starts work",
    ),
    (
        {
            "time": step(compute=14.0, communication=80.0),
            "gradient_bytes": 100,
            "virtual": True,
        },
        "waiting",
        "",
    ),
    (
        {"time": step(compute=10.0), "gradient_bytes": 100},
        "tiny steps",
        "steps_per_execution=10",
    ),
    (
        {
            "time": step(compute=10.0),
            "gradient_bytes": 100,
            "steps_per_execution": 10,
        },
        "tiny steps",
        "a batch_size larger than 32 does more per start",
    ),
]


@pytest.mark.parametrize(("changed", "name", "words"), CASES)
def test_each_bottleneck_is_named(changed, name, words):
    found = diagnose(dataclasses.replace(EVIDENCE, **changed))
    assert found.name == name
    assert words in found.sentence
    # One sentence.
    assert found.sentence.endswith(".")
    assert ". " not in found.sentence


def test_every_rule_is_tried():
    assert {rule.name for rule in RULES} == {name for _, name, _ in CASES}


def test_parts_of_a_step_add_up_whatever_was_measured():
    time = split_step(
        10.0, input=3.0, callbacks=9.0, compute=4.0, communication=1.0
    )
    assert (time.input, time.callbacks, time.host) == (3.0, 2.0, 0.0)
    # A recording slows down what it records.
    time = split_step(
        10.0, input=3.0, callbacks=0.0, compute=15.0, communication=5.0
    )
    assert (time.compute, time.communication) == (7.5, 2.5)
    assert (time.input, time.host) == (0.0, 0.0)
    assert time.share("compute", "communication") == 1.0
    time = split_step(
        0.0, input=0.0, callbacks=0.0, compute=0.0, communication=0.0
    )
    assert time.share("compute") == 0.0
