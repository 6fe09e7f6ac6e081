"""Convolution, ReLU and pooling become one exactly where nobody looks between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from espalier.core.params import ParamSpec
from espalier.training.losses import resolve
from espalier.training.merged.probe import probe


class Net(nn.Module):
    def __init__(self, way: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.head = nn.Linear(4 * 4 * 4, 3)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.way(self.conv, x).flatten(1))


def twice(conv: nn.Module, x: Tensor) -> Tensor:
    seen = F.relu(conv(x))
    return F.max_pool2d(seen, 2) + F.avg_pool2d(seen, 2)


def measured(conv: nn.Module, x: Tensor) -> Tensor:
    y = conv(x)
    return F.max_pool2d(F.relu(y), 2) * (y.shape[2] // 8)


WAYS: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], bool]] = {
    "relu, pool": (lambda conv, x: F.max_pool2d(F.relu(conv(x)), 2), True),
    "pool, relu": (lambda conv, x: F.relu(F.max_pool2d(conv(x), 2)), True),
    "in place": (lambda conv, x: F.max_pool2d(F.relu(conv(x), inplace=True), 2), True),
    "method": (lambda conv, x: torch.max_pool2d(conv(x).relu(), 2), True),
    "used twice": (twice, False),
    "its shape is read": (measured, False),
    "something between": (lambda conv, x: F.max_pool2d(F.relu(conv(x) + 1), 2), False),
    "other windows": (lambda conv, x: F.max_pool2d(F.relu(conv(x)), 3, 2, 1), False),
    "no relu": (lambda conv, x: F.max_pool2d(conv(x), 2), False),
}


@pytest.mark.parametrize("name", WAYS)
def test_what_is_taken_together(name: str) -> None:
    way, pooled = WAYS[name]
    net = Net(way)
    x, y = torch.randn(13, 1, 8, 8), torch.randint(3, (13,))
    # The probe itself compares the merged pass with one-by-one training.
    plan = probe(net, ParamSpec.of(net), resolve("cross_entropy"), x, y, torch.float32)
    assert [c.fused for c in plan.calls if c.name == "conv2d"] == [pooled]
