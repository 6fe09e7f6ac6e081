"""The loop of HierFL (Liu, Zhang, Song, Letaief, ICC 2020), the published code of HierFAVG, written anew in its way.

Every client has a model, an optimiser and a DataLoader for good; the loss is read after every step; models travel as
copied state dicts, and edges and the cloud average them tensor by tensor. Two edges, one edge round per cloud round.
Prints seconds per round.
"""

from __future__ import annotations

import copy
import json
import sys
import time

import torch
import work
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EDGES = 2
State = dict[str, Tensor]


class Client:
    """A client with a model of its own."""

    def __init__(self, name: str, x: Tensor, y: Tensor, batch: int) -> None:
        self.model = work.model(name)
        self.loader = DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=work.LR, momentum=0.0, weight_decay=0.0)
        self.criterion = nn.CrossEntropyLoss()

    def update(self, received: State) -> State:
        """Train one epoch from a model that was received."""
        self.model.load_state_dict(received)
        loss = 0.0
        for inputs, labels in self.loader:
            self.model.train(True)
            self.optimizer.zero_grad()
            found = self.criterion(self.model(inputs), labels)
            found.backward()
            self.optimizer.step()
            loss += found.item()
        return copy.deepcopy(self.model.state_dict())


def average(states: list[State], samples: list[int]) -> State:
    """Return the mean of models by samples, tensor by tensor."""
    found = copy.deepcopy(states[0])
    for k in found:
        for state, count in zip(states[1:], samples[1:], strict=True):
            found[k] += torch.mul(state[k], count / samples[0])
        found[k] = torch.mul(found[k], samples[0] / sum(samples))
    return found


def main() -> None:
    name, batch, clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    x, y = work.data(clients, batch, name)
    fleet = [Client(name, x[i], y[i], batch) for i in range(clients)]
    cloud = copy.deepcopy(fleet[0].model.state_dict())
    samples = [len(x[i]) for i in range(clients)]
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        edges, counts = [], []
        for edge in range(EDGES):
            members = range(edge, clients, EDGES)
            trained = [fleet[i].update(copy.deepcopy(cloud)) for i in members]
            edges.append(average(trained, [samples[i] for i in members]))
            counts.append(sum(samples[i] for i in members))
        cloud = average([copy.deepcopy(state) for state in edges], counts)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds[1:]))


main()
