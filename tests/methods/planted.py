"""Planted clusters: digits whose labels are permuted in four ways; methods must find out which devices agree."""

from __future__ import annotations

from typing import Any

import espalier
from espalier.experiment import Experiment
from espalier.record.run import Run
from espalier.simulator.runner import Runner

PLANTED: dict[str, Any] = {
    "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [32]}},
    "partition": {"kind": "iid", "concepts": 4, "val_fraction": 0.1},
    "fleet": {"devices": 16, "edges": 6},
    "training": {"batch_size": 10, "updates": 2, "lr": 0.1},
    "world": "ideal",
    "stop": {"rounds": 31},
    "evaluate": {"every": 10},
    "record": {"spans": False},
}


def planted(method: dict[str, Any], seed: int = 0, **changes: Any) -> Run:
    """Run a method on planted clusters."""
    return espalier.simulate(method, {**PLANTED, **changes}, seed=seed)


def runner(method: dict[str, Any], seed: int = 0, **changes: Any) -> Runner:
    """Return a runner on planted clusters that has not begun."""
    return Runner(Experiment.build({**PLANTED, **changes}).only(method, seed), None)


def traffic(run: Run, tier: str, kind: str, direction: str | None = None) -> int:
    """Return the bytes that a tier has carried by the end."""
    rows = run.query(
        "SELECT direction, bytes FROM traffic WHERE tier = ? AND kind = ? "
        "AND round = (SELECT max(round) FROM traffic) ORDER BY rowid",
        tier,
        kind,
    )
    last = dict(rows)
    return sum(last.values()) if direction is None else int(last.get(direction, 0))
