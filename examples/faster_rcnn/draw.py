"""Draws detections."""

import numpy as np
from PIL import Image
from PIL import ImageDraw

_COLORS = (
    *((230, 25, 75), (0, 130, 200), (60, 180, 75), (245, 130, 48)),
    *((145, 30, 180), (0, 150, 150), (240, 50, 230), (154, 99, 36)),
)
_GAP = 4


def draw(path, images, found, class_names, min_score=0.5, scale=3, columns=4):
    """Writes a PNG of images with what was found in them.

    Args:
        path: Where to.
        images: `(images, size, size, 3)`, from 0 to 1.
        found: For each image what `detect` returns.
        class_names: The names of the classes.
        min_score: What is less likely is not drawn.
        scale: Pixels of the picture for each pixel of an image.
        columns: Images in a row.
    """
    tiles = [
        _tile(image, objects, class_names, min_score, scale)
        for image, objects in zip(images, found)
    ]
    width, height = tiles[0].size
    rows = -(-len(tiles) // columns)
    columns = min(columns, len(tiles))
    picture = Image.new(
        "RGB",
        (columns * (width + _GAP) - _GAP, rows * (height + _GAP) - _GAP),
        "white",
    )
    for i, tile in enumerate(tiles):
        row, column = divmod(i, columns)
        picture.paste(tile, (column * (width + _GAP), row * (height + _GAP)))
    picture.save(path)


def _tile(image, objects, class_names, min_score, scale):
    pixels = np.round(np.clip(image, 0, 1) * 255).astype("uint8")
    tile = Image.fromarray(pixels)
    # Colors that are there already: the file is much smaller so.
    larger = (tile.width * scale, tile.height * scale)
    tile = tile.resize(larger, Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(tile)
    # The best one last, on top.
    for i in reversed(np.flatnonzero(objects["scores"] >= min_score)):
        label = int(objects["labels"][i])
        color = _COLORS[(label - 1) % len(_COLORS)]
        box = [float(side) * scale for side in objects["boxes"][i]]
        pen.rectangle(box, outline=color, width=3)
        text = f"{class_names[label - 1]} {objects['scores'][i]:.2f}"
        background = pen.textbbox((box[0] + 3, box[1]), text)
        pen.rectangle(background, fill=color)
        pen.text((box[0] + 3, box[1]), text, fill="white")
    return tile
