"""A ResNet-18 on 10,000 devices: on two Ray workers in bounded memory, with the rows of a run without Ray.

    python benchmarks/ray_resnet.py [--rounds 2] [--json FILE]          # eight core minutes, 8 GB

10,000 devices at 10 edges have four 32×32 images of their own each (40,000 random ones, 0.5 GB); ten devices per edge
train in a round (HierFAVG); the cloud's and the edges' models are evaluated on 128 images after every round. The run is
made in one process, and on two Ray workers with an object store of 1 GB; there also with twice the rounds, to see what
of its memory grows; each in a process of its own. Printed: the peak of each process's memory (with the pages of the
object store that it looked at) and its own pages at the end, what went to the workers' node and came back, and whether
all rows and final models are equal (exit code 1: no).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from ray_overhead import rows

from espalier.data.dataset import Dataset
from espalier.experiment import Experiment
from espalier.scale.cluster import LOCALHOST, ray
from espalier.scale.computer import Ray
from espalier.scale.pool import ActorPool
from espalier.simulator.runner import Runner

DEVICES, EDGES, OWN, TRAINING, TESTED = 10_000, 10, 4, 100, 128
STORE_BYTES = 1 << 30


def data() -> Dataset:
    """Random images, brighter by their class."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, DEVICES * OWN + TESTED)
    x = rng.random((len(y), 3, 32, 32), dtype=np.float32)
    x += y[:, None, None, None].astype(np.float32) / 10
    n = DEVICES * OWN
    return Dataset.from_arrays(x[:n], y[:n], x[n:], y[n:], name="random", n_classes=10)


def experiment(rounds: int) -> Experiment:
    return Experiment.build(
        {
            "methods": ["hierfavg"],
            "task": {"model": "resnet18"},
            "partition": {"kind": "iid"},
            "fleet": {"devices": DEVICES, "edges": EDGES, "fraction": TRAINING / DEVICES},
            "training": {"batch_size": OWN, "updates": 1, "lr": 0.05},
            "stop": {"rounds": rounds},
        }
    )


def memory() -> dict[str, float]:
    """Return the peak of this process's memory, and what of its memory is its own now, in GB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[key].split()[0]) / 1e6 for name, key in (("peak", "VmHWM"), ("own", "RssAnon"))}


def one(rounds: int, on_ray: bool) -> dict[str, Any]:
    """Make the run here; return what it took and a digest of what it recorded."""
    if on_ray:
        ray(loopback=True).init(
            address="local", num_cpus=2, object_store_memory=STORE_BYTES, include_dashboard=False,
            _node_ip_address=LOCALHOST, log_to_driver=False, logging_level="ERROR",
        )  # fmt: skip
    runner = Runner(experiment(rounds), None, dataset=data(), backend=Ray(workers=2) if on_ray else None)
    workers: list[dict[str, float]] = []

    def close(pool: ActorPool) -> None:
        """Ask the workers before they go."""
        workers.extend(ray().get([one.actor.__ray_call__.remote(lambda _: memory()) for one in pool.actors]))
        letting_go(pool)

    letting_go = ActorPool.close
    with patch.object(ActorPool, "close", close):
        runner.run()
    digest = hashlib.sha256(repr(rows(runner)).encode())
    for name, vector in sorted(runner.final_models().items()):
        digest.update(name.encode() + vector.numpy().tobytes())
    found: dict[str, Any] = {
        "on": "two Ray workers" if on_ray else "one process", "rounds": rounds, "memory": memory(), "workers": workers,
        "jobs": runner.simulation.ledger.computed, "digest": digest.hexdigest(),
        "model_bytes": runner.task.spec.model_bytes,
    }  # fmt: skip
    if on_ray:
        computer: Any = runner.task.computers[0]
        found |= {"sent": dict(computer.store.sent), "received": computer.received, "answered": computer.answered}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", choices=("here", "ray"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.rounds, args.one == "ray")))
        return
    found = []
    for where, rounds in (("here", args.rounds), ("ray", args.rounds), ("ray", 2 * args.rounds)):
        command = [sys.executable, __file__, "--one", where, "--rounds", str(rounds)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(found[-1], flush=True)
    equal = found[0]["digest"] == found[1]["digest"]
    print("rows and models are equal" if equal else "rows or models DIFFER")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(not equal)


if __name__ == "__main__":
    main()
