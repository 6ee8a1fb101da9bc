"""From images to detections."""

import numpy as np

from faster_rcnn import anchors as an
from faster_rcnn import boxes as bx
from faster_rcnn import proposals as pr


def detect(rpn, detector, images, settings, batch_size=16):
    """Finds objects.

    Args:
        rpn: The region proposal network.
        detector: The detector.
        images: `(images, size, size, 3)`, from 0 to 1.
        settings: The settings that the models were made with.
        batch_size: Images that are looked at together.

    Returns:
        For each image `{"boxes", "labels", "scores"}`: `(n, 4)`, `(n,)` and
        `(n,)`, the best first.
    """
    anchors = an.make_anchors(settings)
    options = {"batch_size": batch_size, "verbose": 0}
    proposed = rpn.predict(images, **options)
    rois, counts = pr.propose_padded(proposed, anchors, settings)
    found = detector.predict([images, rois], **options)
    return [
        _of_image(regions[:n], classes[:n], codes[:n], settings)
        for regions, n, classes, codes in zip(
            rois, counts, found["classes"], found["boxes"]
        )
    ]


def _of_image(rois, classes, codes, settings):
    boxes, labels, scores = [], [], []
    for label in range(1, settings.num_classes + 1):
        score = classes[:, label]
        likely = score >= settings.detection_score
        box = bx.decode(
            codes[likely, label - 1], rois[likely], settings.box_scales
        )
        box = bx.clip(box, settings.image_size)
        kept = bx.nms(box, score[likely], settings.detection_nms_iou, len(box))
        boxes.append(box[kept])
        scores.append(score[likely][kept])
        labels.append(np.full(len(kept), label))
    scores = np.concatenate(scores)
    order = np.argsort(-scores, kind="stable")
    return {
        "boxes": np.concatenate(boxes)[order],
        "labels": np.concatenate(labels)[order],
        "scores": scores[order],
    }
