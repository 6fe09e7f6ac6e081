"""A client as Flower's own tutorials have them. It knows nothing of this software."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import flwr
import numpy as np
import torch
from flwr.client import Client, NumPyClient
from flwr.common import Context
from sklearn.datasets import load_digits
from torch import nn


class DigitsClient(NumPyClient):  # type: ignore[misc]
    """Trains a logistic regression on its part of the digits; device 1 has three times as many as device 0."""

    def __init__(self, partition: int) -> None:
        images, labels = load_digits(return_X_y=True)
        part = slice(0, 300) if partition == 0 else slice(300, 1200)
        self.images = torch.tensor(images[part] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
        self.labels = torch.tensor(labels[part])
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def get_parameters(self, config: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
        return [value.numpy() for value in self.net.state_dict().values()]

    def set_parameters(self, parameters: list[np.ndarray[Any, Any]]) -> None:
        pairs = zip(self.net.state_dict(), parameters, strict=True)
        self.net.load_state_dict(OrderedDict({k: torch.tensor(v) for k, v in pairs}))

    def fit(self, parameters: list[np.ndarray[Any, Any]], config: dict[str, Any]) -> Any:
        self.set_parameters(parameters)
        optimiser = torch.optim.SGD(self.net.parameters(), lr=0.5)
        for _ in range(int(config["local_epochs"])):
            optimiser.zero_grad()
            nn.functional.cross_entropy(self.net(self.images), self.labels).backward()
            optimiser.step()
        return self.get_parameters({}), len(self.labels), {"flower": flwr.__version__}

    def evaluate(self, parameters: list[np.ndarray[Any, Any]], config: dict[str, Any]) -> Any:
        self.set_parameters(parameters)
        with torch.no_grad():
            out = self.net(self.images)
        loss = nn.functional.cross_entropy(out, self.labels)
        return float(loss), len(self.labels), {"accuracy": float((out.argmax(1) == self.labels).float().mean())}


def client_fn(context: Context) -> Client:
    """What a Flower app names."""
    return DigitsClient(int(context.node_config["partition-id"])).to_client()
