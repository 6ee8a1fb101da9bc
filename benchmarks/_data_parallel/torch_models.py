"""The models in PyTorch, with the shapes of `keras_models`."""

from torch import nn

BLOCKS, WIDTH, HEADS, INNER = 12, 128, 4, 512


class _Recurrent(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.lstm = nn.LSTM(64, 64, batch_first=True)
        self.dense = nn.Linear(64, outputs)

    def forward(self, x):
        return self.dense(self.lstm(x)[0][:, -1])


class _Encoder(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        block = nn.TransformerEncoderLayer(
            WIDTH, HEADS, INNER, dropout=0.0, batch_first=True
        )
        # Without it PyTorch tries nested tensors, which need a mask.
        self.blocks = nn.TransformerEncoder(
            block, BLOCKS, enable_nested_tensor=False
        )
        self.dense = nn.Linear(WIDTH, outputs)

    def forward(self, x):
        return self.dense(self.blocks(x).mean(1))


def _convolution(inputs, filters):
    return [
        nn.Conv2d(inputs, filters, 3, padding="same"),
        nn.BatchNorm2d(filters),
        nn.ReLU(),
    ]


def make(workload):
    """The model of a workload."""
    outputs = workload.outputs
    if workload.name == "mlp":
        return nn.Sequential(
            nn.Linear(784, 1024),
            nn.ReLU(),
            nn.Linear(1024, 1024),
            nn.ReLU(),
            nn.Linear(1024, outputs),
        )
    if workload.name == "cnn":
        return nn.Sequential(
            *_convolution(3, 32),
            *_convolution(32, 64),
            nn.MaxPool2d(2),
            *_convolution(64, 64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, outputs),
        )
    if workload.name == "lstm":
        return _Recurrent(outputs)
    if workload.name == "transformer":
        return _Encoder(outputs)
    inner = [m for _ in range(3) for m in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(*inner, nn.Linear(32, outputs))
