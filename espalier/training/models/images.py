"""Convolutional networks: LeNet and its like, ResNets, SqueezeNet, and a U-Net for segmentation.

Norms are group norms: batch norm's statistics do not survive averaging over non-IID devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from espalier.core.errors import ConfigError
from espalier.training.models.mlp import FOR_ROWS


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


def _image(shape: tuple[int, ...], name: str, least: int = 1) -> tuple[int, int, int]:
    """Return channels, height and width of images whose sides are long enough."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ConfigError(
            f"model {name!r} was given inputs of shape {shape}; (channels, height, width) with sides of at "
            f"least {least} is accepted.{FOR_ROWS if len(shape) == 1 else ''}"
        )
    return shape[0], shape[1], shape[2]


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut (He et al. 2016), group norm in place of batch norm."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = _norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = _norm(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _norm(after))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[n, before, h, w]`` to ``[n, after, h/stride, w/stride]``."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of blocks that halve the image, the mean over it, a linear layer."""

    def __init__(
        self, channels: int, classes: int, widths: Sequence[int], depth: int, *, large: bool = False, stride: int = 1
    ) -> None:
        super().__init__()
        if large:
            self.stem: nn.Module = nn.Sequential(
                nn.Conv2d(channels, widths[0], 7, 2, 3, bias=False), _norm(widths[0]), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
            )
        else:
            self.stem = nn.Sequential(
                nn.Conv2d(channels, widths[0], 3, stride, 1, bias=False), _norm(widths[0]), nn.ReLU()
            )
        blocks: list[nn.Module] = []
        before = widths[0]
        for stage, width in enumerate(widths):
            for n in range(depth):
                blocks.append(Block(before, width, 2 if stage and not n else 1))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Classify images ``[n, channels, h, w]``."""
        out: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return out


def resnet18(*, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """ResNet-18; images below 64 pixels get the 3×3 stem customary for CIFAR."""
    channels, height, width = _image(input_shape, "resnet18")
    return ResNet(channels, n_classes, (64, 128, 256, 512), 2, large=min(height, width) >= 64)


def resnet_small(*, input_shape: tuple[int, ...], n_classes: int, width: int = 16, stride: int = 1) -> nn.Module:
    """ResNet-8: three blocks of ``width``, twice and four times as many channels.

    A ``stride`` of 2 halves the image at the stem, which leaves a quarter of the work.
    """
    channels, _, _ = _image(input_shape, "resnet_small")
    for name, value in (("width", width), ("stride", stride)):
        if value < 1:
            raise ConfigError(f"model.{name} is {value}; a positive number is accepted.")
    return ResNet(channels, n_classes, (width, 2 * width, 4 * width), 1, stride=stride)


def _norm(channels: int) -> nn.Module:
    groups = next(g for g in (32, 16, 8, 4, 2, 1) if g == 1 or (channels % g == 0 and 2 * g <= channels))
    return nn.GroupNorm(groups, channels)


class Fire(nn.Module):
    """Squeeze by 1×1 convolutions, expand by 1×1 and 3×3 ones."""

    def __init__(self, before: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(before, squeeze, 1)
        self.narrow = nn.Conv2d(squeeze, expand, 1)
        self.wide = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[n, before, h, w]`` to ``[n, 2·expand, h, w]``."""
        y = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.narrow(y)), F.relu(self.wide(y))], 1)


def squeezenet(*, input_shape: tuple[int, ...], n_classes: int, dropout: float = 0.5) -> nn.Module:
    """SqueezeNet 1.1 (Iandola et al. 2016); images below 64 pixels keep their size in the first convolution.

    773,796 parameters on colour images with 100 classes.
    """
    channels, height, width = _image(input_shape, "squeezenet", 16)
    small = min(height, width) < 64
    first = nn.Conv2d(channels, 64, 3, stride=1 if small else 2, padding=1 if small else 0)
    return nn.Sequential(
        first,
        nn.ReLU(),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(64, 16, 64),
        Fire(128, 16, 64),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(128, 32, 128),
        Fire(256, 32, 128),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(256, 48, 192),
        Fire(384, 48, 192),
        Fire(384, 64, 256),
        Fire(512, 64, 256),
        nn.Dropout(dropout),
        nn.Conv2d(512, n_classes, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class UNet(nn.Module):
    """Stages that halve the image, the way back up with skip connections, a class score per pixel."""

    def __init__(self, channels: int, classes: int, width: int, depth: int) -> None:
        super().__init__()
        sizes = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(_double(b, a) for b, a in zip([channels, *sizes[:-1]], sizes, strict=True))
        self.up = nn.ModuleList(_double(sizes[i + 1] + sizes[i], sizes[i]) for i in reversed(range(depth)))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Score images ``[n, channels, h, w]``, giving ``[n, classes, h, w]``."""
        skips: list[Tensor] = []
        for stage in self.down:
            x = stage(F.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for stage, skip in zip(self.up, reversed(skips[:-1]), strict=True):
            x = stage(torch.cat([F.interpolate(x, scale_factor=2.0, mode="nearest"), skip], 1))
        out: Tensor = self.head(x)
        return out


def unet(*, input_shape: tuple[int, ...], n_classes: int, width: int = 16, depth: int = 3) -> nn.Module:
    """A small U-Net (Ronneberger et al. 2015) of ``depth`` halvings, ``width`` channels at full size."""
    if width < 1 or depth < 1:
        raise ConfigError(f"model.width is {width} and model.depth is {depth}; positive numbers are accepted.")
    if len(input_shape) != 3 or any(s % (1 << depth) for s in input_shape[1:]):
        raise ConfigError(
            f"model 'unet' was given inputs of shape {input_shape}; (channels, height, width) with sides that are "
            f"multiples of {1 << depth} is accepted: resize the images or set a smaller depth."
        )
    return UNet(input_shape[0], n_classes, width, depth)


def _double(before: int, after: int) -> nn.Module:
    layers: list[nn.Module] = []
    for first in (before, after):
        groups = next(g for g in (8, 4, 2, 1) if after % g == 0)
        layers += [nn.Conv2d(first, after, 3, padding=1, bias=False), nn.GroupNorm(groups, after), nn.ReLU()]
    return nn.Sequential(*layers)
