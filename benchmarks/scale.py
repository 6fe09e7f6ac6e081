"""How the simulator grows with the fleet: wall time, the engine's own share, memory.

    python benchmarks/scale.py                      # 100,000 devices, LeNet, asynchronous edges, 5 cloud rounds
    python benchmarks/scale.py --million            # 1,000,000 devices, MLP, churn and mobility, 10 cloud rounds
    python benchmarks/scale.py --growth             # 1,000 … 1,000,000 devices

Every size runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch

ASYNC = {"name": "hiflash", "kappa2": 1, "reach": "own"}


def setting(
    devices: int, edges: int, sampled: int, rounds: int, samples: int, model: str, busy: bool
) -> dict[str, Any]:
    world: dict[str, Any] = {"compute": {"kind": "rate", "low": 1.0, "high": 8.0}}
    if busy:
        world["mobility"] = {"kind": "markov", "stay": 0.9}
        world["churn"] = {"kind": "two_state", "working": 0.9, "mean_stay": 600}
    options = {"hidden": [200, 200]} if model == "mlp" else {}
    return {
        "task": {"model": model, "model_options": options},
        "partition": {"kind": "pool", "samples": samples},
        "fleet": {"devices": devices, "edges": edges, "fraction": sampled / devices},
        "training": {"batch_size": 10, "updates": 1, "lr": 0.05},
        "world": world,
        "stop": {"rounds": rounds},
        "evaluate": {"every": rounds},
        "record": {"spans": False},
    }


def one(devices: int, edges: int, sampled: int, rounds: int, samples: int, model: str, busy: bool, method: str) -> None:
    """Run one size here; print a JSON line."""
    from espalier.data.dataset import Dataset
    from espalier.experiment import Entry, Experiment
    from espalier.simulator.runner import Runner

    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(20_000, 1, 28, 28, generator=draw), torch.randint(0, 10, (20_000,), generator=draw)
    data = Dataset.from_arrays(x[:18_000], y[:18_000], x[18_000:], y[18_000:], n_classes=10)
    begun = time.perf_counter()
    table = setting(devices, edges, sampled, rounds, samples, model, busy)
    runner = Runner(Experiment.build(table).only(Entry.build(json.loads(method)), 0), None, dataset=data, workers=2)
    ready = time.perf_counter()
    spent = {"train": 0.0, "evaluate": 0.0}
    _time(runner.task.trainer, "run", spent, "train")
    _time(runner.task.evaluator, "run", spent, "evaluate")
    events = 0

    def progress(_: object) -> None:
        nonlocal events
        events += 1

    runner.run(progress)
    wall = time.perf_counter() - ready
    engine = wall - spent["train"] - spent["evaluate"]
    print(
        json.dumps(
            {
                "devices": devices, "setup_s": ready - begun, "wall_s": wall, "train_s": spent["train"],
                "evaluate_s": spent["evaluate"], "engine_s": engine, "engine_share": engine / wall, "events": events,
                "engine_us_per_event": 1e6 * engine / max(1, events),
                "jobs": runner.simulation.ledger.computed, "rounds": runner.simulation.round,
                "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
            }
        )
    )  # fmt: skip


def _time(owner: Any, name: str, spent: dict[str, float], key: str) -> None:
    """Count the seconds inside a method that may return an iterator."""
    inner = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        found = inner(*args, **kwargs)
        spent[key] += time.perf_counter() - start
        return _timed(found, spent, key) if hasattr(found, "__next__") else found

    setattr(owner, name, timed)


def _timed(inner: Any, spent: dict[str, float], key: str) -> Any:
    while True:
        start = time.perf_counter()
        try:
            item = next(inner)
        except StopIteration:
            return
        finally:
            spent[key] += time.perf_counter() - start
        yield item


def run(*values: Any) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, "--one", json.dumps(values)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(rows: list[dict[str, Any]]) -> None:
    print(
        "| devices | set-up | wall | training | engine | engine µs/event | events | jobs | peak memory | bytes/device |"
    )
    print("| ---: " * 10 + "|")
    base = min(r["peak_gb"] for r in rows)
    for r in rows:
        per = 1e9 * (r["peak_gb"] - base) / r["devices"]
        print(
            f"| {r['devices']:,} | {r['setup_s']:.1f} s | {r['wall_s']:.1f} s | {r['train_s']:.1f} s "
            f"| {r['engine_s']:.1f} s ({r['engine_share']:.1%}) | {r['engine_us_per_event']:.0f} | {r['events']:,} "
            f"| {r['jobs']:,} | {r['peak_gb']:.2f} GB | {per:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.one:
        one(*json.loads(args.one))
        return
    method = json.dumps(ASYNC)
    if args.million:
        rows = [run(1_000_000, 1000, 2000, 10, 10, "mlp", True, method)]
    elif args.growth:
        sizes = np.logspace(3, 6, 7).astype(int).tolist()
        rows = [run(n, max(1, n // 1000), min(2000, n // 2), 10, 10, "mlp", True, method) for n in sizes]
    else:
        rows = [run(100_000, 100, 1000, 5, 20, "lenet", False, method)]
    show(rows)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
