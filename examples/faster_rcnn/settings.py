"""All numbers of the detector, each with where it comes from.

Section numbers are those of Ren et al. 2015, arXiv:1506.01497, unless said
otherwise. Where the small images ask for another number, the paper's is named.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """What models, targets and detection have to agree on.

    Args:
        class_names: The classes, without the background. Label 1 is the first.
        image_size: Height and width of the images, in pixels.
    """

    class_names: tuple[str, ...]
    image_size: int = 96
    max_objects: int = 8
    """Rows of the padded ground truth of an image."""

    stride: int = 8
    """Pixels between two places of the feature map. 16 in 3.3, at 600 pixels."""

    anchor_scales: tuple[float, ...] = (1 / 6, 0.3, 0.5)
    """Sides of square anchors, in image sides. 128, 256 and 512 pixels in 3.3."""

    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Height by width (3.1.1 and 3.3)."""

    anchor_positive_iou: float = 0.7
    """An anchor above it is an object; so is the best one of each object (3.1.2)."""

    anchor_negative_iou: float = 0.3
    """An anchor below it for every object is background (3.1.2)."""

    anchors_per_image: int = 64
    """Anchors sampled for the loss. 256 in 3.1.3, of about 20,000."""

    anchor_positive_share: float = 0.5
    """At most so many of them are objects; background fills up (3.1.3)."""

    proposal_nms_iou: float = 0.7
    """Of two proposals that overlap more, the better one stays (3.3)."""

    proposals_before_nms: int = 256
    """The best ones, which NMS looks at. 6,000 in the authors' code."""

    num_proposals: int = 64
    """What NMS leaves at most. 2,000 in training and 300 in tests (3.3)."""

    rois_per_image: int = 32
    """Regions sampled for the detector's loss. 64 in Girshick 2015,
    arXiv:1504.08083, 2.3: 128 of two images."""

    roi_positive_share: float = 0.25
    """At most so many of them are objects (arXiv:1504.08083, 2.3)."""

    roi_positive_iou: float = 0.5
    """A region from here on is an object, below it background
    (arXiv:1504.08083, 2.3; without the lower bound of 0.1 there, as in the
    authors' code for training end to end)."""

    box_scales: tuple[float, ...] = (0.1, 0.1, 0.2, 0.2)
    """Targets of the detector's boxes are divided by these, as in the authors'
    code: they then vary by about 1."""

    detection_nms_iou: float = 0.3
    """Of two detections of one class that overlap more, the better one stays
    (as in arXiv:1504.08083 and the authors' code)."""

    detection_score: float = 0.05
    """Detections below it are dropped, as in the authors' code."""

    @property
    def num_classes(self) -> int:
        """Without the background."""
        return len(self.class_names)

    @property
    def grid(self) -> int:
        """Height and width of the feature map."""
        return self.image_size // self.stride

    @property
    def anchors_per_place(self) -> int:
        """Anchors at each place of the feature map."""
        return len(self.anchor_scales) * len(self.anchor_ratios)
