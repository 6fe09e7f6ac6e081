"""Espalier: hierarchical federated learning over trees of devices.

    import espalier
    run = espalier.simulate("hierfavg", {"fleet": {"devices": 60, "edges": 6}}, seed=0)
    print(run.frame()[["time", "round", "acc_global", "acc_device"]])

Names are imported when they are first used, so that ``import espalier`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from espalier._version import __version__

if TYPE_CHECKING:
    from espalier.api import compare, simulate
    from espalier.core.method import Method, Plan, Setting, available, make
    from espalier.data.dataset import Dataset
    from espalier.experiment import Experiment
    from espalier.record.run import Run, find_runs
    from espalier.world.world import World

_HOMES = {
    "compare": "espalier.api",
    "simulate": "espalier.api",
    "Method": "espalier.core.method",
    "Plan": "espalier.core.method",
    "Setting": "espalier.core.method",
    "make": "espalier.core.method",
    "available": "espalier.core.method",
    "Dataset": "espalier.data.dataset",
    "Experiment": "espalier.experiment",
    "Run": "espalier.record.run",
    "find_runs": "espalier.record.run",
    "World": "espalier.world.world",
}

__all__ = [
    "Dataset",
    "Experiment",
    "Method",
    "Plan",
    "Run",
    "Setting",
    "World",
    "__version__",
    "available",
    "compare",
    "find_runs",
    "make",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'espalier' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
