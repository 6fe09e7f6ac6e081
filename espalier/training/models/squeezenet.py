"""SqueezeNet 1.1 (Iandola et al. 2016)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from espalier.core.errors import ConfigError


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
    """SqueezeNet 1.1; images below 64 pixels keep their size in the first convolution.

    773,796 parameters on colour images with 100 classes.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 16:
        raise ConfigError(
            f"model 'squeezenet' was given inputs of shape {input_shape}; (channels, height, width) with sides "
            "of at least 16 is accepted."
        )
    small = min(input_shape[1:]) < 64
    first = nn.Conv2d(input_shape[0], 64, 3, stride=1 if small else 2, padding=1 if small else 0)
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
