"""Plain PyTorch with `torch.func.vmap` over clients: one program steps a chunk of them. Prints seconds per round."""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import work
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

#: clients stepped at once; 10 was the fastest of 5, 10 and 20 for the MLP and LeNet
CHUNK = int(os.environ.get("BENCH_CHUNK", "10"))


def main() -> None:
    name, batch, clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    module = work.model(name)
    shared = {k: v.detach() for k, v in module.named_parameters() if v.requires_grad}
    x, y = work.data(clients, batch, name)

    def loss(weights: dict[str, Tensor], bx: Tensor, by: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(module, weights, (bx,)), by)

    step = vmap(grad(loss))
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        total = {k: torch.zeros_like(v) for k, v in shared.items()}
        for first in range(0, clients, CHUNK):
            cx, cy = x[first : first + CHUNK], y[first : first + CHUNK]
            weights = {k: v.expand(len(cx), *v.shape).clone() for k, v in shared.items()}
            order = torch.stack([torch.randperm(cx.shape[1]) for _ in cx])
            client = torch.arange(len(cx)).unsqueeze(1)
            for i in range(0, cx.shape[1], batch):
                rows = order[:, i : i + batch]
                gradients = step(weights, cx[client, rows], cy[client, rows])
                for k, g in gradients.items():
                    weights[k].sub_(g, alpha=work.LR)
            for k, v in weights.items():
                total[k] += v.sum(0) / clients
        shared = total
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds[1:]))


main()
