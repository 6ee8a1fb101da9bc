"""Reads folders of the Pascal VOC layout: one's own images, too.

    JPEGImages/NAME.jpg          (or .png)
    Annotations/NAME.xml         boxes, in pixels, the first being 1
    ImageSets/Main/SPLIT.txt     a NAME in each line

Images of any size are scaled to the model's, with their proportions, into the
upper left corner of a gray square.
"""

import pathlib
import xml.etree.ElementTree as ET

import keras
import numpy as np
from PIL import Image

from faster_rcnn.batches import batch_of

_GRAY = 128


def find_class_names(folder):
    """The names that the annotations of a folder use, sorted."""
    paths = sorted((pathlib.Path(folder) / "Annotations").glob("*.xml"))
    names = {
        entry.findtext("name", "").strip()
        for path in paths
        for entry in ET.parse(path).iter("object")
    }
    if not names:
        raise ValueError(
            "A VOC folder has Annotations/NAME.xml with objects. Received: "
            f"{str(folder)!r}, with {len(paths)} annotations."
        )
    return tuple(sorted(names))


def read_annotation(path, class_names):
    """`(boxes, labels, difficult)` of a file, in pixels of its image."""
    boxes, labels, difficult = [], [], []
    for entry in ET.parse(path).iter("object"):
        name = entry.findtext("name", "").strip()
        if name not in class_names:
            raise ValueError(
                f"An object is of one of the classes {list(class_names)}. "
                f"Received: {name!r} in {str(path)!r}."
            )
        x0, y0, x1, y1 = (
            float(entry.findtext(f"bndbox/{corner}", "nan"))
            for corner in ("xmin", "ymin", "xmax", "ymax")
        )
        # The first pixel is 1 there, and the last one belongs to the box.
        box = (x0 - 1, y0 - 1, x1, y1)
        if not (box[0] < box[2] and box[1] < box[3]):
            raise ValueError(
                "A box has xmin <= xmax and ymin <= ymax. Received: "
                f"{(x0, y0, x1, y1)} in {str(path)!r}."
            )
        boxes.append(box)
        labels.append(class_names.index(name) + 1)
        difficult.append(entry.findtext("difficult", "0").strip() == "1")
    return (
        np.array(boxes, "float32").reshape(-1, 4),
        np.array(labels, "int32"),
        np.array(difficult, bool),
    )


def resize(image, size):
    """An image in a gray square, and by what its boxes are multiplied."""
    scale = size / max(image.size)
    width, height = (max(round(scale * side), 1) for side in image.size)
    square = Image.new("RGB", (size, size), (_GRAY,) * 3)
    square.paste(image.convert("RGB").resize((width, height)), (0, 0))
    factor = (width / image.width, height / image.height)
    return np.asarray(square, "float32") / 255, np.float32(factor * 2)


class VOC(keras.utils.PyDataset):
    """Batches of a VOC folder.

    Args:
        folder: The folder.
        split: Name of a file in `ImageSets/Main`, without `.txt`.
        class_names: The classes; label 1 is the first.
        batch_size: Images of a batch.
        size: Height and width that images are brought to.
        max_objects: Rows of the padded boxes.
        flip: Whether images are mirrored with a chance of a half, and their
            order is new in each epoch: for training.
        seed: The seed of both.
    """

    def __init__(
        self,
        folder,
        split,
        class_names,
        batch_size=16,
        size=96,
        max_objects=8,
        flip=False,
        seed=0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.folder = pathlib.Path(folder)
        lines = self.folder / "ImageSets" / "Main" / f"{split}.txt"
        # Lists of one class have a second column.
        columns = map(str.split, lines.read_text().splitlines())
        self.names = [names[0] for names in columns if names]
        self.class_names = tuple(class_names)
        self.batch_size = batch_size
        self.size = size
        self.max_objects = max_objects
        self.flip = flip
        self.seed = seed
        self.epoch = 0

    def __len__(self):
        return -(-len(self.names) // self.batch_size)

    def image(self, name):
        """`(image, boxes, labels, difficult)`, of the model's size."""
        boxes, labels, difficult = read_annotation(
            self.folder / "Annotations" / f"{name}.xml", self.class_names
        )
        path = self.folder / "JPEGImages" / f"{name}.jpg"
        if not path.exists():
            path = path.with_suffix(".png")
        with Image.open(path) as file:
            image, factor = resize(file, self.size)
        return image, boxes * factor, labels, difficult

    def __getitem__(self, index):
        rng = np.random.default_rng((self.seed, self.epoch))
        names = rng.permutation(self.names) if self.flip else self.names
        mirrored = rng.random(len(names)) < 0.5
        start = index * self.batch_size
        chosen = range(start, min(start + self.batch_size, len(names)))
        samples = []
        for i in chosen:
            image, boxes, *rest = self.image(names[i])
            if self.flip and mirrored[i]:
                image = image[:, ::-1]
                boxes = boxes * (-1, 1, -1, 1) + (self.size, 0, self.size, 0)
                boxes = boxes[:, [2, 1, 0, 3]]
            samples.append((image, boxes, *rest))
        return batch_of(samples, self.max_objects)

    def on_epoch_end(self):
        self.epoch += 1
