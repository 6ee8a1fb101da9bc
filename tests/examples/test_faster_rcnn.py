"""The parts of the Faster R-CNN of the examples."""

import pathlib
import sys

import keras
import numpy as np
import pytest

sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples"))

from faster_rcnn import anchors as an
from faster_rcnn import boxes as bx
from faster_rcnn import losses
from faster_rcnn import proposals as pr
from faster_rcnn.batches import batch_of
from faster_rcnn.batches import countable
from faster_rcnn.batches import learnable
from faster_rcnn.draw import draw
from faster_rcnn.drawn import CLASS_NAMES
from faster_rcnn.drawn import DrawnShapes
from faster_rcnn.drawn import draw_image
from faster_rcnn.evaluate import mean_average_precision
from faster_rcnn.layers import RoIAlign
from faster_rcnn.settings import Settings

SETTINGS = Settings(CLASS_NAMES)


def random_boxes(rng, *shape, size=96):
    corners = np.sort(rng.uniform(0, size, (*shape, 2, 2)), axis=-2)
    corners[..., 1, :] += 1
    return corners.reshape(*shape, 4)


def naive_iou(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return shared / (area - shared)


def test_iou_is_that_of_each_pair():
    rng = np.random.default_rng(0)
    first, second = random_boxes(rng, 7), random_boxes(rng, 5)
    expected = [[naive_iou(a, b) for b in second] for a in first]
    np.testing.assert_allclose(bx.iou(first, second), expected)
    np.testing.assert_allclose(np.diag(bx.iou(first, first)), 1)
    # 2 x 2 pixels of 4 x 4 + 4 x 4 - 2 x 2.
    a, b = np.array([[0, 0, 4, 4]]), np.array([[2, 2, 6, 6], [4, 4, 8, 8]])
    np.testing.assert_allclose(bx.iou(a, b), [[4 / 28, 0]])


@pytest.mark.parametrize("scales", [(1, 1, 1, 1), SETTINGS.box_scales])
def test_a_box_is_decoded_from_its_code(scales):
    rng = np.random.default_rng(0)
    boxes, anchors = random_boxes(rng, 50), random_boxes(rng, 50)
    codes = bx.encode(boxes, anchors, scales)
    near = np.abs(codes * scales)[:, 2:].max(axis=1) < 4  # exp() is bounded
    assert near.sum() > 40
    decoded = bx.decode(codes, anchors, scales)
    np.testing.assert_allclose(decoded[near], boxes[near], atol=1e-9)


def test_a_code_is_that_of_the_paper():
    code = bx.encode(np.array([4.0, 2, 8, 10]), np.array([0.0, 0, 8, 4]))
    np.testing.assert_allclose(code, [2 / 8, 4 / 4, np.log(0.5), np.log(2)])


def naive_nms(boxes, scores, max_iou, max_boxes):
    left, kept = list(range(len(boxes))), []
    while left and len(kept) < max_boxes:
        best = max(left, key=lambda i: scores[i])
        kept.append(best)
        left = [
            i
            for i in left
            if i != best and naive_iou(boxes[i], boxes[best]) <= max_iou
        ]
    return kept


@pytest.mark.parametrize("max_iou", [0.1, 0.3, 0.7])
def test_nms_keeps_what_a_naive_one_keeps(max_iou):
    rng = np.random.default_rng(0)
    boxes, scores = random_boxes(rng, 80), rng.random(80)
    for most in (5, 80):
        kept = bx.nms(boxes, scores, max_iou, most)
        assert kept.tolist() == naive_nms(boxes, scores, max_iou, most)
    assert bx.nms(boxes[:0], scores[:0], max_iou, 5).tolist() == []


def test_anchors_lie_where_the_outputs_of_the_network_are():
    anchors = an.make_anchors(SETTINGS)
    per_place, grid = SETTINGS.anchors_per_place, SETTINGS.grid
    assert anchors.shape == (grid * grid * per_place, 4)
    width, height = (anchors[:, 2:] - anchors[:, :2]).T
    np.testing.assert_allclose(
        width * height,
        np.tile(np.repeat([16**2, 28.8**2, 48**2], 3), grid * grid),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        height / width, np.tile([0.5, 1, 2], 3 * grid * grid), rtol=1e-5
    )
    third_row_second_place = anchors[(2 * grid + 1) * per_place]
    np.testing.assert_allclose(
        third_row_second_place[:2] + third_row_second_place[2:],
        [2 * 12, 2 * 20],
    )


def test_no_anchor_that_crosses_the_border_is_learnt_from():
    anchors = an.make_anchors(SETTINGS)
    inside = an.inside(anchors, SETTINGS.image_size)
    assert 0 < inside.sum() < len(anchors)
    assert anchors[inside].min() >= 0 and anchors[inside].max() <= 96
    for truth in (random_boxes(np.random.default_rng(0), 4), np.zeros((0, 4))):
        labels, _ = an.label_anchors(anchors, inside, truth, SETTINGS)
        assert (labels[~inside] == -1).all()
        assert (labels[inside] == 0).any()


def test_anchors_are_labeled_as_in_the_paper():
    anchors = an.make_anchors(SETTINGS)
    inside = an.inside(anchors, SETTINGS.image_size)
    truth = np.array([[20.0, 20, 50, 48], [60, 60, 64, 64]])
    labels, matches = an.label_anchors(anchors, inside, truth, SETTINGS)
    for i in np.flatnonzero(inside):
        overlaps = [naive_iou(anchors[i], box) for box in truth]
        is_best = any(
            overlap > bx.iou(anchors[inside], box[None]).max() - 1e-5
            for overlap, box in zip(overlaps, truth)
        )
        if max(overlaps) >= 0.7 or is_best:
            assert labels[i] == 1
            assert matches[i] == np.argmax(overlaps)
        else:
            assert labels[i] == (0 if max(overlaps) < 0.3 else -1)
    # The small object has no anchor above 0.7, and one all the same.
    assert {0, 1} == set(matches[labels == 1])


def test_a_number_of_anchors_is_sampled():
    np.random.seed(0)
    labels = np.repeat([1, 0, -1], [50, 500, 100])
    sampled = an.sample_anchors(labels, SETTINGS)
    assert np.count_nonzero(sampled == 1) == 32
    assert np.count_nonzero(sampled == 0) == 32
    assert (labels[sampled >= 0] == sampled[sampled >= 0]).all()
    few = an.sample_anchors(np.repeat([1, 0], [3, 500]), SETTINGS)
    assert np.count_nonzero(few == 1) == 3
    assert np.count_nonzero(few == 0) == 61


def naive_roi_align(features, roi, size, stride, samples):
    height, width, channels = features.shape
    result = np.zeros((size, size, channels))
    for row, column in np.ndindex(size, size):
        for i, j in np.ndindex(samples, samples):
            y = roi[1] + (roi[3] - roi[1]) * (row + (i + 0.5) / samples) / size
            x = roi[0] + (roi[2] - roi[0]) * (
                (column + (j + 0.5) / samples) / size
            )
            y = min(max(y / stride - 0.5, 0), height - 1)
            x = min(max(x / stride - 0.5, 0), width - 1)
            y0, x0 = min(int(y), height - 2), min(int(x), width - 2)
            dy, dx = y - y0, x - x0
            result[row, column] += (
                (1 - dy) * (1 - dx) * features[y0, x0]
                + (1 - dy) * dx * features[y0, x0 + 1]
                + dy * (1 - dx) * features[y0 + 1, x0]
                + dy * dx * features[y0 + 1, x0 + 1]
            ) / samples**2
    return result


def test_roi_align_cuts_as_a_naive_one_does():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(2, 6, 7, 3)).astype("float32")
    rois = random_boxes(rng, 2, 4, size=50)
    rois[0, 0] = (-5, -5, 70, 70)
    layer = RoIAlign(size=4, stride=8, samples=3)
    cut = keras.ops.convert_to_numpy(layer([features, rois]))
    assert cut.shape == layer.compute_output_shape((features.shape, rois.shape))
    expected = [
        [naive_roi_align(image, roi, 4, 8, 3) for roi in its]
        for image, its in zip(features, rois)
    ]
    np.testing.assert_allclose(cut, expected, atol=1e-5)
    again = RoIAlign.from_config(layer.get_config())
    assert (again.size, again.stride, again.samples) == (4, 8, 3)


