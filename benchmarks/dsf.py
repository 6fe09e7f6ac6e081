"""How EASF's distributed tree building grows with the fleet, and whether it survives whoever dies.

    python benchmarks/dsf.py [--quick] [--json FILE]

Trees: fleets of 100 to 1,000 devices build their tree by DSF, accuracies included, until everybody reaches one root;
wall time, virtual time and messages per device. Scripts: 200 random scripts kill devices of small fleets, the root
among them (`tests/methods/easf/dsf/deaths.py`). Exits with 1 if 1,000 devices take 30 s or more, or a script goes
wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from espalier.core.seeds import stream
from espalier.data import registry
from espalier.experiment import Experiment
from espalier.simulator.runner import Runner
from tests.methods.easf.dsf.deaths import flaws, play

SIZES = (100, 200, 400, 700, 1000)
#: wall time in which 1,000 devices must have built their tree
LIMIT_SECONDS = 30.0


@dataclass(frozen=True)
class Tree:
    """One fleet's tree: wall, processor's and virtual seconds, clusters, levels, control messages per device."""

    devices: int
    wall: float
    cpu: float
    virtual: float
    clusters: int
    levels: int
    messages_mean: float
    messages_most: int


def grow(devices: int) -> Tree:
    """Build a tree of so many devices."""
    table = {
        "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [8]}},
        "partition": {"kind": "pool", "samples_per_device": [20, 30]},
        "fleet": {"devices": devices, "edges": 1},
        "world": {
            "compute": {"kind": "uniform", "low": 0.05, "high": 0.5},
            "links": {"kind": "graph", "bandwidth": [1e6, 1e7]},
        },
        "stop": {"seconds": 1e6},
        "evaluate": {"every": 10**9},
        "record": {"spans": False},
        "methods": [],
    }
    experiment = Experiment.build(table).only("easf", 0)
    sim = Runner(experiment, None, dataset=registry.load("digits")).simulation
    accuracies = stream(0, "accuracies").uniform(0.1, 0.6, devices)
    sim.fleet.trials.pretraining_accuracy = lambda device, epochs: float(accuracies[device])
    sim.start()
    begin, busy = time.perf_counter(), time.process_time()
    until = 0.0
    while until < 60.0:
        until += 0.5
        while sim.clock.next_time <= until and sim.step():
            pass
        if not flaws(sim):
            break
    wall, cpu = time.perf_counter() - begin, time.process_time() - busy
    if flaws(sim):
        raise SystemExit(f"{devices} devices have no tree after {until:g} virtual seconds: {flaws(sim)[:3]}")
    tree = sim.fleet.tree
    sent = [sim.runtime.node(d).state.agent.own.messages for d in range(devices)]
    clusters = len({tree.parent(d) for d in range(devices)})
    levels = max(len(list(tree.path(d))) for d in range(devices))
    return Tree(devices, wall, cpu, until, clusters, levels, float(np.mean(sent)), max(sent))


def main() -> int:
    """Grow trees, play scripts, print both; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer devices and scripts")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    trees = []
    heads = ("devices", "wall s", "cpu s", "virtual s", "clusters", "levels", "messages", "most")
    print(*(f"{head:>9}" for head in heads))
    for devices in SIZES[:2] if args.quick else SIZES:
        tree = grow(devices)
        trees.append(tree)
        print(*(f"{v:9d}" if isinstance(v, int) else f"{v:9.2f}" for v in asdict(tree).values()), flush=True)
    scripts = [play(number, "easf") for number in range(20 if args.quick else 200)]
    victims = Counter(kind for s in scripts for _, _, kind in s.victims)
    wrong = {number: s.wrong for number, s in enumerate(scripts) if s.wrong}
    pauses = [s.pause for s in scripts]
    means = np.mean([s.accuracies for s in scripts], axis=0)
    print(f"{len(scripts)} scripts, killed: {dict(victims)}; wrong: {wrong or 'none'}")
    print(f"longest pause between rounds: {np.mean(pauses):.1f} s on average, {max(pauses):.1f} s at most")
    print(f"accuracy: {means[0]:.3f} at first, {means[1]:.3f} after the kills, {means[2]:.3f} at the end")
    if args.json:
        found = {"trees": [asdict(t) for t in trees], "scripts": [asdict(s) for s in scripts]}
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    slow = any(t.devices == SIZES[-1] and t.wall >= LIMIT_SECONDS for t in trees)
    return int(slow or bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
