"""The Faster R-CNN of the examples trains, in every way that it is offered."""

import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_parallel as kp
from tests.examples.test_examples import EXAMPLES
from tests.examples.test_examples import run
from tests.examples.test_faster_rcnn_voc import write_image

sys.path.append(str(EXAMPLES))

from faster_rcnn import models
from faster_rcnn import train
from faster_rcnn.anchors import AnchorTargets
from faster_rcnn.drawn import CLASS_NAMES
from faster_rcnn.drawn import DrawnShapes
from faster_rcnn.proposals import ProposeRegions
from faster_rcnn.settings import Settings

SETTINGS = Settings(CLASS_NAMES)
PLAIN_KERAS = """
import sys

import keras
import numpy as np

sys.path.append({examples!r})
import faster_rcnn.layers

given = np.load("given.npz")
model = keras.saving.load_model("parts.keras")
found = model.predict_on_batch([given["images"], given["rois"]])
np.savez("found.npz", **found)
assert "keras_parallel" not in sys.modules
"""


class Training:
    """Both models and their trainer, as the script has them.

    Args:
        devices: How many; `None` is none of ours, plain Keras.
        make_optimizer: Makes the optimizers.
        propose: The `make_batch` of the detector.
    """

    def __init__(self, devices, make_optimizer, propose):
        keras.utils.set_random_seed(0)
        self.parts = models.make_models(SETTINGS)
        self.rpn, self.detector = self.parts.rpn, self.parts.detector
        if devices:
            self.rpn = kp.data_parallel(self.rpn, devices)
            self.detector = kp.data_parallel(self.detector, devices)
        models.compile_rpn(self.rpn, SETTINGS, make_optimizer())
        models.compile_detector(self.detector, make_optimizer())
        self.trainer = kp.AlternatingTrainer(
            [
                kp.Phase("rpn", self.rpn, AnchorTargets(SETTINGS)),
                kp.Phase("detector", self.detector, propose),
            ],
            model=self.parts.full,
        )

    def weights(self):
        return [keras.ops.convert_to_numpy(v) for v in self.parts.full.weights]


def momentum():
    return keras.optimizers.SGD(0.01, momentum=0.9)


def adam():
    return keras.optimizers.Adam(2e-3)


def batches_of(training, batch):
    """What both phases would train on now."""
    np.random.seed(0)
    x, y = AnchorTargets(SETTINGS)(batch, {})
    proposed = {"rpn": training.rpn.predict_on_batch(x)}
    return (x, y), ProposeRegions(SETTINGS)(batch, proposed)


def test_losses_fall_and_plain_keras_loads_the_file(tmp_path):
    training = Training(2, adam, ProposeRegions(SETTINGS))
    held_out = DrawnShapes(32, 32, "validation")[0]

    # What both are judged by stays the same: better proposals are harder ones.
    for_rpn, (x, y, weights) = batches_of(training, held_out)

    def losses():
        rpn = training.rpn.test_on_batch(*for_rpn, return_dict=True)
        detector = training.detector.test_on_batch(
            x, y, weights, return_dict=True
        )
        return rpn["loss"], detector["loss"]

    before = losses()
    training.trainer.fit(DrawnShapes(256, 16), epochs=3, verbose=0)
    after = losses()
    assert after[0] < 0.5 * before[0] and after[1] < 0.6 * before[1]

    (images, _), ((_, rois), _, _) = batches_of(training, held_out)
    expected = training.parts.full.predict_on_batch([images, rois])
    training.trainer.save(tmp_path / "parts.keras")
    np.savez(tmp_path / "given.npz", images=images, rois=rois)
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_KERAS.format(examples=str(EXAMPLES))],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "found.npz")
    assert set(found) == set(expected)
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("devices", [2, 4])
def test_rounds_equal_those_of_one_device(devices):
    """With equal proposals, which rounding could not promise.

    Two proposals of nearly one score may change places in NMS; so the batches
    of the detector are those of one device, and what they were made from is
    compared: in double precision, where five rounds do not amplify rounding
    to what a fault would do.
    """
    propose, made = ProposeRegions(SETTINGS), []

    def remember(batch, predictions):
        made.append((predictions["rpn"], propose(batch, predictions)))
        return made[-1][1]

    alone = Training(None, momentum, remember)
    predicted = []

    def repeat(batch, predictions):
        predicted.append(predictions["rpn"])
        propose(batch, predictions)  # Draws as many random numbers.
        return made[len(predicted) - 1][1]

    parallel = Training(devices, momentum, repeat)
    logs = []
    for training in (alone, parallel):
        seen = []
        np.random.seed(0)
        training.trainer.fit(
            # The last batch has 3 images.
            DrawnShapes(35, 8),
            shuffle=False,
            verbose=0,
            callbacks=[
                keras.callbacks.LambdaCallback(
                    on_train_batch_end=lambda batch, logs, seen=seen: (
                        seen.append(dict(logs))
                    )
                )
            ],
        )
        logs.append(seen)

    assert len(made) == len(predicted) == len(logs[0]) == 5
    for (expected, _), found in zip(made, predicted):
        for name in expected:
            assert_same(expected[name], found[name])
    for expected, found in zip(*logs):
        assert found == pytest.approx(expected, rel=1e-13)
    for expected, found in zip(alone.weights(), parallel.weights()):
        assert_same(expected, found)