def test_anchors_that_were_not_sampled_do_not_count():
    probabilities = np.array([[0.9, 0.2, 0.3], [0.5, 0.5, 0.5]], "float32")
    labels = np.array([[1, 0, -1], [-1, -1, -1]], "float32")
    loss = losses.ObjectnessLoss(4).call(labels, probabilities)
    expected = -(np.log(0.9) + np.log(0.8)) / 4
    np.testing.assert_allclose(loss, [expected, 0], rtol=1e-5)

    codes = np.array([[[1, 0, 0, 0, 0], [0, 9, 9, 9, 9]]], "float32")
    found = np.array([[[0.5, 2, 0, 0], [1, 1, 1, 1]]], "float32")
    loss = losses.AnchorBoxLoss(4).call(codes, found)
    np.testing.assert_allclose(loss, [(0.125 + 1.5) / 4])


def test_a_region_learns_the_box_of_its_class():
    found = np.arange(24, dtype="float32").reshape(1, 2, 3, 4)
    truth = np.array([[[2, 4, 5, 6, 8], [0, 0, 0, 0, 0]]], "float32")
    loss = losses.RegionBoxLoss().call(truth, found)
    np.testing.assert_allclose(loss, [[0.5, 0]])


def test_drawn_images_follow_from_seed_epoch_and_index():
    def make(split="train", seed=3):
        return DrawnShapes(8, 4, split, seed)

    data, again = make(), make()
    first = data[1]
    keras.tree.map_structure(np.testing.assert_array_equal, first, again[1])
    others = [data[0], make("validation")[1], make(seed=4)[1]]
    data.on_epoch_end()
    others.append(data[1])
    for images, _ in others:
        for image in images:
            assert not (image == first[0]).all(axis=(1, 2, 3)).any()
    again.on_epoch_end()
    keras.tree.map_structure(np.testing.assert_array_equal, data[1], again[1])

    held_out = make("validation")
    before = held_out[0]
    held_out.on_epoch_end()
    keras.tree.map_structure(np.testing.assert_array_equal, before, held_out[0])


