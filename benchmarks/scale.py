"""How the simulator grows with the fleet: wall time, the engine's own share, memory.

    python benchmarks/scale.py                      # 100,000 devices, LeNet, asynchronous edges, 5 cloud rounds
    python benchmarks/scale.py --thousand           # 1,000 devices, MLP: what an event costs (10 s)
    python benchmarks/scale.py --hundred-thousand   # 100,000, MLP, churn and mobility, 10 cloud rounds (15 s)
    python benchmarks/scale.py --million            # 1,000,000, MLP, churn and mobility, 10 cloud rounds (1 min)
    python benchmarks/scale.py --ten-million        # the same, 10,000 devices per edge
    python benchmarks/scale.py --growth             # 1,000 … 1,000,000 devices (3 min)

Durations are of an idle machine.

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
from numpy.typing import NDArray
from parts import watched

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
    from espalier.experiment import Experiment
    from espalier.simulator.runner import Runner

    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(20_000, 1, 28, 28, generator=draw), torch.randint(0, 10, (20_000,), generator=draw)
    data = Dataset.from_arrays(x[:18_000], y[:18_000], x[18_000:], y[18_000:], n_classes=10)
    begun, used = time.perf_counter(), time.process_time()
    table = setting(devices, edges, sampled, rounds, samples, model, busy)
    runner = Runner(Experiment.build(table).only(json.loads(method), 0), None, dataset=data, workers=2)
    ready = time.perf_counter()
    clock = watched(runner)
    events = moves = 0

    def progress(_: object) -> None:
        nonlocal events
        events += 1

    moved = runner.simulation.delivery.reparent

    def reparent(node: int, parent: int | None) -> None:
        nonlocal moves
        moves += 1
        moved(node, parent)

    moved_all = runner.simulation.delivery.reparent_all

    def reparent_all(devices: NDArray[np.int64], parents: NDArray[np.int64]) -> None:
        nonlocal moves
        moves += len(devices)
        moved_all(devices, parents)

    runner.simulation.delivery.reparent = reparent  # type: ignore[method-assign]
    runner.simulation.delivery.reparent_all = reparent_all  # type: ignore[method-assign]
    runner.run(progress)
    clock.leave()
    wall = time.perf_counter() - ready
    spent = clock.spent
    engine = wall - spent["training"] - spent["evaluation"]
    print(
        json.dumps(
            {
                "devices": devices, "setup_s": ready - begun, "wall_s": wall, "cpu_s": time.process_time() - used,
                "parts": spent, "engine_s": engine,
                "engine_share": engine / wall, "events": events, "moves": moves,
                "engine_us_per_event": 1e6 * engine / max(1, events + moves),
                "messages": runner.simulation.transport._messages, "jobs": runner.simulation.ledger.computed,
                "rounds": runner.simulation.round,
                "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
            }
        )
    )  # fmt: skip


def run(*values: Any) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, "--one", json.dumps(values)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(rows: list[dict[str, Any]]) -> None:
    print(
        "| devices | set-up | wall | training | engine | engine µs/event | events | moves | jobs | peak memory "
        "| bytes/device |"
    )
    print("| ---: " * 11 + "|")
    base = min(r["peak_gb"] for r in rows)
    for r in rows:
        per = 1e9 * (r["peak_gb"] - base) / r["devices"]
        print(
            f"| {r['devices']:,} | {r['setup_s']:.1f} s | {r['wall_s']:.1f} s | {r['parts']['training']:.1f} s "
            f"| {r['engine_s']:.1f} s ({r['engine_share']:.1%}) | {r['engine_us_per_event']:.0f} | {r['events']:,} "
            f"| {r['moves']:,} | {r['jobs']:,} | {r['peak_gb']:.2f} GB | {per:.0f} |"
        )


def show_parts(row: dict[str, Any]) -> None:
    print("\n| part | seconds | share |\n| --- | ---: | ---: |")
    for part, seconds in row["parts"].items():
        print(f"| {part} | {seconds:.2f} | {seconds / row['wall_s']:.1%} |")


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Draw time and memory over the number of devices, both relative to the smallest fleet's."""
    from espalier.report.figures import MUTED, axis, colour, dash, figure, symbol
    from espalier.report.pictures import draw

    n = [r["devices"] for r in rows]
    lines = {
        "wall time of the run": [r["wall_s"] / rows[0]["wall_s"] for r in rows],
        "time per event": [r["engine_us_per_event"] / rows[0]["engine_us_per_event"] for r in rows],
        "peak memory": [r["peak_gb"] / rows[0]["peak_gb"] for r in rows],
    }
    data: list[dict[str, Any]] = [
        {"type": "scatter", "x": n, "y": values, "name": name, "mode": "lines+markers",
         "line": {"color": colour(i), "dash": dash(i)}, "marker": {"color": colour(i), "symbol": symbol(i)}}
        for i, (name, values) in enumerate(lines.items())
    ]  # fmt: skip
    data.append(
        {"type": "scatter", "x": n, "y": [v / n[0] for v in n], "name": "linear", "mode": "lines",
         "line": {"color": MUTED[0], "dash": "dot"}}
    )  # fmt: skip
    y = axis("relative to the smallest fleet", "times", type="log")
    found = figure(data, axis("devices", "number", type="log"), y)
    with open(path, "wb") as file:
        file.write(draw({"growth": found}, ["png"])["growth.png"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--thousand", action="store_true")
    parser.add_argument("--hundred-thousand", action="store_true")
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--ten-million", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    parser.add_argument("--png", help="with --growth: draw it here")
    args = parser.parse_args()
    if args.one:
        one(*json.loads(args.one))
        return
    method = json.dumps(ASYNC)
    if args.thousand:
        rows = [run(1000, 1, 500, 10, 10, "mlp", True, method)]
    elif args.hundred_thousand:
        rows = [run(100_000, 100, 2000, 10, 10, "mlp", True, method)]
    elif args.ten_million:
        rows = [run(10_000_000, 1000, 2000, 10, 10, "mlp", True, method)]
    elif args.million:
        rows = [run(1_000_000, 1000, 2000, 10, 10, "mlp", True, method)]
    elif args.growth:
        sizes = np.logspace(3, 6, 7).astype(int).tolist()
        rows = [run(n, max(1, n // 1000), min(2000, n // 2), 10, 10, "mlp", True, method) for n in sizes]
    else:
        rows = [run(100_000, 100, 1000, 5, 20, "lenet", False, method)]
    show(rows)
    if len(rows) == 1:
        show_parts(rows[0])
    if args.png:
        plot(rows, args.png)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
