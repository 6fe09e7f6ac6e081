"""EASF's CNN: "two convolutional-pooling layers and two fully connected layers", whose widths the paper leaves open."""

from __future__ import annotations

import torch
from torch import nn


def cnn(*, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return LeNet-5 without its middle layer: 5×5 convolutions to 6 and 16 channels, then 120 units.

    51,902 parameters on 28×28×1 with 10 classes.
    """
    features = nn.Sequential(
        nn.Conv2d(input_shape[0], 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    wide = features(torch.zeros(1, *input_shape)).shape[1]
    return nn.Sequential(*features, nn.Linear(wide, 120), nn.ReLU(), nn.Linear(120, n_classes))