def test_drawn_images_keep_to_their_rule():
    for seed in range(50):
        image, boxes, labels = draw_image(np.random.default_rng(seed))
        assert image.shape == (96, 96, 3) and image.dtype == np.float32
        assert 0 <= image.min() and image.max() <= 1
        assert 1 <= len(boxes) == len(labels) <= 5
        assert set(labels) <= {1, 2, 3}
        width, height = (boxes[:, 2:] - boxes[:, :2]).T
        assert min(width.min(), height.min()) >= 13
        assert max(width.max(), height.max()) <= 41
        assert boxes.min() >= 0 and boxes.max() <= 96


def test_what_is_difficult_is_not_learnt():
    image = np.zeros((4, 4, 3), "float32")
    boxes = np.array([[0, 0, 2, 2], [1, 1, 3, 3]], "float32")
    samples = [(image, boxes, [2, 1], [False, True]), (image, boxes[:0], [])]
    images, truth = batch_of(samples, max_objects=3)
    assert images.shape == (2, 4, 4, 3)
    assert truth["labels"].tolist() == [[2, 1, 0], [0, 0, 0]]
    (found, labels), (none, _) = learnable(truth)
    assert found.tolist() == [[0, 0, 2, 2]] and labels.tolist() == [2]
    assert len(none) == 0
    assert [len(t["boxes"]) for t in countable(truth)] == [2, 0]


