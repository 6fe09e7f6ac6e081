"""Espalier: the whole simulator (events, ledger, merging), two training workers. Prints seconds per round."""

from __future__ import annotations

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np
import work

from espalier.data.dataset import Dataset
from espalier.experiment import Experiment, MethodEntry
from espalier.simulator.runner import Runner
from espalier.simulator.simulation import Simulation

NAME, BATCH, CLIENTS, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


def build(input_shape: tuple[int, ...], n_classes: int) -> object:
    """The same module as the others train."""
    return work.model(NAME)


def main() -> None:
    x, y = work.data(CLIENTS, BATCH, NAME)
    each = work.STEPS * BATCH
    data = Dataset.from_arrays(x.flatten(0, 1), y.reshape(-1), x[0, :10], y[0, :10], n_classes=10)
    rows = [list(range(i * each, (i + 1) * each)) for i in range(CLIENTS)]
    experiment = Experiment.build({
        "task": {"model": f"{os.path.basename(__file__).removesuffix('.py')}:build"},
        "partition": {"kind": "explicit", "rows": rows, "edge": [0] * CLIENTS},
        "fleet": {"devices": CLIENTS, "edges": 1},
        "training": {"batch_size": BATCH, "updates": 1, "lr": work.LR},
        "stop": {"rounds": ROUNDS + 1},
        "evaluate": {"every": 1},
        "record": {"spans": False},
    })  # fmt: skip
    method: dict[str, object] = {"name": "fedavg"}
    if NAME == "lora":  # adapters alone travel
        method["local"] = {"kind": "parts", "shared": list(work.ADAPTERS)}
    runner = Runner(experiment.only(MethodEntry.build(method), 0), None, dataset=data, workers=2)
    marks = [time.perf_counter()]

    def progress(sim: Simulation) -> None:
        if sim.round + 1 > len(marks):
            marks.append(time.perf_counter())

    runner.run(progress)
    marks.append(time.perf_counter())
    print(json.dumps(np.diff(marks).tolist()[1 : ROUNDS + 1]))


if __name__ == "__main__":
    main()
