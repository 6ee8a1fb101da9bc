"""Anchors, and which of them the region proposal network learns from."""

import numpy as np

from faster_rcnn import boxes as bx
from faster_rcnn.batches import learnable

_ROUNDING = 1e-5


def make_anchors(settings):
    """All anchors of an image, `(places * anchors_per_place, 4)`.

    They are in the order of the network's outputs: row, column, anchor. All
    anchors of a scale have one area (3.1.1).
    """
    ratios = np.asarray(settings.anchor_ratios)
    sides = np.asarray(settings.anchor_scales)[:, None] * settings.image_size
    heights = (sides * np.sqrt(ratios)).ravel()
    widths = (sides / np.sqrt(ratios)).ravel()
    shapes = np.stack([-widths, -heights, widths, heights], axis=-1) / 2
    places = (np.arange(settings.grid) + 0.5) * settings.stride
    y, x = np.meshgrid(places, places, indexing="ij")
    centers = np.stack([x, y, x, y], axis=-1)
    return (centers[:, :, None] + shapes).reshape(-1, 4).astype("float32")


def inside(anchors, image_size):
    """Which anchors do not cross the image's border."""
    return (anchors >= 0).all(axis=1) & (anchors <= image_size).all(axis=1)


def label_anchors(anchors, is_inside, truth, settings):
    """What each anchor is (3.1.2).

    Args:
        anchors: `(n, 4)`.
        is_inside: Which of them may be learnt from (3.3: none that crosses
            the border).
        truth: Boxes of the objects, `(m, 4)`.
        settings: The thresholds.

    Returns:
        `(labels, matches)`: 1 object, 0 background, -1 neither; and the index
        of the object that each anchor overlaps most.
    """
    labels = np.full(len(anchors), -1)
    if not len(truth):
        labels[is_inside] = 0
        return labels, np.zeros(len(anchors), int)
    overlaps = np.where(is_inside[:, None], bx.iou(anchors, truth), -1)
    most = overlaps.max(axis=1)
    labels[is_inside & (most < settings.anchor_negative_iou)] = 0
    best = overlaps.max(axis=0)
    # All of the best: which one is ahead by a rounding error means nothing.
    is_best = ((overlaps >= best - _ROUNDING) & (best > 0)).any(axis=1)
    labels[is_best | (most >= settings.anchor_positive_iou)] = 1
    return labels, overlaps.argmax(axis=1)


def sample_anchors(labels, settings):
    """Keeps `anchors_per_image` of the labels; the others become -1 (3.1.3)."""
    # `numpy.random` itself, since the state of an `AlternatingTrainer` has it.
    labels = labels.copy()
    total = settings.anchors_per_image
    positive = np.flatnonzero(labels == 1)
    room = int(total * settings.anchor_positive_share)
    if len(positive) > room:
        labels[np.random.permutation(positive)[room:]] = -1
    negative = np.flatnonzero(labels == 0)
    room = total - np.count_nonzero(labels == 1)
    if len(negative) > room:
        labels[np.random.permutation(negative)[room:]] = -1
    return labels


class AnchorTargets:
    """Makes the batches of the region proposal network: a `make_batch`."""

    def __init__(self, settings):
        self.settings = settings
        self.anchors = make_anchors(settings)
        self.is_inside = inside(self.anchors, settings.image_size)

    def __call__(self, batch, predictions):
        """`(images, truth)` -> `(images, {"objectness", "rpn_boxes"})`."""
        del predictions  # The first phase: there are none.
        images, truth = batch
        made = [self._of_image(boxes) for boxes, _ in learnable(truth)]
        objectness, codes = (np.stack(part) for part in zip(*made))
        return images, {"objectness": objectness, "rpn_boxes": codes}

    def _of_image(self, truth):
        labels, matches = label_anchors(
            self.anchors, self.is_inside, truth, self.settings
        )
        labels = sample_anchors(labels, self.settings)
        codes = np.zeros((len(labels), 5), "float32")
        chosen = labels == 1
        codes[chosen, 0] = 1  # The loss looks at these only.
        if chosen.any():
            codes[chosen, 1:] = bx.encode(
                truth[matches[chosen]], self.anchors[chosen]
            )
        return labels.astype("float32"), codes