def assert_same(expected, found):
    assert found.dtype == expected.dtype == "float64"
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * scale)


@pytest.mark.parametrize("part", ["rpn", "detector"])
def test_each_part_trains_like_on_one_device(part):
    def make_training():
        return Training(None, momentum, ProposeRegions(SETTINGS))

    training = make_training()
    data = DrawnShapes(19, 8)
    batches = [batches_of(training, data[i]) for i in range(len(data))]
    kp.testing.assert_trains_like_one_device(
        lambda: getattr(make_training(), part),
        lambda: [for_rpn if part == "rpn" else it for for_rpn, it in batches],
        devices=2,
        steps=6,
    )


def test_script_with_the_four_steps_of_the_paper(tmp_path, capfd):
    picture = tmp_path / "found.png"
    mean = train.main(
        [
            *("--schedule", "4-step", "--epochs", "4", "--devices", "2"),
            *("--images", "32", "--validation-images", "16"),
            *("--save", str(tmp_path / "a.keras"), "--png", str(picture)),
        ]
    )
    assert 0 <= mean <= 1
    printed = capfd.readouterr().out
    assert "detector_head_classes_loss" in printed
    difference = printed.split("probabilities differ by ")[1].split()[0]
    assert float(difference) <= 1e-6
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_script_on_a_folder(tmp_path, capfd):
    for i in range(6):
        objects = [
            ("cat", False, (5 + i, 9, 60, 70)),
            ("dog", True, (70, 9, 99, 40)),
        ]
        write_image(tmp_path, f"image{i}", (120, 90), objects)
    lists = tmp_path / "ImageSets" / "Main"
    (lists / "train.txt").write_text("image0\nimage1\nimage2\nimage3\n")
    (lists / "val.txt").write_text("image4\nimage5\n")
    train.main(
        [
            *("--voc", str(tmp_path), "--epochs", "1", "--devices", "2"),
            *("--batch-size", "2", "--save", str(tmp_path / "a.keras")),
        ]
    )
    printed = capfd.readouterr().out
    assert "mAP@0.5 on held-out images:" in printed and "'cat'" in printed


def test_loop_by_hand(tmp_path):
    script = "classic/4_faster_rcnn_loop.py"
    done = run(script, "2", "64", devices=2, cwd=tmp_path)
    assert "['boxes', 'classes', 'objectness', 'rpn_boxes']" in done.stdout
    losses = [
        [float(number) for number in line.replace(",", "").split()[3::2]]
        for line in done.stdout.splitlines()
        if line.startswith("epoch")
    ]
    (first, second) = losses
    assert second[0] < first[0] and second[1] < first[1]
    assert (tmp_path / "faster_rcnn_loop.keras").exists()


def test_the_loop_holds_the_lines_of_the_how_to():
    script = pathlib.Path(EXAMPLES / "classic/4_faster_rcnn_loop.py")
    for call in (
        "rpn.train_on_batch(",
        "rpn.predict_on_batch(",
        "detector.train_on_batch(",
    ):
        assert call in script.read_text()
