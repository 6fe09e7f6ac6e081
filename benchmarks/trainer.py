"""The trainer against the loop that most frameworks run.

    python benchmarks/trainer.py [--repeats 5] [--workers 2] [--json FILE] [--only mlp/10]

The naive loop trains client after client: an nn.Module, a DataLoader, torch.optim.SGD, torch's default
threads. Both train 20 clients for 30 steps of plain SGD on random MNIST-shaped data, alternating within
one run; medians and their ratio are printed, and the ratio is checked against the floor. Exit code 1
says that a floor is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from espalier.core.seeds import key
from espalier.training.models import build
from espalier.training.trainer import Trainer
from espalier.training.work import Job, Optimizer

CLIENTS, STEPS, LR = 20, 30, 0.01
FLOORS: dict[tuple[str, int], float | None] = {
    ("mlp", 10): 4.0,
    ("mlp", 32): 3.0,
    ("lenet", 10): 2.0,
    ("lenet", 32): 1.6,
    ("fedavg_cnn", 10): 1.35,
    ("fedavg_cnn", 32): None,
}


@dataclass(frozen=True)
class Row:
    model: str
    batch: int
    naive_seconds: float
    ours_seconds: float
    ratio: float
    floor: float | None


class Memory:
    """Rows of two tensors."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self._x.index_select(0, rows), self._y.index_select(0, rows)


def naive(module: nn.Module, x: Tensor, y: Tensor, batch: int) -> float:
    """Train every client in turn, the way of the textbook; return the seconds it took."""
    start = {k: v.clone() for k, v in module.state_dict().items()}
    loss = nn.CrossEntropyLoss()
    began = time.perf_counter()
    for client in range(CLIENTS):
        module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), lr=LR)
        rows = slice(client * batch * STEPS, (client + 1) * batch * STEPS)
        for inputs, labels in DataLoader(TensorDataset(x[rows], y[rows]), batch_size=batch, shuffle=True):
            optimizer.zero_grad()
            loss(module(inputs), labels).backward()
            optimizer.step()
    seconds = time.perf_counter() - began
    module.load_state_dict(start)
    return seconds


def ours(trainer: Trainer, jobs: list[Job]) -> float:
    """Train all clients with the trainer; return the seconds it took."""
    began = time.perf_counter()
    for _ in trainer.run(jobs):
        pass
    return time.perf_counter() - began


def measure(name: str, batch: int, repeats: int, workers: int) -> Row:
    """Alternate the two and take medians."""
    module = build(name, input_shape=(1, 28, 28), n_classes=10)
    generator = torch.Generator().manual_seed(0)
    rows = CLIENTS * batch * STEPS
    x = torch.randn(rows, 1, 28, 28, generator=generator)
    y = torch.randint(10, (rows,), generator=generator)
    pool = Memory(x, y)
    with Trainer(module, "cross_entropy", workers=workers) as trainer:
        start = trainer.initial(0)
        own = np.arange(rows, dtype=np.int64).reshape(CLIENTS, -1)
        jobs = [Job(start, pool, own[c], batch, Optimizer(lr=LR), key(0, "bench", c)) for c in range(CLIENTS)]
        ours(trainer, jobs)
        pairs = [(naive(module, x, y, batch), ours(trainer, jobs)) for _ in range(repeats)]
        assert trainer.batched, trainer.why_not
    a, b = statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)
    ratio = statistics.median(p[0] / p[1] for p in pairs)
    return Row(name, batch, a, b, ratio, FLOORS[name, batch])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", action="append", metavar="MODEL/BATCH")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(
        f"{CLIENTS} clients x {STEPS} steps; ours: {options.workers} workers, "
        f"the naive loop: {torch.get_num_threads()} threads"
    )
    print(f"{'model':<12}{'batch':>6}{'naive s':>10}{'ours s':>10}{'ratio':>8}{'floor':>8}")
    rows, missed = [], 0
    for name, batch in FLOORS:
        if options.only and f"{name}/{batch}" not in options.only:
            continue
        row = measure(name, batch, options.repeats, options.workers)
        rows.append(row)
        below = row.floor is not None and row.ratio < row.floor
        missed += below
        floor = "-" if row.floor is None else f"{row.floor:.2f}"
        print(
            f"{name:<12}{batch:>6}{row.naive_seconds:>10.3f}{row.ours_seconds:>10.3f}{row.ratio:>8.2f}{floor:>8}"
            f"{'  MISSED' if below else ''}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=2) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
