"""Trains a small Faster R-CNN, alternating, on all devices.

    python examples/faster_rcnn/train.py
    keras-parallel run --virtual-devices 2 examples/faster_rcnn/train.py

On images that it draws, or on a folder of your own: `--voc FOLDER`. The README
beside it says more.
"""

import argparse
import pathlib
import sys
import time

import keras_parallel as kp

import keras
import numpy as np

# The folder above is where `faster_rcnn` is found.
sys.path.append(str(pathlib.Path(__file__).parents[1]))

from faster_rcnn import drawn
from faster_rcnn import models
from faster_rcnn import voc
from faster_rcnn.anchors import AnchorTargets
from faster_rcnn.detect import detect
from faster_rcnn.draw import draw
from faster_rcnn.evaluate import evaluate
from faster_rcnn.proposals import ProposeRegions
from faster_rcnn.settings import Settings


def parse(arguments=None):
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--epochs", type=int, default=24, help="of all phases together"
    )
    parser.add_argument(
        "--images", type=int, default=512, help="drawn in an epoch"
    )
    parser.add_argument("--validation-images", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=int, help="how many (default: all)")
    parser.add_argument(
        "--schedule", choices=("per-batch", "4-step"), default="per-batch"
    )
    parser.add_argument(
        "--voc",
        metavar="FOLDER",
        help="train on a folder of the Pascal VOC layout",
    )
    parser.add_argument(
        "--size",
        type=int,
        default=96,
        help="sides of the model's images, in pixels",
    )
    parser.add_argument(
        "--width", type=int, default=16, help="filters of the first convolution"
    )
    parser.add_argument("--save", metavar="FILE", default="faster_rcnn.keras")
    parser.add_argument(
        "--png", metavar="FILE", help="draw detections in held-out images"
    )
    return parser.parse_args(arguments)


def make_data(options):
    """`(settings, training data, held-out data)`."""
    if options.voc:
        names = voc.find_class_names(options.voc)
        settings = Settings(names, options.size, max_objects=40)
        shared = {
            "class_names": names,
            "batch_size": options.batch_size,
            "size": options.size,
            "max_objects": settings.max_objects,
            "seed": options.seed,
        }
        train = voc.VOC(options.voc, "train", flip=True, **shared)
        return settings, train, voc.VOC(options.voc, "val", **shared)
    settings = Settings(drawn.CLASS_NAMES, options.size)
    shared = {
        "batch_size": options.batch_size,
        "seed": options.seed,
        "size": options.size,
        "max_objects": settings.max_objects,
    }
    train = drawn.DrawnShapes(options.images, split="train", **shared)
    held_out = drawn.DrawnShapes(
        options.validation_images, split="validation", **shared
    )
    return settings, train, held_out


def make_trainer(parts, settings, options, steps_per_epoch):
    """The trainer of the schedule that was chosen."""
    steps = (
        options.epochs
        if options.schedule == "per-batch"
        else options.epochs // 4
    )

    def adam():
        # The paper's SGD begins with a backbone that was trained on ImageNet;
        # this one begins with nothing.
        return keras.optimizers.Adam(
            keras.optimizers.schedules.CosineDecay(
                options.learning_rate, steps * steps_per_epoch
            )
        )

    rpn = kp.data_parallel(parts.rpn, devices=options.devices)
    detector = kp.data_parallel(parts.detector, devices=options.devices)
    models.compile_rpn(rpn, settings, adam())
    models.compile_detector(detector, adam())
    label_anchors = AnchorTargets(settings)
    if options.schedule == "per-batch":
        phases = [
            kp.Phase("rpn", rpn, make_batch=label_anchors),
            kp.Phase("detector", detector, make_batch=ProposeRegions(settings)),
        ]
    else:
        # Section 3.2 of the paper; the detector begins with the backbone of
        # the first step, not with one of its own.
        frozen = {"freeze": [parts.backbone], "epochs": steps}
        phases = [
            kp.Phase("rpn", rpn, make_batch=label_anchors, epochs=steps),
            kp.Phase(
                "detector",
                detector,
                make_batch=ProposeRegions(settings),
                epochs=steps,
            ),
            kp.Phase(
                "rpn_head",
                rpn,
                make_batch=label_anchors,
                optimizer=adam(),
                **frozen,
            ),
            kp.Phase(
                "detector_head",
                detector,
                make_batch=ProposeRegions(settings, rpn="rpn_head"),
                optimizer=adam(),
                **frozen,
            ),
        ]
    return kp.AlternatingTrainer(phases, model=parts.full), rpn, detector


def main(arguments=None):
    """Trains, evaluates, saves, reloads and draws."""
    options = parse(arguments)
    settings, train, held_out = make_data(options)
    keras.utils.set_random_seed(options.seed)
    parts = models.make_models(settings, options.width)
    trainer, rpn, detector = make_trainer(parts, settings, options, len(train))

    start = time.perf_counter()
    epochs = options.epochs if options.schedule == "per-batch" else None
    trainer.fit(
        train,
        epochs=epochs,
        validation_data=held_out,
        validation_freq=4,
        verbose=2,
    )
    seconds = time.perf_counter() - start
    mean, by_class = evaluate(rpn, detector, held_out, settings)
    print(f"trained for {seconds:.0f} s")
    print(
        "mAP@0.5 on held-out images:",
        f"{mean:.3f}",
        {n: round(v, 3) for n, v in by_class.items()},
    )

    trainer.save(options.save)
    images, _ = held_out[0]
    loaded = models.split(keras.saving.load_model(options.save))
    difference = np.abs(
        loaded[0].predict_on_batch(images)["objectness"]
        - rpn.predict_on_batch(images)["objectness"]
    )
    print(
        f"saved to {options.save}; loaded again, probabilities differ by {difference.max():.0e}"
    )
    if options.png:
        draw(
            options.png,
            images[:8],
            detect(*loaded, images[:8], settings),
            settings.class_names,
        )
        print(f"drawn to {options.png}")
    return mean


if __name__ == "__main__":
    main()
