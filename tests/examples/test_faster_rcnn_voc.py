"""The reader of Pascal VOC folders, on files that are written here."""

import pathlib
import sys

import numpy as np
import pytest
from PIL import Image

sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples"))

from faster_rcnn import voc
from faster_rcnn.anchors import AnchorTargets
from faster_rcnn.batches import learnable
from faster_rcnn.settings import Settings

OBJECT = """
<object>
  <name>{name}</name>
  <difficult>{difficult}</difficult>
  <bndbox>
    <xmin>{0}</xmin><ymin>{1}</ymin><xmax>{2}</xmax><ymax>{3}</ymax>
  </bndbox>
</object>"""


def write_image(folder, name, size, objects, color="red"):
    """An image on which each object is a rectangle of its pixels."""
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, "black")
    texts = []
    for label, difficult, (x0, y0, x1, y1) in objects:
        image.paste(color, (x0, y0, x1, y1))
        # VOC counts from 1, and the last pixel is in the box.
        corners = (x0 + 1, y0 + 1, x1, y1)
        texts.append(
            OBJECT.format(*corners, name=label, difficult=int(difficult))
        )
    image.save(folder / "JPEGImages" / f"{name}.jpg", quality=95)
    text = f"<annotation>{''.join(texts)}\n</annotation>"
    (folder / "Annotations" / f"{name}.xml").write_text(text)


@pytest.fixture
def folder(tmp_path):
    write_image(
        tmp_path,
        "wide",
        (200, 100),
        [("dog", False, (20, 10, 120, 60)), ("cat", True, (150, 50, 200, 100))],
    )
    write_image(tmp_path, "tall", (50, 150), [("cat", False, (0, 0, 50, 75))])
    write_image(tmp_path, "empty", (64, 64), [])
    lists = tmp_path / "ImageSets" / "Main"
    (lists / "train.txt").write_text("wide\ntall\nempty\n")
    # A list of one class, as VOC has them.
    (lists / "cat_val.txt").write_text("tall  1\nempty -1\n")
    return tmp_path


def test_a_folder_is_read(folder):
    names = voc.find_class_names(folder)
    assert names == ("cat", "dog")
    data = voc.VOC(folder, "train", names, batch_size=2, max_objects=3)
    assert len(data) == 2
    images, truth = data[0]
    assert images.shape == (2, 96, 96, 3) and images.dtype == np.float32
    # Scaled by 96/200 and by 96/150, into the upper left corner.
    np.testing.assert_allclose(
        truth["boxes"][0],
        [[9.6, 4.8, 57.6, 28.8], [72, 24, 96, 48], [0, 0, 0, 0]],
        rtol=1e-5,
    )
    np.testing.assert_allclose(truth["boxes"][1, 0], [0, 0, 32, 48], rtol=1e-5)
    assert truth["labels"].tolist() == [[2, 1, 0], [1, 0, 0]]
    assert truth["difficult"].tolist() == [[False, True, False], [False] * 3]
    # Where the boxes say, there are the objects; the rest is gray.
    assert images[0, 10:25, 15:50, 0].min() > 0.8
    assert images[0, 35:45, 10:60].max() < 0.2
    np.testing.assert_allclose(images[0, 50:], 128 / 255, rtol=1e-5)

    images, truth = data[1]
    assert len(images) == 1 and not truth["labels"].any()
    second = voc.VOC(folder, "cat_val", names)
    assert second.names == ["tall", "empty"]


def test_what_is_difficult_is_not_learnt(folder):
    data = voc.VOC(folder, "train", ("cat", "dog"), batch_size=3)
    batch = data[0]
    assert [labels.tolist() for _, labels in learnable(batch[1])] == [
        *([2], [1], []),
    ]
    _, y = AnchorTargets(Settings(("cat", "dog")))(batch, {})
    assert y["objectness"].shape[0] == 3


def test_mirrored_images_have_mirrored_boxes(folder):
    plain = voc.VOC(folder, "train", ("cat", "dog"), batch_size=3)[0]
    data = voc.VOC(folder, "train", ("cat", "dog"), batch_size=3, flip=True)
    by_boxes = {0: set(), 1: set()}
    for _ in range(8):
        images, truth = data[0]
        again = data[0]
        np.testing.assert_array_equal(again[0], images)
        for image, boxes, labels in zip(
            images, truth["boxes"], truth["labels"]
        ):
            kind = [[2, 1], [1, 0], [0, 0]].index(labels[:2].tolist())
            is_mirrored = not np.array_equal(image, plain[0][kind])
            if is_mirrored:
                np.testing.assert_array_equal(image[:, ::-1], plain[0][kind])
                boxes = np.where(labels[:, None] > 0, 96 - boxes, 0)[:, [2, 0]]
                expected = plain[1]["boxes"][kind][:, [0, 2]]
                np.testing.assert_allclose(boxes, expected, atol=1e-4)
            else:
                np.testing.assert_allclose(boxes, plain[1]["boxes"][kind])
            if kind < 2:
                by_boxes[kind].add(is_mirrored)
        data.on_epoch_end()
    assert by_boxes == {0: {True, False}, 1: {True, False}}


def test_mistakes_in_annotations_are_told(folder, tmp_path):
    with pytest.raises(ValueError, match=r"classes \['cat'\].*'dog' in"):
        voc.VOC(folder, "train", ("cat",))[0]
    write_image(folder, "tall", (9, 9), [("cat", False, (5, 5, 5, 8))])
    with pytest.raises(ValueError, match="xmin <= xmax"):
        voc.VOC(folder, "train", ("cat", "dog"))[0]
    with pytest.raises(ValueError, match="with 0 annotations"):
        voc.find_class_names(tmp_path / "nowhere")
