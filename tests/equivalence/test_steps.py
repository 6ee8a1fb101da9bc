"""Training steps of every model equal those of one device.

Reports by users that the table of models holds: G04 (siamese branches and
their sum), G22 (stateful), G23 (initial state from another branch), G25 (a
sampling layer), G35 (the same loss at the same global batch), T11 (a GAN with
its own `train_step`), O05 (two outputs of one layer), each with row counts that
do not divide (G19).
"""

import numpy as np
import pytest

import keras_parallel
from tests import models
from tests import selection

# Row counts by how they divide; N is the number of devices.
ROW_COUNTS = {
    "one row": lambda n: 1,
    "N-1 rows": lambda n: max(n - 1, 1),
    "k*B+1 rows": lambda n: 2 * models.BATCH_SIZE + 1,
    "a prime": lambda n: 2 * models.BATCH_SIZE + 5,
}


def _cases():
    """Each model on some number of devices, with some row count.

    One device, which shares nothing out, is met by one model for each.
    """
    yield from selection.in_turn(models.MODELS, (2, 3, 8), ROW_COUNTS)
    for i, name in enumerate(models.MODELS):
        for j, rows in enumerate(ROW_COUNTS):
            yield selection.case(name, 1, rows, needed=i == 7 * j)


def _batches(case, rows):
    size = models.BATCH_SIZE
    if case.whole_batches_only:
        rows = 2 * size
    rng = np.random.default_rng(3)
    sizes = [min(size, rows - start) for start in range(0, rows, size)]
    return [case.make_data(n, rng) for n in sizes]


@pytest.mark.parametrize(("name", "devices", "rows"), list(_cases()))
def test_steps_equal_one_device(name, devices, rows):
    case = models.MODELS[name]
    count = ROW_COUNTS[rows](devices)
    keras_parallel.testing.assert_trains_like_one_device(
        case.make_model, lambda: _batches(case, count), devices=devices
    )


@pytest.mark.parametrize(
    "name",
    # Half a minute for each that many layers have to be compiled for.
    selection.every(len(models.APPLICATIONS), models.APPLICATIONS),
)
def test_one_step_of_an_application_equals_one_device(name):
    case = models.APPLICATIONS[name]
    keras_parallel.testing.assert_trains_like_one_device(
        case.make_model,
        lambda: [case.make_data(8, np.random.default_rng(3))],
        devices=2,
        steps=1,
    )
