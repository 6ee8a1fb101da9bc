"""The losses, by output."""

import keras
from keras import ops

register = keras.saving.register_keras_serializable(package="faster_rcnn")


def smooth_l1(difference):
    """Girshick 2015, arXiv:1504.08083, equation 3."""
    size = ops.abs(difference)
    return ops.where(size < 1, 0.5 * ops.square(size), size - 0.5)


class _OfSamples(keras.losses.Loss):
    """A sum over what was sampled in an image, by the number of samples."""

    def __init__(self, samples, name=None, **kwargs):
        super().__init__(name=name, **kwargs)
        self.samples = samples

    def get_config(self):
        return {**super().get_config(), "samples": self.samples}


@register
class ObjectnessLoss(_OfSamples):
    """Binary cross-entropy of sampled anchors; those labelled -1 do not count.

    Args:
        samples: Anchors that are sampled of each image.
    """

    def call(self, y_true, y_pred):
        y_true = ops.cast(y_true, y_pred.dtype)
        sampled = ops.cast(y_true >= 0, y_pred.dtype)
        losses = ops.binary_crossentropy(ops.maximum(y_true, 0), y_pred)
        return ops.sum(losses * sampled, axis=-1) / self.samples


@register
class AnchorBoxLoss(_OfSamples):
    """Smooth L1 of anchors that are objects.

    `y_true` is `(images, anchors, 5)`: is it an object, and its encoded box.

    Args:
        samples: Anchors that are sampled of each image.
    """

    def call(self, y_true, y_pred):
        y_true = ops.cast(y_true, y_pred.dtype)
        losses = ops.sum(smooth_l1(y_true[..., 1:] - y_pred), axis=-1)
        return ops.sum(losses * y_true[..., 0], axis=-1) / self.samples


@register
class RegionBoxLoss(keras.losses.Loss):
    """Smooth L1 of a region's box for its class; the background has none.

    `y_true` is `(images, rois, 5)`: the label, 0 for background, and the
    encoded box. `y_pred` has a box for each class: `(images, rois, classes,
    4)`.
    """

    def call(self, y_true, y_pred):
        y_true = ops.cast(y_true, y_pred.dtype)
        labels = ops.cast(y_true[..., 0], "int32")
        # The background, -1 here, is all zeros.
        chosen = ops.one_hot(labels - 1, y_pred.shape[2], dtype=y_pred.dtype)
        differences = y_true[..., None, 1:] - y_pred
        losses = ops.sum(smooth_l1(differences), axis=-1)
        return ops.sum(losses * chosen, axis=-1)
