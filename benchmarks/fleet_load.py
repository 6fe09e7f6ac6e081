"""A real fleet on one machine, under load: seconds per round, memory per node, bytes per tier beside the simulator's.

    .venv/bin/python benchmarks/fleet_load.py [--devices 40 100] [--edges 4] [--rounds 10]

One cloud, some edges, and as many device processes as asked for, all with certificates of their own, on loopback. Each
fleet runs twice: with devices that train (the digits, one epoch), and with devices that hand back what they got, where
a round is nothing but overhead: TLS, chunks, checksums, acknowledgements and a transaction on disk at both ends of each
message. Nodes are forked from one process, so they share the pages of Python and PyTorch: PSS counts a shared page in
parts, RSS in full (a node that is alone on its machine has its RSS).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torch import Tensor

import espalier
from espalier.experiment import Experiment
from espalier.fleet.local import LocalFleet
from espalier.fleet.node.clients import Work
from espalier.record.run import Run


class Echo:
    """A client that hands back what it got."""

    def __init__(self, device: int) -> None:
        self.device = device

    def samples(self) -> int:
        return 10

    def fit(self, state: dict[str, Tensor], work: Work) -> dict[str, Tensor]:
        return state

    def evaluate(self, state: dict[str, Tensor]) -> dict[str, float]:
        return {}


def memory(pid: int) -> tuple[float, float]:
    """Return a process's PSS and RSS in MB."""
    table = dict(
        line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:] if ":" in line
    )
    return tuple(int(table[k].split()[0]) / 1024 for k in ("Pss", "Rss"))  # type: ignore[return-value]


def traffic(run: Run) -> dict[tuple[str, str], int]:
    """Return the bytes of models that were sent, by tier and direction."""
    rows = run.query("SELECT tier, direction, max(bytes) FROM traffic WHERE kind = 'model' GROUP BY tier, direction")
    return {(tier, direction): int(count) for tier, direction, count in rows}


def table_of(devices: int, edges: int, rounds: int) -> dict[str, Any]:
    return {
        "methods": ["hierfavg"], "seeds": [0], "fleet": {"devices": devices, "edges": edges},
        "stop": {"rounds": rounds}, "evaluate": {"every": 1},
    }  # fmt: skip


def loaded(devices: int, edges: int, rounds: int, echo: bool) -> dict[str, Any]:
    """Run one fleet; return what it took: seconds, megabytes, and the models' bytes here and simulated."""
    folder = Path(tempfile.mkdtemp(prefix="espalier-load-"))
    made = Experiment.build(table_of(devices, edges, rounds))
    client: dict[str, Any] = {"data": None, "client": "benchmarks.fleet_load:Echo"} if echo else {}
    begun = time.monotonic()
    with LocalFleet(made, folder, device=lambda i: client, patience=60.0) as fleet:
        fleet.start()
        fleet.until("cloud", lambda s: s.get("started", False), 300)
        there = time.monotonic() - begun
        fleet.until("cloud", lambda s: s["round"] >= rounds // 2, 600)
        sizes: dict[str, list[tuple[float, float]]] = {}
        for name, process in fleet.processes.items():
            assert process.pid is not None
            sizes.setdefault(name.partition("-")[0], []).append(memory(process.pid))
        fleet.wait(600)
    run = Run(folder / "cloud")
    times = list(run.frame()["time"])
    steps = [b - a for a, b in pairwise(times[1:])]
    found: dict[str, Any] = {"devices": devices, "echo": echo, "there": there, "round": median(steps)}
    for at, name in enumerate(("pss", "rss")):
        found[name] = {kind: median(v[at] for v in values) for kind, values in sizes.items()}
    if not echo:
        simulated = espalier.simulate("hierfavg", table_of(devices, edges, rounds), directory=folder / "simulated")
        virtual = traffic(simulated)
        found["bytes"] = {" ".join(key): [count, virtual[key]] for key, count in sorted(traffic(run).items())}
    shutil.rmtree(folder)
    return found


def main() -> None:
    """Run every fleet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[40, 100])
    parser.add_argument("--edges", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for devices in given.devices:
        for echo in (False, True):
            rows.append(loaded(devices, given.edges, given.rounds, echo))
            print(rows[-1], flush=True)
            if given.json:
                given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
