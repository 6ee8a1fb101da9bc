"""Boxes in NumPy: overlap, encoding, clipping, non-maximum suppression.

A box is `(x_min, y_min, x_max, y_max)` in pixels.
"""

import numpy as np

# exp() of a size that a wild prediction gives is bounded, as in the authors'
# later code: at most 62 times the anchor.
_MAX_LOG_SIZE = np.log(1000 / 16)


def areas(boxes):
    """Areas of boxes `(..., 4)`; 0 for those that are none."""
    width = np.maximum(boxes[..., 2] - boxes[..., 0], 0)
    height = np.maximum(boxes[..., 3] - boxes[..., 1], 0)
    return width * height


def iou(first, second):
    """Intersection over union of all pairs: `(n, 4)`, `(m, 4)` -> `(n, m)`."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = areas(np.concatenate([low, high], axis=-1))
    union = areas(first)[:, None] + areas(second)[None] - shared
    return shared / np.maximum(union, 1e-9)


def _centers_and_sizes(boxes):
    sizes = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + sizes / 2, sizes


def encode(boxes, anchors, scales=(1, 1, 1, 1)):
    """Boxes as seen from anchors: shifts and log sizes (3.1.2, equation 2).

    Args:
        boxes: `(..., 4)`.
        anchors: The same shape, each with an area.
        scales: What the result is divided by.
    """
    center, size = _centers_and_sizes(boxes)
    from_center, from_size = _centers_and_sizes(anchors)
    shift = (center - from_center) / from_size
    growth = np.log(np.maximum(size, 1e-3) / from_size)
    return np.concatenate([shift, growth], axis=-1) / np.asarray(scales)


def decode(codes, anchors, scales=(1, 1, 1, 1)):
    """The inverse of `encode`."""
    codes = codes * np.asarray(scales)
    from_center, from_size = _centers_and_sizes(anchors)
    center = from_center + codes[..., :2] * from_size
    size = from_size * np.exp(np.minimum(codes[..., 2:], _MAX_LOG_SIZE))
    return np.concatenate([center - size / 2, center + size / 2], axis=-1)


def clip(boxes, image_size):
    """The part of each box that is in the image."""
    return np.clip(boxes, 0, image_size)


def nms(boxes, scores, max_iou, max_boxes):
    """Non-maximum suppression.

    Args:
        boxes: `(n, 4)`.
        scores: `(n,)`.
        max_iou: A box that overlaps a better one by more is dropped.
        max_boxes: How many are kept at most.

    Returns:
        Indices of what is kept, the best first.
    """
    order = np.argsort(-scores, kind="stable")
    overlaps = iou(boxes[order], boxes[order]) > max_iou
    alive = np.ones(len(order), bool)
    kept = []
    for i in range(len(order)):
        if not alive[i]:
            continue
        kept.append(order[i])
        if len(kept) == max_boxes:
            break
        alive &= ~overlaps[i]
    return np.array(kept, int)
