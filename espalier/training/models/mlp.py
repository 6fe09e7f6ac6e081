"""Linear models and multi-layer perceptrons."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from espalier.core.errors import ConfigError

#: added to what is said of a model that does not fit rows of numbers
FOR_ROWS = " Rows of numbers, such as a table's, fit 'mlp' and 'logistic'."


def logistic(*, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Multinomial logistic regression: one linear layer."""
    return mlp(input_shape=input_shape, n_classes=n_classes, hidden=())


def mlp(
    *, input_shape: tuple[int, ...], n_classes: int, hidden: Sequence[int] = (200, 200), dropout: float = 0.0
) -> nn.Module:
    """Fully connected layers of the given sizes with ReLU between them (default 200-200: McMahan et al. 2017)."""
    if isinstance(hidden, str | int) or not all(isinstance(h, int) and h > 0 for h in hidden):
        raise ConfigError(f"model.hidden is {hidden!r}; a list of positive layer sizes is accepted.")
    layers: list[nn.Module] = [nn.Flatten()]
    before = math.prod(input_shape)
    for size in hidden:
        layers += [nn.Linear(before, size), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        before = size
    return nn.Sequential(*layers, nn.Linear(before, n_classes))


def mlp_easf(*, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """The four fully connected layers of EASF's MLP; the paper gives no sizes, we take 512-256-128."""
    return mlp(input_shape=input_shape, n_classes=n_classes, hidden=(512, 256, 128))


def mlp_d2d(*, input_shape: tuple[int, ...] = (48,), n_classes: int = 6, width: int = 2048) -> nn.Module:
    """The magnet-tracking regression of the D2D paper (Table 14): cube root, three layers of 2048, linear."""
    inner = mlp(input_shape=input_shape, n_classes=n_classes, hidden=(width, width, width))
    return nn.Sequential(CubeRoot(), inner)


class CubeRoot(nn.Module):
    """The signed cube root, element by element: a dipole's field falls with the third power of distance."""

    def forward(self, x: Tensor) -> Tensor:
        """Transform inputs of any shape."""
        return torch.sign(x) * torch.abs(x).pow(1.0 / 3.0)
