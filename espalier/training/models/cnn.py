"""Small convolutional classifiers: two convolutions, two poolings, fully connected layers."""

from __future__ import annotations

import itertools

from torch import nn

from espalier.core.errors import ConfigError


def lenet(*, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """LeNet-5 with ReLU and max-pooling: 5×5 convolutions to 6 and 16 channels, then 120-84.

    The first convolution keeps the image's size (28×28 is LeNet's 32×32 padded); the second does so
    only where the image would otherwise vanish (8×8 digits). 61,706 parameters on 28×28×1, 10 classes.
    """
    channels, height, width = _image(input_shape, "lenet", 4)
    keep = 2 if min(height, width) < 20 else 0
    h, w = ((s // 2 + 2 * keep - 4) // 2 for s in (height, width))
    return nn.Sequential(
        *_stage(channels, 6, 2),
        *_stage(6, 16, keep),
        nn.Flatten(),
        *_head([16 * h * w, 120, 84, n_classes]),
    )


def fedavg_cnn(*, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """The CNN of McMahan et al. 2017: 5×5 convolutions to 32 and 64 channels, pooling, 512 units.

    1,663,370 parameters on 28×28×1 and 2,156,490 on 32×32×3 with 10 classes.
    """
    channels, height, width = _image(input_shape, "fedavg_cnn", 4)
    return nn.Sequential(
        *_stage(channels, 32, 2),
        *_stage(32, 64, 2),
        nn.Flatten(),
        *_head([64 * (height // 4) * (width // 4), 512, n_classes]),
    )


def d2d_cnn(*, input_shape: tuple[int, ...] = (3, 32, 32), n_classes: int = 10) -> nn.Module:
    """The CIFAR-10 CNN of the D2D paper (Table 13): LeNet's shape without padding; 62,006 parameters."""
    channels, height, width = _image(input_shape, "d2d_cnn", 16)
    h, w = (((s - 4) // 2 - 4) // 2 for s in (height, width))
    return nn.Sequential(
        *_stage(channels, 6, 0),
        *_stage(6, 16, 0),
        nn.Flatten(),
        *_head([16 * h * w, 120, 84, n_classes]),
    )


def _stage(before: int, after: int, padding: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]


def _head(sizes: list[int]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]


def _image(shape: tuple[int, ...], name: str, least: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ConfigError(
            f"model {name!r} was given inputs of shape {shape}; (channels, height, width) with sides of at "
            f"least {least} is accepted."
        )
    return shape[0], shape[1], shape[2]
