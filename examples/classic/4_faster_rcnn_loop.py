"""The loop of the Keras Faster R-CNN, by hand, on 8 devices.

    python examples/classic/4_faster_rcnn_loop.py         # with 8 GPUs
    keras-parallel run --virtual-devices 8 examples/classic/4_faster_rcnn_loop.py

For each batch the region proposal network (RPN) is trained one step; its
predictions become the input of the detector, which is trained one step; both
are saved as one model. The two share a backbone: one set of weights, one copy
of it on each device. `AlternatingTrainer` is this loop with `fit` around it,
see `examples/faster_rcnn`, from where the models and the data are.
"""

import pathlib
import sys

import keras_parallel as kp

import keras
import numpy as np

# The folder above is where `faster_rcnn` is found.
sys.path.append(str(pathlib.Path(__file__).parents[1]))

from faster_rcnn import models
from faster_rcnn.anchors import AnchorTargets
from faster_rcnn.drawn import CLASS_NAMES, DrawnShapes
from faster_rcnn.proposals import ProposeRegions
from faster_rcnn.settings import Settings

EPOCHS, IMAGES = (int(n) for n in sys.argv[1:] or (4, 256))

keras.utils.set_random_seed(0)
settings = Settings(CLASS_NAMES)
parts = models.make_models(settings)
rpn = kp.data_parallel(parts.rpn)
detector = kp.data_parallel(parts.detector)
models.compile_rpn(rpn, settings, keras.optimizers.Adam(2e-3))
models.compile_detector(detector, keras.optimizers.Adam(2e-3))

data = DrawnShapes(IMAGES, batch_size=16)
label_anchors = AnchorTargets(settings)
propose_regions = ProposeRegions(settings)

for epoch in range(EPOCHS):
    rpn_losses, detector_losses = [], []
    for i in range(len(data)):
        batch = data[i]
        x, y = label_anchors(batch, {})
        rpn_losses.append(rpn.train_on_batch(x, y, return_dict=True)["loss"])

        proposed = rpn.predict_on_batch(x)  # with the weights just updated
        made = propose_regions(batch, {"rpn": proposed})
        if made is None:
            continue
        x, y, weights = made
        logs = detector.train_on_batch(x, y, weights, return_dict=True)
        detector_losses.append(logs["loss"])
    data.on_epoch_end()
    print(f"epoch {epoch + 1}: rpn {np.mean(rpn_losses):.4f}, detector {np.mean(detector_losses):.4f}", flush=True)

parts.full.save("faster_rcnn_loop.keras")
loaded = keras.saving.load_model("faster_rcnn_loop.keras")
print("saved one model with outputs:", sorted(loaded.output_names))
