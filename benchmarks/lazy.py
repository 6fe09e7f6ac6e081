"""What lazy batching gains an asynchronous method, against computing every job when it is ordered.

    python benchmarks/lazy.py [--repeats 3] [--json FILE]

HiFlash with asynchronous edges, 60 devices of 100 samples each at 6 edges, 12 cloud rounds; both ways in turn, in this
process, with two training workers. Results are the same to the bit (checked); abandoned work is computed only by
the eager way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from espalier.core.store import Ref
from espalier.data.dataset import Dataset
from espalier.experiment import Experiment, MethodEntry
from espalier.simulator.runner import Runner


def run(model: str, batch: int, eager: bool) -> tuple[float, torch.Tensor, int]:
    """Return seconds, the last model and the number of jobs computed."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(7000, 1, 28, 28, generator=draw), torch.randint(0, 10, (7000,), generator=draw)
    data = Dataset.from_arrays(x[:6000], y[:6000], x[6000:], y[6000:], n_classes=10)
    experiment = Experiment.build({
        "task": {"model": model, "model_options": {"hidden": [200, 200]} if model == "mlp" else {}},
        "partition": {"kind": "iid"},
        "fleet": {"devices": 60, "edges": 6},
        "training": {"batch_size": batch, "updates": 1, "lr": 0.05},
        "world": {"compute": {"kind": "rate", "low": 1.0, "high": 8.0}},
        "stop": {"rounds": 12},
        "evaluate": {"every": 12},
        "record": {"spans": False},
    })  # fmt: skip
    entry = MethodEntry.build({"name": "hiflash", "kappa2": 1, "reach": "own"})
    runner = Runner(experiment.only(entry, 0), None, dataset=data, workers=2)
    ledger = runner.simulation.ledger
    if eager:
        submit = ledger.submit

        def at_once(job: Any) -> Ref:
            ref = submit(job)
            ledger.flush([ref])
            return ref

        ledger.submit = at_once  # type: ignore[method-assign]
    began = time.perf_counter()
    runner.run()
    seconds = time.perf_counter() - began
    (last,) = runner.simulation.served[runner.simulation.fleet.tree.root].values()
    return seconds, ledger.vector(last).clone(), ledger.computed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    print("| model | batch | at once | lazily | gain | jobs at once / lazily |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for model, batch in (("mlp", 10), ("mlp", 32), ("lenet", 10), ("lenet", 32)):
        run(model, batch, False)
        pairs = [(run(model, batch, True), run(model, batch, False)) for _ in range(args.repeats)]
        assert all(torch.equal(a[1], b[1]) for a, b in pairs)
        eager, lazy = (statistics.median(p[i][0] for p in pairs) for i in (0, 1))
        (_, _, most), (_, _, fewer) = pairs[0]
        rows.append({"model": model, "batch": batch, "eager_s": eager, "lazy_s": lazy, "eager_jobs": most,
                     "lazy_jobs": fewer})  # fmt: skip
        jobs = f"{most} / {fewer}"
        print(f"| {model} | {batch} | {eager:.2f} s | {lazy:.2f} s | {eager / lazy:.1f}× | {jobs} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
