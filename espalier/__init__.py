"""Espalier: hierarchical federated learning over trees of devices.

    import espalier
    run = espalier.simulate("hierfavg", {"fleet": {"devices": 60, "edges": 6}}, seed=0)
    print(run.frame()[["time", "round", "acc_global", "acc_device"]])

What stands here is public and stable (docs/api.md has a line for each name); it is all that running experiments and
writing a method takes. Names are imported when they are first used, so that ``import espalier`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from espalier._version import __version__

if TYPE_CHECKING:
    from espalier.api import compare, simulate
    from espalier.callbacks import Callback, StopRun
    from espalier.core.address import Address
    from espalier.core.environment import Environment
    from espalier.core.errors import ConfigError, EspalierError
    from espalier.core.guard import Guard
    from espalier.core.memory import Memory, Product
    from espalier.core.messages import Order, Report, Train
    from espalier.core.method import Method, Plan, Setting, TwoBarriers, available, make
    from espalier.core.objectives import Calibration, ClassSums, Contrast, Distillation, Mixture, NearPrototypes
    from espalier.core.params import ParamSpec, Spans
    from espalier.core.policies import (
        Arrangement,
        Assignment,
        Contribution,
        HandDown,
        Local,
        LocalView,
        Merge,
        Pace,
        Progress,
        Rules,
        Selection,
        Structure,
        Survey,
    )
    from espalier.core.serving import Serving
    from espalier.core.statistics import LocalData, register_statistic
    from espalier.core.store import ModelStore, Ref
    from espalier.core.view import Arrival, View
    from espalier.data.dataset import Dataset
    from espalier.experiment import Experiment
    from espalier.record.run import Comparison, Run, find_runs
    from espalier.world.world import World, register_preset

#: which module of the package has which names
_HOMES = {
    name: f"espalier.{module}"
    for module, names in {
        "api": "compare simulate",
        "callbacks": "Callback StopRun",
        "core.address": "Address",
        "core.environment": "Environment",
        "core.errors": "ConfigError EspalierError",
        "core.guard": "Guard",
        "core.memory": "Memory Product",
        "core.messages": "Order Report Train",
        "core.method": "Method Plan Setting TwoBarriers available make",
        "core.objectives": "Calibration ClassSums Contrast Distillation Mixture NearPrototypes",
        "core.params": "ParamSpec Spans",
        "core.policies": (
            "Arrangement Assignment Contribution HandDown Local LocalView Merge Pace Progress Rules Selection "
            "Structure Survey"
        ),
        "core.serving": "Serving",
        "core.statistics": "LocalData register_statistic",
        "core.store": "ModelStore Ref",
        "core.view": "Arrival View",
        "data.dataset": "Dataset",
        "experiment": "Experiment",
        "record.run": "Comparison Run find_runs",
        "world.world": "World register_preset",
    }.items()
    for name in names.split()
}

__all__ = [
    "Address",
    "Arrangement",
    "Arrival",
    "Assignment",
    "Calibration",
    "Callback",
    "ClassSums",
    "Comparison",
    "ConfigError",
    "Contrast",
    "Contribution",
    "Dataset",
    "Distillation",
    "Environment",
    "EspalierError",
    "Experiment",
    "Guard",
    "HandDown",
    "Local",
    "LocalData",
    "LocalView",
    "Memory",
    "Merge",
    "Method",
    "Mixture",
    "ModelStore",
    "NearPrototypes",
    "Order",
    "Pace",
    "ParamSpec",
    "Plan",
    "Product",
    "Progress",
    "Ref",
    "Report",
    "Rules",
    "Run",
    "Selection",
    "Serving",
    "Setting",
    "Spans",
    "StopRun",
    "Structure",
    "Survey",
    "Train",
    "TwoBarriers",
    "View",
    "World",
    "__version__",
    "available",
    "compare",
    "find_runs",
    "make",
    "register_preset",
    "register_statistic",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'espalier' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
