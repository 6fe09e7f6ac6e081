"""A small U-Net (Ronneberger et al. 2015) with group norm, for segmentation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from espalier.core.errors import ConfigError


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
    """A U-Net of ``depth`` halvings, ``width`` channels at full size."""
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
