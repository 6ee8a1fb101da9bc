"""What data of all kinds hands over: images, and their objects as arrays.

A batch is `(images, truth)`. Images have values from 0 to 1. `truth` has an
entry for each object, and shapes that never change: `"boxes"`, `(images,
max_objects, 4)`; `"labels"`, `(images, max_objects)`, 0 where there is no
object; and `"difficult"`, of the same shape, which an object has that is
neither to be learnt nor to be counted.
"""

import numpy as np


def batch_of(samples, max_objects):
    """Puts images and their objects into arrays of one shape.

    Args:
        samples: `(image, boxes, labels)` or `(image, boxes, labels,
            difficult)` of each image; images of one size.
        max_objects: Rows of the padded arrays; objects beyond are left out.
    """
    count = len(samples)
    truth = {
        "boxes": np.zeros((count, max_objects, 4), "float32"),
        "labels": np.zeros((count, max_objects), "int32"),
        "difficult": np.zeros((count, max_objects), bool),
    }
    for i, (_, *objects) in enumerate(samples):
        for name, values in zip(truth, objects):
            n = min(len(values), max_objects)
            truth[name][i, :n] = values[:n]
    return np.stack([sample[0] for sample in samples]), truth


def learnable(truth):
    """`(boxes, labels)` of each image: what there is to learn.

    Difficult objects are left out, as in the authors' code.
    """
    chosen = (truth["labels"] > 0) & ~truth["difficult"]
    parts = zip(truth["boxes"], truth["labels"], chosen)
    return [(boxes[k], labels[k]) for boxes, labels, k in parts]


def countable(truth):
    """For each image a dict of its objects, difficult ones included."""
    return [
        {name: truth[name][i][labels > 0] for name in truth}
        for i, labels in enumerate(truth["labels"])
    ]
