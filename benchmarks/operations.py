"""Where the time of a training step goes, in this engine and in a plain loop: products, convolutions, the rest.

    python benchmarks/operations.py                 # the models that do not reach their goal (a minute)
    python benchmarks/operations.py --models lenet

One thread, the models and samples of `run.py`. Operations are those of PyTorch's profiler, with their own time
and not that of operations inside them; native kernels are timed around their calls. The profiler slows small operations
most, so that shares of "other operations" and "Python" are upper bounds.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from native import Memory, timed
from torch import nn
from torch.profiler import ProfilerActivity, profile

from espalier.core.seeds import key
from espalier.training.host import keep_pages
from espalier.training.native import kernels
from espalier.training.trainer import Trainer
from espalier.training.work import Optimizer, TrainerJob

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import work

CALLS = (
    "linear", "linear_backward", "conv", "conv_backward", "norm", "norm_backward", "train",
    "pool", "pool_backward", "attention", "attention_backward",
)  # fmt: skip
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "linear", "mkldnn_linear", "_scaled_dot_product_flash_attention_for_cpu")
PARTS = ("native kernels", "convolutions", "matrix products", "other operations", "Python and the rest")
CLIENTS, STEPS = 6, 3


def part_of(operation: str) -> str:
    """Return which part an operation of PyTorch belongs to."""
    name = operation.removeprefix("aten::")
    if "conv" in name:
        return "convolutions"
    return "matrix products" if name.removesuffix("_backward") in PRODUCTS else "other operations"


def ours(name: str, batch: int, half: bool) -> Callable[[], Any]:
    """Return a training of some clients by the engine."""
    x, y = work.data(CLIENTS, batch, name)
    x, y = x[:, : STEPS * batch].flatten(0, 1), y[:, : STEPS * batch].flatten(0, 1)
    trainer = Trainer(work.model(name), "cross_entropy", workers=1, half=half)
    start, pool, rows = trainer.initial(0), Memory(x, y), np.arange(len(y)).reshape(CLIENTS, -1)
    jobs = [
        TrainerJob(start=start, pool=pool, rows=own, batch_size=batch, optimizer=Optimizer(lr=work.LR), seed=key(0, c))
        for c, own in enumerate(rows)
    ]
    return lambda: list(trainer.run(jobs))


def plain(name: str, batch: int) -> Callable[[], Any]:
    """Return the same training as a plain loop over clients, batches and PyTorch's own layers."""
    x, y = work.data(CLIENTS, batch, name)
    module, loss = work.model(name), nn.CrossEntropyLoss()

    def train() -> None:
        for client in range(CLIENTS):
            own = copy.deepcopy(module)
            optimizer = torch.optim.SGD([p for p in own.parameters() if p.requires_grad], lr=work.LR)
            for step in range(STEPS):
                cut = slice(step * batch, (step + 1) * batch)
                optimizer.zero_grad()
                loss(own(x[client, cut]), y[client, cut]).backward()
                optimizer.step()

    return train


def shares(train: Callable[[], Any]) -> dict[str, float]:
    """Return the milliseconds per step and client of each part; the whole is that without the profiler."""
    train()
    wholes = []
    for _ in range(3):
        begun = time.process_time()
        train()
        wholes.append(time.process_time() - begun)
    spent, found = dict.fromkeys(PARTS, 0.0), kernels()
    with ExitStack() as stack:
        for call in CALLS if found is not None else ():
            stack.enter_context(patch.object(found, call, timed(getattr(found, call), spent, PARTS[0])))
        with profile(activities=[ProfilerActivity.CPU]) as report:
            begun = time.perf_counter()  # as the profiler counts
            train()
            whole = time.perf_counter() - begun
    events = [e for e in report.key_averages() if e.key.startswith("aten::")]
    for event in events:
        spent[part_of(event.key)] += event.self_cpu_time_total / 1e6
    spent[PARTS[-1]] = max(0.0, whole - sum(spent.values()))
    unit = 1e3 / CLIENTS / STEPS
    return {"whole": unit * min(wholes), **{p: s / sum(spent.values()) for p, s in spent.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet8", "resnet20", "lstm", "transformer", "lora", "mobile"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_pages()
    rows: list[dict[str, Any]] = []
    cases: list[tuple[str, int, str, Callable[[], Any]]] = []
    for name in args.models:
        cases += [(name, 32, "plain loop", plain(name, 32)), (name, 32, "Espalier", ours(name, 32, False))]
    if "fedavg_cnn" not in args.models:
        sides = [("plain loop", plain("fedavg_cnn", 10)), ("Espalier", ours("fedavg_cnn", 10, False))]
        sides.append(("Espalier, bfloat16", ours("fedavg_cnn", 10, True)))
        cases += [("fedavg_cnn", 10, side, train) for side, train in sides]
    for name, batch, side, train in cases:
        rows.append({"model": name, "batch": batch, "side": side, **shares(train)})
        cells = ", ".join(f"{part} {rows[-1][part]:.0%}" for part in PARTS)
        print(f"{name}, batch {batch}, {side}: {rows[-1]['whole']:.2f} ms; {cells}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
