"""The naive loop: per client a DataLoader and torch.optim.SGD, torch's default threads. Prints seconds per round."""

from __future__ import annotations

import copy
import json
import sys
import time

import torch
import work
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    name, batch, clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    shared = work.model(name)
    x, y = work.data(clients, batch, name)
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        total = {k: torch.zeros_like(v) for k, v in shared.state_dict().items()}
        for i in range(clients):
            local = copy.deepcopy(shared)
            optimizer = torch.optim.SGD(local.parameters(), lr=work.LR)
            for bx, by in DataLoader(TensorDataset(x[i], y[i]), batch_size=batch, shuffle=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(local(bx), by).backward()
                optimizer.step()
            for k, v in local.state_dict().items():
                total[k] += v / clients
        shared.load_state_dict(total)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds[1:]))


main()
