"""The backbone, the two models on it, and the one that holds all parts."""

import dataclasses

import keras
from keras import layers

from faster_rcnn.layers import RoIAlign
from faster_rcnn.losses import AnchorBoxLoss
from faster_rcnn.losses import ObjectnessLoss
from faster_rcnn.losses import RegionBoxLoss


@dataclasses.dataclass(frozen=True)
class Models:
    """Models that share their layers.

    Args:
        backbone: Images to features.
        rpn: Images to `{"objectness", "rpn_boxes"}`.
        detector: Images and regions to `{"classes", "boxes"}`.
        full: Images and regions to all four: the model that is saved.
    """

    backbone: keras.Model
    rpn: keras.Model
    detector: keras.Model
    full: keras.Model


def _conv(x, filters, name, strides=1):
    x = layers.Conv2D(
        filters,
        3,
        strides=strides,
        padding="same",
        use_bias=False,
        name=name,
    )(x)
    x = layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(x)
    return layers.ReLU(name=f"{name}_relu")(x)


def make_backbone(settings, width=16):
    """Images with values from 0 to 1 to features at `settings.stride`."""
    size = settings.image_size
    image = keras.Input((size, size, 3), name="images")
    x = layers.Rescaling(2.0, offset=-1.0, name="rescaling")(image)
    stride, filters = 1, width
    while stride < settings.stride:
        stride *= 2
        x = _conv(x, filters, f"conv_{stride}", strides=2)
        if stride > 2:
            x = _conv(x, filters, f"conv_{stride}b")
        filters *= 2
    return keras.Model(image, x, name="backbone")


def make_models(settings, width=16, dense=128):
    """Builds the models, not compiled.

    Args:
        settings: The settings.
        width: Filters of the first convolution; they double with each stride.
        dense: Units of the detector's hidden layer.
    """
    backbone = make_backbone(settings, width)
    images, features = backbone.input, backbone.output
    channels = features.shape[-1]
    anchors, classes = settings.anchors_per_place, settings.num_classes
    # Near 0, as in the paper: proposals begin as the anchors.
    small = keras.initializers.RandomNormal(stddev=0.01)

    x = layers.Conv2D(
        channels, 3, padding="same", activation="relu", name="rpn_conv"
    )(features)
    scores = layers.Conv2D(anchors, 1, activation="sigmoid", name="rpn_scores")(
        x
    )
    objectness = layers.Reshape((-1,), name="objectness")(scores)
    codes = layers.Conv2D(
        4 * anchors, 1, kernel_initializer=small, name="rpn_codes"
    )(x)
    rpn_boxes = layers.Reshape((-1, 4), name="rpn_boxes")(codes)

    rois = keras.Input((None, 4), name="rois")
    cut = RoIAlign(size=5, stride=settings.stride, name="roi_align")
    x = cut([features, rois])
    x = layers.Reshape((-1, 25 * channels), name="flat")(x)
    x = layers.Dense(dense, activation="relu", name="hidden")(x)
    scores = layers.Dense(classes + 1, activation="softmax", name="classes")(x)
    codes = layers.Dense(
        4 * classes, kernel_initializer=small, name="class_boxes"
    )(x)
    boxes = layers.Reshape((-1, classes, 4), name="boxes")(codes)

    proposed = {"objectness": objectness, "rpn_boxes": rpn_boxes}
    detected = {"classes": scores, "boxes": boxes}
    return Models(
        backbone=backbone,
        rpn=keras.Model(images, proposed, name="rpn"),
        detector=keras.Model([images, rois], detected, name="detector"),
        full=keras.Model(
            [images, rois], {**proposed, **detected}, name="faster_rcnn"
        ),
    )


def split(full):
    """`(rpn, detector)` of a model of all parts, such as a loaded one."""
    images, _ = full.inputs
    outputs = full.output
    rpn = keras.Model(
        images, {name: outputs[name] for name in ("objectness", "rpn_boxes")}
    )
    detector = keras.Model(
        full.inputs, {name: outputs[name] for name in ("classes", "boxes")}
    )
    return rpn, detector


def compile_rpn(rpn, settings, optimizer):
    """Compiles the region proposal network, with a loss for each output."""
    samples = settings.anchors_per_image
    rpn.compile(
        optimizer,
        loss={
            "objectness": ObjectnessLoss(samples),
            "rpn_boxes": AnchorBoxLoss(samples),
        },
        # 10 / 2,400 against 1 / 256 in 3.1.2: about equal.
        loss_weights={"objectness": 1.0, "rpn_boxes": 1.0},
    )


def compile_detector(detector, optimizer):
    """Compiles the detector, with a loss for each output."""
    detector.compile(
        optimizer,
        loss={
            "classes": "sparse_categorical_crossentropy",
            "boxes": RegionBoxLoss(),
        },
        weighted_metrics={"classes": ["accuracy"]},
    )
