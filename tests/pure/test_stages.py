"""Cutting a graph into stages, without a device."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from keras_parallel import _errors
from keras_parallel.planning.stages import Operation
from keras_parallel.planning.stages import cut_into_stages

PLACES = ("gpu:0", "gpu:1", "cpu:0")


@st.composite
def graphs(draw, places=(*PLACES, None)):
    """Operations that each read what is there, and some results."""
    values, operations = ["input"], []
    for i in range(draw(st.integers(1, 24))):
        some = st.lists(st.sampled_from(values), max_size=3)
        reads = tuple(dict.fromkeys(draw(some)))
        writes = tuple(f"{i}.{j}" for j in range(draw(st.integers(1, 2))))
        place = draw(st.sampled_from(places))
        waits = draw(st.booleans())
        operations.append(Operation(i, place, reads, writes, waits))
        values += writes
    placed = [v for o in operations if o.place for v in o.writes]
    results = draw(st.lists(st.sampled_from(placed))) if placed else []
    return operations, results


@given(graphs())
@settings(max_examples=300, deadline=None)
def test_stages_can_run_in_order(graph):
    """Each finds what it reads, and all results are there at the end."""
    operations, results = graph
    by_key = {o.key: o for o in operations}
    made = {value for o in operations for value in o.writes}
    there = {"input"}
    stages = cut_into_stages(operations, results)
    for stage in stages:
        assert set(stage.reads) <= there
        inside = set(stage.reads)
        for key in stage.operations:
            assert set(by_key[key].reads) <= inside
            inside |= set(by_key[key].writes)
        assert set(stage.writes) <= inside & made
        there |= set(stage.writes)
    assert set(results) <= there


@given(graphs())
@settings(max_examples=300, deadline=None)
def test_every_operation_runs_once_on_its_place(graph):
    operations, results = graph
    places = {o.key: o.place for o in operations}
    ran = [
        (key, stage.place)
        for stage in cut_into_stages(operations, results)
        for key in stage.operations
        if places[key] is not None
    ]
    assert sorted(ran) == sorted((k, p) for k, p in places.items() if p)


@given(graphs(places=PLACES))
@settings(max_examples=300, deadline=None)
def test_nothing_is_written_that_nobody_reads(graph):
    operations, results = graph
    stages = cut_into_stages(operations, results)
    asked_for = {*results, *(v for stage in stages for v in stage.reads)}
    assert all(set(stage.writes) <= asked_for for stage in stages)
    assert all(len(set(s.writes)) == len(s.writes) for s in stages)


@given(graphs(places=PLACES))
@settings(max_examples=200, deadline=None)
def test_one_place_is_at_most_two_stages(graph):
    """What does not wait, and what does."""
    operations, results = graph
    alone = [dataclasses.replace(o, place="gpu:0") for o in operations]
    assert len(cut_into_stages(alone, results)) <= 2


def chain(*places):
    return [
        Operation(i, place, (i - 1,) if i else ("input",), (i,))
        for i, place in enumerate(places)
    ]


def kinds(stages):
    return [(stage.place, stage.operations) for stage in stages]


def test_a_chain_is_cut_where_it_crosses():
    stages = cut_into_stages(chain("a", "a", "b", "a"), [3])
    assert kinds(stages) == [("a", (0, 1)), ("b", (2,)), ("a", (3,))]
    assert [stage.reads for stage in stages] == [("input",), (1,), (2,)]
    assert [stage.writes for stage in stages] == [(1,), (2,), (3,)]


def test_branches_do_not_wait_for_each_other():
    operations = [
        Operation("left", "a", ("input",), ("l",)),
        Operation("right", "b", ("input",), ("r",)),
        Operation("join", "c", ("l", "r"), ("sum",)),
    ]
    first, second, last = cut_into_stages(operations, ["sum"])
    assert {first.place, second.place} == {"a", "b"}
    assert first.reads == second.reads == ("input",)
    assert last.reads == ("l", "r")


def test_updates_run_after_what_another_place_waits_for():
    operations = [
        Operation("forward", "a", ("x", "w"), ("y",)),
        Operation("metric", "a", ("y",), ("m",), may_wait=True),
        Operation("head", "b", ("y",), ("dy",)),
        Operation("backward", "a", ("dy",), ("dw",)),
        Operation("update", "a", ("w", "dw"), ("new",), may_wait=True),
    ]
    stages = cut_into_stages(operations, ["m", "new"])
    assert kinds(stages) == [
        ("a", ("forward",)),
        ("b", ("head",)),
        ("a", ("backward",)),
        ("a", ("metric", "update")),
    ]


def test_what_costs_nothing_is_made_where_it_is_read():
    operations = [
        Operation("zeros", None, (), ("z",)),
        Operation("shape", None, ("w", "z"), ("v",)),
        *(Operation(p, p, ("v",), (p,)) for p in ("a", "b")),
        Operation("unused", None, ("w",), ("u",)),
    ]
    for stage in cut_into_stages(operations, ["a", "b"]):
        assert stage.operations == ("zeros", "shape", stage.place)
        assert stage.reads == ("w",)


def test_what_waits_for_itself_is_refused():
    operations = [
        Operation("first", "a", ("y",), ("x",)),
        Operation("second", "b", ("x",), ("y",)),
    ]
    with pytest.raises(_errors.PlanError, match="'first' reads 'y', which"):
        cut_into_stages(operations)


def test_a_value_is_made_once():
    operations = [Operation(i, "a", (), ("x",)) for i in range(2)]
    with pytest.raises(_errors.PlanError, match="made by 0 and by 1"):
        cut_into_stages(operations)


def test_a_result_has_a_place():
    with pytest.raises(_errors.PlanError, match="made by 'o' with place=None"):
        cut_into_stages([Operation("o", None, (), ("x",))], ["x"])
