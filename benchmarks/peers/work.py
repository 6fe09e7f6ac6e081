"""The work that everybody does in the comparison: models and data, plain torch, nothing of espalier's.

Each client holds ``STEPS × batch`` random MNIST-shaped samples and trains one epoch with SGD; a round is all clients
and the average of their models.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

STEPS = int(os.environ.get("BENCH_STEPS", "30"))
LR = 0.01


def model(name: str) -> nn.Module:
    """Return one of the three models."""
    torch.manual_seed(0)
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
        )
    if name == "lenet":
        return nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip
    if name == "fedavg_cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
        )  # fmt: skip
    raise SystemExit(f"no model {name!r}: mlp, lenet or fedavg_cnn")


def data(clients: int, batch: int) -> tuple[Tensor, Tensor]:
    """Return samples ``[clients, STEPS·batch, 1, 28, 28]`` and labels ``[clients, STEPS·batch]``."""
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(clients, STEPS * batch, 1, 28, 28, generator=draw)
    y = torch.randint(0, 10, (clients, STEPS * batch), generator=draw)
    return x, y
