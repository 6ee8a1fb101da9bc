"""RoI align as a Keras layer."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="faster_rcnn")
class RoIAlign(keras.layers.Layer):
    """Cuts regions out of feature maps, all to one size.

    He et al. 2017, arXiv:1703.06870, section 3: a bin is the mean of values
    at regular points in it, each between the four places around it. Weights
    of such a point are a product of one for its row and one for its column,
    and so are those of the mean: two matrix products do it, on any backend.

    Args:
        size: Rows and columns of the result.
        stride: Pixels from one place of the feature map to the next.
        samples: Points of a bin, in each direction.
    """

    def __init__(self, size=5, stride=8, samples=2, **kwargs):
        super().__init__(**kwargs)
        self.size = size
        self.stride = stride
        self.samples = samples

    def call(self, inputs):
        """Cuts.

        Args:
            inputs: Features `(images, height, width, channels)`, and regions
                `(images, rois, 4)` in pixels of the image.

        Returns:
            `(images, rois, size, size, channels)`.
        """
        features, rois = inputs
        rois = ops.cast(rois, features.dtype)
        height, width = features.shape[1:3]
        rows = self._weights(rois[..., 1], rois[..., 3], height)
        columns = self._weights(rois[..., 0], rois[..., 2], width)
        cut = ops.einsum("brph,bhwc->brpwc", rows, features)
        return ops.einsum("brqw,brpwc->brpqc", columns, cut)

    def _weights(self, low, high, places):
        """Weights of the places in each bin, `(images, rois, size, places)`."""
        steps = ops.arange(self.size * self.samples, dtype=low.dtype) + 0.5
        steps = ops.reshape(steps, (self.size, self.samples))
        steps = steps / (self.size * self.samples)
        points = (high - low)[..., None, None] * steps
        points = points + low[..., None, None]
        # The middle of the first place is half a stride from the border.
        points = ops.clip(points / self.stride - 0.5, 0, places - 1)
        distances = points[..., None] - ops.arange(places, dtype=low.dtype)
        return ops.mean(ops.maximum(1 - ops.abs(distances), 0), axis=3)

    def compute_output_shape(self, input_shape):
        features, rois = input_shape
        return (*rois[:2], self.size, self.size, features[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "size": self.size,
            "stride": self.stride,
            "samples": self.samples,
        }
