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

DEVICES = (1, 2, 3, 8)
# Row counts by how they divide; N is the number of devices.
ROW_COUNTS = {
    "one row": lambda n: 1,
    "N-1 rows": lambda n: max(n - 1, 1),
    "k*B+1 rows": lambda n: 2 * models.BATCH_SIZE + 1,
    "a prime": lambda n: 2 * models.BATCH_SIZE + 5,
}


def _all_and_pairwise():
    """Every combination; `full` marks those that no pair of values needs.

    Model i meets each number of devices once, and over the models each
    number of devices meets each row count (a Latin square). One device, which
    shares nothing out, is met by every fourth model.
    """
    for i, name in enumerate(models.MODELS):
        for j, devices in enumerate(DEVICES):
            for k, rows in enumerate(ROW_COUNTS):
                needed = (i + j) % len(ROW_COUNTS) == k and (
                    devices > 1 or i % 4 == 0
                )
                yield pytest.param(
                    name,
                    devices,
                    rows,
                    marks=[] if needed else pytest.mark.full,
                )


def _batches(case, rows):
    size = models.BATCH_SIZE
    if case.whole_batches_only:
        rows = 2 * size
    rng = np.random.default_rng(3)
    sizes = [min(size, rows - start) for start in range(0, rows, size)]
    return [case.make_data(n, rng) for n in sizes]


@pytest.mark.parametrize(("name", "devices", "rows"), list(_all_and_pairwise()))
def test_steps_equal_one_device(name, devices, rows):
    case = models.MODELS[name]
    count = ROW_COUNTS[rows](devices)
    keras_parallel.testing.assert_trains_like_one_device(
        case.make_model, lambda: _batches(case, count), devices=devices
    )


@pytest.mark.parametrize(
    "name",
    [
        # A minute and a half for the two others.
        pytest.param(name, marks=() if name == "ResNet50" else pytest.mark.full)
        for name in models.APPLICATIONS
    ],
)
def test_one_step_of_an_application_equals_one_device(name):
    case = models.APPLICATIONS[name]
    keras_parallel.testing.assert_trains_like_one_device(
        case.make_model,
        lambda: [case.make_data(8, np.random.default_rng(3))],
        devices=2,
        steps=1,
    )
