"""What is trained: shapes and data, the same for every peer.

Only NumPy is needed here, so that workers without Keras can read it.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Workload:
    """One model and its data.

    Args:
        name: Key of the tables of models, in each worker.
        rows: Rows of the data set.
        batch: Rows of the global batch.
        shape: Shape of one row.
        outputs: Width of the last layer.
        classes: Whether the targets are class numbers, else rows of numbers.
        epochs: Epochs of one turn: a turn should take about a second.
        layers: Number of layers, for the model that has as many as asked.
    """

    name: str
    rows: int
    batch: int
    shape: tuple[int, ...]
    outputs: int = 10
    classes: bool = True
    epochs: int = 1
    layers: int = 0

    @classmethod
    def of(cls, given):
        """From what `dataclasses.asdict` and JSON made of it."""
        return cls(**{**given, "shape": tuple(given["shape"])})

    @property
    def steps(self):
        """Steps of one turn."""
        return self.rows // self.batch * self.epochs

    def data(self):
        rng = np.random.default_rng(0)
        x = rng.standard_normal((self.rows, *self.shape), "float32")
        if self.classes:
            return x, rng.integers(self.outputs, size=self.rows).astype("int32")
        return x, rng.standard_normal((self.rows, self.outputs), "float32")

    def at_batch(self, batch, steps):
        """The same model with other batches, one epoch of `steps` of them."""
        return dataclasses.replace(
            self, batch=batch, rows=batch * steps, epochs=1
        )


WORKLOADS = {
    w.name: w
    for w in (
        # 784-1024-1024-10.
        Workload("mlp", 8192, 256, (784,)),
        # Convolutions of 32, 64 and 64 filters, each with BatchNormalization.
        Workload("cnn", 2048, 256, (32, 32, 3)),
        # LSTM(64) on 64 steps of 64.
        Workload("lstm", 1024, 256, (64, 64), epochs=4),
        # 4 layers of 32: the time goes into the host's work.
        Workload("host-bound", 16000, 32, (32,), 32, classes=False),
        # 12 encoder blocks: width 128, 4 heads, 512 inside, 32 positions.
        Workload("transformer", 256, 64, (32, 128)),
    )
}


def stack(layers, batch=32, steps=100):
    """Layers of 32, two variables each, for how cost grows with them."""
    return Workload(
        "stack", batch * steps, batch, (32,), 32, classes=False, layers=layers
    )
