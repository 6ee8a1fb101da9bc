"""Images that are drawn on the fly, from a rule.

The rule: on a gradient from one random color to another lie two to five
shapes, each an ellipse, a rectangle or a triangle, with equal chance. Width
and height are 1/7 to 3/7 of the image's side and differ by a factor of at most
1.8; the place is any in the image; the color is any that differs from the
background. A later shape covers earlier ones, of which at least 60 % of the
pixels remain in sight: a shape for which that cannot be had in 20 tries is left
out. At last there is noise, of a standard deviation of 0.08 of the range. A
box is that of the whole shape, whether covered or not.
"""

import keras
import numpy as np

from faster_rcnn.batches import batch_of

CLASS_NAMES = ("ellipse", "rectangle", "triangle")
SPLITS = ("train", "validation")

_IN_SIGHT = 0.6
_TRIES = 20
_NOISE = 0.08


def draw_image(rng, size=96):
    """Draws an image.

    Args:
        rng: A `numpy.random.Generator`.
        size: Height and width.

    Returns:
        `(image, boxes, labels)`: `(size, size, 3)` from 0 to 1, `(n, 4)`
        and `(n,)`, where label 1 is the first of `CLASS_NAMES`.
    """
    start, end = rng.uniform(0.1, 0.9, (2, 3))
    share = np.linspace(0, 1, size)[:, None, None]
    if rng.random() < 0.5:
        share = share.transpose(1, 0, 2)
    image = np.broadcast_to(start + (end - start) * share, (size, size, 3))
    image = image.copy()

    # Which shape is seen in each pixel, and how many pixels each one has.
    owner, pixels = np.full((size, size), -1), []
    boxes, labels = [], []
    for _ in range(rng.integers(2, 6)):
        for _ in range(_TRIES):
            label = rng.integers(1, len(CLASS_NAMES) + 1)
            mask, box = _shape(rng, label, size)
            left = np.bincount(owner[~mask] + 1, minlength=len(pixels) + 1)
            if all(n >= _IN_SIGHT * p for n, p in zip(left[1:], pixels)):
                break
        else:
            continue
        image[mask] = _color(rng, image[mask].mean(axis=0))
        owner[mask] = len(pixels)
        pixels.append(np.count_nonzero(mask))
        boxes.append(box)
        labels.append(label)
    image += rng.normal(scale=_NOISE, size=image.shape)
    return (
        np.clip(image, 0, 1).astype("float32"),
        np.array(boxes, "float32"),
        np.array(labels, "int32"),
    )


def _shape(rng, label, size):
    """`(mask, box)` of a shape at a random place."""
    while True:
        width, height = rng.integers(size // 7, 3 * size // 7 + 1, 2)
        if max(width, height) <= 1.8 * min(width, height):
            break
    x = rng.integers(0, size - width + 1)
    y = rng.integers(0, size - height + 1)
    # From -1 to 1 within the box.
    places = np.arange(size) + 0.5
    across = (places[None] - x) / width * 2 - 1
    down = (places[:, None] - y) / height * 2 - 1
    name = CLASS_NAMES[label - 1]
    if name == "ellipse":
        mask = across**2 + down**2 <= 1
    elif name == "rectangle":
        mask = (np.abs(across) <= 1) & (np.abs(down) <= 1)
    else:
        mask = (np.abs(across) <= (down + 1) / 2) & (down <= 1)
    return mask, (x, y, x + width, y + height)


def _color(rng, background):
    while True:
        color = rng.uniform(0, 1, 3)
        if np.abs(color - background).max() >= 0.35:
            return color


class DrawnShapes(keras.utils.PyDataset):
    """Batches of drawn images, each one known by what it is made from.

    An image follows from `(split, seed, epoch, index)` alone. Images of
    `"train"` are new in each epoch, those of `"validation"` the same.

    Args:
        num_images: Images of an epoch.
        batch_size: Images of a batch.
        split: `"train"` or `"validation"`, which have no image in common.
        seed: The seed.
        size: Height and width of the images.
        max_objects: Rows of the padded boxes.
        first_epoch: The epoch to begin with, for a training that goes on.
    """

    def __init__(
        self,
        num_images,
        batch_size=16,
        split="train",
        seed=0,
        size=96,
        max_objects=8,
        first_epoch=0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_images = num_images
        self.batch_size = batch_size
        self.split = SPLITS.index(split)
        self.seed = seed
        self.size = size
        self.max_objects = max_objects
        self.epoch = first_epoch

    def __len__(self):
        return -(-self.num_images // self.batch_size)

    def image(self, index):
        """The image of an index, see `draw_image`."""
        epoch = 0 if SPLITS[self.split] == "validation" else self.epoch
        rng = np.random.default_rng((self.split, self.seed, epoch, index))
        return draw_image(rng, self.size)

    def __getitem__(self, index):
        start = index * self.batch_size
        stop = min(start + self.batch_size, self.num_images)
        return batch_of(
            [self.image(i) for i in range(start, stop)], self.max_objects
        )

    def on_epoch_end(self):
        self.epoch += 1