def test_batches_of_both_phases_have_the_same_shapes_for_all_images():
    np.random.seed(0)
    rng = np.random.default_rng(0)
    image = np.zeros((96, 96, 3), "float32")
    batch = batch_of(
        [
            draw_image(rng),
            (image, np.zeros((0, 4)), []),
            (image, [[10, 10, 40, 40]], [3]),
        ],
        SETTINGS.max_objects,
    )
    _, y = an.AnchorTargets(SETTINGS)(batch, {})
    places = len(an.make_anchors(SETTINGS))
    assert y["objectness"].shape == (3, places)
    assert y["rpn_boxes"].shape == (3, places, 5)
    assert (np.sum(y["objectness"] >= 0, axis=1) == 64).all()
    assert (y["objectness"][1] < 1).all()

    predicted = {
        "objectness": rng.random((3, places)).astype("float32"),
        "rpn_boxes": rng.normal(size=(3, places, 4)).astype("float32"),
    }
    # All of the last image is one object: nothing fills up its regions.
    predicted["rpn_boxes"][2] = 9
    propose = pr.ProposeRegions(SETTINGS)
    (images, rois), y, weights = propose(batch, {"rpn": predicted})
    assert images is batch[0]
    assert rois.shape == (3, 32, 4)
    assert y["classes"].shape == weights["classes"].shape == (3, 32)
    assert y["boxes"].shape == (3, 32, 5)
    assert (np.sum(y["classes"] > 0, axis=1) <= 8).all()
    assert (y["classes"][1] == 0).all() and weights["classes"][1].all()
    # The objects themselves are among the regions.
    assert 3 in y["classes"][2]
    assert 0 < weights["classes"][2].sum() < 32
    decoded = bx.decode(y["boxes"][2, :1, 1:], rois[2, :1], SETTINGS.box_scales)
    np.testing.assert_allclose(decoded, [[10, 10, 40, 40]], atol=1e-3)


def test_mean_average_precision():
    boxes = np.array([[10.0, 10, 30, 30], [50, 50, 80, 80]])
    truth = [
        {"boxes": boxes, "labels": np.array([1, 2])},
        {"boxes": boxes[:1], "labels": np.array([1])},
    ]
    all_found = [{**t, "scores": np.ones(len(t["labels"]))} for t in truth]
    mean, by_class = mean_average_precision(all_found, truth, SETTINGS)
    assert mean == pytest.approx(1)
    assert set(by_class) == {"ellipse", "rectangle"}

    nothing = {"boxes": boxes[:0], "labels": [], "scores": []}
    one_missed = [all_found[0], nothing]
    mean, by_class = mean_average_precision(one_missed, truth, SETTINGS)
    # Recall is 1/2: 51 of the 101 points that pycocotools looks at.
    assert by_class["ellipse"] == pytest.approx(51 / 101)
    assert mean == pytest.approx((1 + 51 / 101) / 2)

    truth[1]["difficult"] = np.array([True])
    assert mean_average_precision(one_missed, truth, SETTINGS)[0] == (
        pytest.approx(1)
    )

    with pytest.raises(ValueError, match="1 images without"):
        mean_average_precision([nothing], [nothing], SETTINGS)


def test_detections_are_drawn(tmp_path):
    from PIL import Image

    images = np.zeros((3, 96, 96, 3), "float32")
    found = {
        "boxes": np.array([[10.0, 40, 60, 80], [0, 0, 9, 9]]),
        "labels": np.array([1, 2]),
        "scores": np.array([0.9, 0.2]),
    }
    draw(tmp_path / "a.png", images, [found] * 3, CLASS_NAMES, columns=2)
    picture = np.asarray(Image.open(tmp_path / "a.png"))
    assert picture.shape == (2 * 96 * 3 + 4, 2 * 96 * 3 + 4, 3)
    assert picture[79 * 3, 10 * 3 : 60 * 3].any()
    assert not picture[20 * 3, : 96 * 3].any()
