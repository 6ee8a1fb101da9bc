"""From the outputs of the region proposal network to the detector's batch."""

import numpy as np

from faster_rcnn import anchors as an
from faster_rcnn import boxes as bx
from faster_rcnn.batches import learnable


def propose(objectness, codes, anchors, settings):
    """The proposals of one image, the best first (3.3).

    Args:
        objectness: `(anchors,)`.
        codes: Encoded boxes, `(anchors, 4)`.
        anchors: `(anchors, 4)`.
        settings: Thresholds and numbers.

    Returns:
        `(boxes, sources)`: boxes in the image, at most `num_proposals`, and
        the index of the anchor that each one comes from.
    """
    best = np.argsort(-objectness, kind="stable")
    best = best[: settings.proposals_before_nms]
    boxes = bx.decode(codes[best], anchors[best])
    boxes = bx.clip(boxes, settings.image_size)
    # Nothing to look at: what lies outside, or is thinner than a pixel.
    large = (boxes[:, 2:] - boxes[:, :2] >= 1).all(axis=1)
    boxes, best = boxes[large].astype("float32"), best[large]
    kept = bx.nms(
        boxes,
        objectness[best],
        settings.proposal_nms_iou,
        settings.num_proposals,
    )
    return boxes[kept], best[kept]


def propose_padded(outputs, anchors, settings):
    """Proposals of a batch in one array, and how many are real.

    Args:
        outputs: `{"objectness", "rpn_boxes"}` of the network, for a batch.
        anchors: The anchors.
        settings: Thresholds and numbers.

    Returns:
        `(rois, counts)`, `(images, num_proposals, 4)` and `(images,)`. What
        fills up is the whole image.
    """
    count = len(outputs["objectness"])
    size = settings.image_size
    rois = np.zeros((count, settings.num_proposals, 4), "float32")
    rois[...] = (0, 0, size, size)
    counts = np.zeros(count, int)
    pairs = zip(outputs["objectness"], outputs["rpn_boxes"])
    for i, (objectness, codes) in enumerate(pairs):
        found, _ = propose(objectness, codes, anchors, settings)
        rois[i, : len(found)] = found
        counts[i] = len(found)
    return rois, counts


class ProposeRegions:
    """Makes the batches of the detector: a `make_batch`.

    Args:
        settings: Thresholds and numbers.
        rpn: Name of the phase whose predictions are the proposals.
    """

    def __init__(self, settings, rpn="rpn"):
        self.settings = settings
        self.anchors = an.make_anchors(settings)
        self.rpn = rpn

    def __call__(self, batch, predictions):
        """Samples regions, labels them and encodes their boxes.

        Args:
            batch: `(images, truth)`, see `batches.py`.
            predictions: Those of the phase `rpn`, by its name.

        Returns:
            `((images, rois), {"classes", "boxes"}, weights)`; `None`, which
            skips the batch, if no region of the batch is left.
        """
        images, truth = batch
        outputs = predictions[self.rpn]
        made = [
            self._of_image(objectness, codes, *objects)
            for objectness, codes, objects in zip(
                outputs["objectness"], outputs["rpn_boxes"], learnable(truth)
            )
        ]
        rois, classes, boxes, weights = (np.stack(p) for p in zip(*made))
        if not weights.any():
            return None
        return (
            (images, rois),
            {"classes": classes, "boxes": boxes},
            {"classes": weights, "boxes": weights},
        )

    def _of_image(self, objectness, codes, truth, labels):
        """`(rois, classes, boxes, weights)`, `rois_per_image` of each."""
        settings = self.settings
        regions, sources = propose(objectness, codes, self.anchors, settings)
        # Objects count as regions too, as in the authors' code: there is
        # something to learn before the proposals are good.
        regions = np.concatenate([regions, truth.astype("float32")])
        sources = np.append(sources, len(self.anchors) + np.arange(len(truth)))
        overlaps = bx.iou(regions, truth) if len(truth) else None
        most = np.zeros(len(regions)) if overlaps is None else overlaps.max(1)
        is_object = most >= settings.roi_positive_iou

        # Each anchor and object draws a number, and the lowest are sampled:
        # where rounding swaps two proposals, all others stay what they are.
        # `numpy.random` itself, since the state of a trainer has it.
        count = len(self.anchors) + settings.max_objects
        order = np.argsort(np.random.random(count)[sources])
        total = settings.rois_per_image
        positive = order[is_object[order]]
        positive = positive[: int(total * settings.roi_positive_share)]
        negative = order[~is_object[order]][: total - len(positive)]
        chosen = np.concatenate([positive, negative])

        # Shapes are those of every image; what fills up has no weight.
        size = settings.image_size
        rois = np.tile(np.float32([0, 0, size, size]), (total, 1))
        classes = np.zeros(total, "int32")
        targets = np.zeros((total, 5), "float32")
        weights = np.zeros(total, "float32")
        rois[: len(chosen)] = regions[chosen]
        weights[: len(chosen)] = 1
        if len(positive):
            n, matches = len(positive), overlaps[positive].argmax(1)
            classes[:n] = labels[matches]
            targets[:n, 0] = labels[matches]
            targets[:n, 1:] = bx.encode(
                truth[matches], regions[positive], settings.box_scales
            )
        return rois, classes, targets, weights
