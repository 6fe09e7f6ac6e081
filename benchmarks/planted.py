"""Planted clusters: which clustered methods find out that the digits are labelled in four ways?

24 devices hold the same kinds of digits, but with their labels permuted in one of four ways. Every method runs 80
rounds under each seed; the adjusted Rand index compares who shares a model with who shares a labelling (1: exactly so).

A run counts as recovered if the index is at least 0.9 in *every* evaluation of its second half. The last evaluation
alone would mislead: a method that finds the clusters, tears them apart and finds them again every ten rounds (CFLHKD
with ``restless = 0``) looks perfect at round 80 and useless at round 70.

IFCA is told the number of clusters, FL+HC cuts into four; CFL, ICFL and CFLHKD find it out. Where the papers'
thresholds are for other models, ours were set for updates of this size by looking at seeds 0 to 4: CFL's relative to
the longest update, ICFL's cosine 0.35 (two devices of one labelling have cosines of 0.6 here, of two labellings 0),
CFLHKD's distance 0.9 and interval 10, and ``restless`` of the latter two. The default seeds are therefore others, 100
to 109. On these, of ten runs recovered: FL+HC 10, CFL 9, ICFL 9, CFLHKD 7, IFCA 6 (5 with the authors' redrawing of
initial models), CFLHKD with its paper's thresholds 1, with ``restless = 0`` none.

Where IFCA fails, two labellings share one model and a third is spread over two: a minimum that it cannot leave, and
redrawing until every model attracts a tenth of the devices does not prevent it. Where CFL, ICFL and CFLHKD fail, no
cluster mixes labellings: one or two devices were split off from their like, and the accuracy is as good as elsewhere.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import espalier

SETTING: dict[str, Any] = {
    "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [32]}},
    "partition": {"kind": "iid", "concepts": 4, "val_fraction": 0.1},
    "fleet": {"devices": 24, "edges": 6},
    "training": {"batch_size": 10, "updates": 2, "lr": 0.1},
    "stop": {"rounds": 80},
    "evaluate": {"every": 10},
    "record": {"spans": False},
}
METHODS: dict[str, dict[str, Any]] = {
    "IFCA": {"name": "ifca", "every": 1},
    "IFCA, least = 0.1": {"name": "ifca", "every": 1, "least": 0.1},
    "CFL": {"name": "cfl", "after": 0, "relative": True},
    "ICFL": {"name": "icfl", "threshold": 0.35},
    "FL+HC": {"name": "flhc", "after": 10, "every": 10},
    "CFLHKD": {"name": "cflhkd", "share_every": 10, "cluster_every": 10, "delta": 0.9},
    "CFLHKD, defaults": {"name": "cflhkd"},
    "CFLHKD, restless = 0": {"name": "cflhkd", "share_every": 10, "cluster_every": 10, "delta": 0.9, "restless": 0.0},
    "FedAvg": {"name": "fedavg"},
}


def main() -> None:
    """Run, print a table, optionally write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    seeds = range(options.first, options.first + options.seeds)
    print(f"{'':22} recovered   lowest ARI of the second half, by seed   mean accuracy there   seconds")
    for label, method in METHODS.items():
        began = time.process_time()
        frames = [espalier.simulate(dict(method), SETTING, seed=s).frame() for s in seeds]
        halves = [f[f["round"] > SETTING["stop"]["rounds"] / 2] for f in frames]
        lowest = [float(h["ari"].min()) for h in halves]
        accuracy = [float(h["acc_device"].mean()) for h in halves]
        figures[label] = {
            "seeds": list(seeds),
            "ari": [f["ari"].tolist() for f in frames],
            "accuracy": [f["acc_device"].tolist() for f in frames],
            "clusters": [f["groups"].tolist() for f in frames],
        }
        print(
            f"{label:22} {sum(a >= 0.9 for a in lowest):2}/{len(lowest)}   {' '.join(f'{a:5.2f}' for a in lowest)}"
            f"   {sum(accuracy) / len(accuracy):.3f}   {time.process_time() - began:.0f}",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
