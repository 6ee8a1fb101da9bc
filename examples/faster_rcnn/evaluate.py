"""Mean average precision, by pycocotools."""

import contextlib
import io

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from faster_rcnn.batches import countable
from faster_rcnn.detect import detect


def evaluate(rpn, detector, dataset, settings):
    """`mean_average_precision` of what two models find in a dataset."""
    found, truth = [], []
    for i in range(len(dataset)):
        images, objects = dataset[i]
        found += detect(rpn, detector, images, settings)
        truth += countable(objects)
    return mean_average_precision(found, truth, settings)


def mean_average_precision(found, truth, settings, iou=0.5):
    """Mean over the classes of the average precision.

    Args:
        found: For each image what `detect` returns.
        truth: For each image `{"boxes", "labels"}`; with `"difficult"`, those
            objects count neither as found nor as missed.
        settings: The settings.
        iou: From which overlap on an object is found.

    Returns:
        `(mean, by_class)`: a number, and one by name for each class that
        there is in the images.
    """
    labels = range(1, settings.num_classes + 1)
    categories = [
        {"id": i, "name": settings.class_names[i - 1]} for i in labels
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        reference = COCO()
        reference.dataset = {
            "info": {},
            "images": [{"id": i} for i in range(len(truth))],
            "categories": categories,
            "annotations": _annotations(truth),
        }
        reference.createIndex()
        results = COCO()
        results.dataset = {
            **reference.dataset,
            "annotations": _annotations(found),
        }
        results.createIndex()
        run = COCOeval(reference, results, "bbox")
        run.params.iouThrs = np.array([iou])
        run.evaluate()
        run.accumulate()
    # iou, recall, class, area, number of detections: the last takes most.
    precision = run.eval["precision"][0, :, :, 0, -1]
    by_class = {
        settings.class_names[i - 1]: float(precision[:, i - 1].mean())
        for i in labels
        if (precision[:, i - 1] >= 0).all()
    }
    if not by_class:
        raise ValueError(
            "A mean over classes needs an object in one of the images that is "
            f"not difficult. Received: {len(truth)} images without."
        )
    return float(np.mean(list(by_class.values()))), by_class


def _annotations(images):
    made = []
    for i, image in enumerate(images):
        for j, (x0, y0, x1, y1) in enumerate(image["boxes"].tolist()):
            made.append(
                {
                    "id": len(made) + 1,
                    "image_id": i,
                    "category_id": int(image["labels"][j]),
                    "bbox": [x0, y0, x1 - x0, y1 - y0],
                    "area": (x1 - x0) * (y1 - y0),
                    "score": float(image.get("scores", {j: 1})[j]),
                    # What pycocotools does not count either way.
                    "iscrowd": int(image.get("difficult", {j: 0})[j]),
                }
            )
    return made
