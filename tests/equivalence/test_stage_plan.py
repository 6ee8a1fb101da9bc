"""The plan of a model in stages, against what was compiled."""

import pytest

import keras_parallel as kp
from keras_parallel.planning import compare
from tests.equivalence.test_device_parallel import CASES
from tests.equivalence.test_device_parallel import make_batches
from tests.equivalence.test_device_parallel import make_model

pytestmark = pytest.mark.filterwarnings("ignore:.*calls in device scopes")

ROWS = 1000
# Single numbers are not in the plan.
SLACK = 1024


def against(model, batch, rows=ROWS):
    """What crosses, by the plan and as compiled."""
    plan = kp.plan(model, rows)
    model.train_on_batch(*batch)  # Makes what Keras makes at the first batch.
    program = model._keras_parallel.execution.program(model, "train", batch)
    return compare(plan, program), program


def agree(row):
    return row.ok and row.planned <= 1.02 * row.compiled + SLACK


@pytest.mark.parametrize("name", list(CASES))
def test_what_is_planned_is_what_is_sent(name):
    """Between each two devices, in each direction."""
    model = kp.device_parallel(make_model(name))
    rows, program = against(model, make_batches(name, sizes=(ROWS,))[0])
    assert program.parts > 1 and rows
    for row in rows:
        assert agree(row), row


@pytest.mark.parametrize("name", ["two_towers", "u_net", "nested"])
def test_a_plan_of_another_placement_is_not(name):
    """The comparison above can fail."""
    model = kp.device_parallel(make_model(name))
    rows, program = against(model, make_batches(name, sizes=(ROWS,))[0])
    assert all(map(agree, rows))
    other = make_model(name)
    other = kp.device_parallel(other, {other.layers[-1].name: "gpu:5"})
    assert not all(map(agree, compare(kp.plan(other, ROWS), program)))
