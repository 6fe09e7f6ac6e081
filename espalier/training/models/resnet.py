"""Residual networks with group norm: batch norm's statistics do not survive averaging over non-IID devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from espalier.core.errors import ConfigError


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
    channels, side = _image(input_shape)
    return ResNet(channels, n_classes, (64, 128, 256, 512), 2, large=side >= 64)


def resnet_small(*, input_shape: tuple[int, ...], n_classes: int, width: int = 16, stride: int = 1) -> nn.Module:
    """ResNet-8: three blocks of ``width``, twice and four times as many channels.

    A ``stride`` of 2 halves the image at the stem, which leaves a quarter of the work.
    """
    channels, _ = _image(input_shape)
    for name, value in (("width", width), ("stride", stride)):
        if value < 1:
            raise ConfigError(f"model.{name} is {value}; a positive number is accepted.")
    return ResNet(channels, n_classes, (width, 2 * width, 4 * width), 1, stride=stride)


def _norm(channels: int) -> nn.Module:
    groups = next(g for g in (32, 16, 8, 4, 2, 1) if g == 1 or (channels % g == 0 and 2 * g <= channels))
    return nn.GroupNorm(groups, channels)


def _image(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 3:
        raise ConfigError(
            f"A residual network was given inputs of shape {shape}; (channels, height, width) is accepted."
        )
    return shape[0], min(shape[1:])
