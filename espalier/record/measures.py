"""What measured figures mean: what they are called, which way one is better, spread, agreement of groupings, units."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: scores of which more is better; every other one is an error, a loss or a cost
HIGHER_IS_BETTER = ("acc", "miou", "ari", "f1", "auc")


def lower_is_better(name: str) -> bool:
    """Tell from a metric's name, such as ``acc_global`` or ``position_mm_edge``, whether a small figure is good."""
    return name.split("_")[0] not in HIGHER_IS_BETTER


def main_score(metrics: Iterable[str]) -> str:
    """Return the main score among a run's metrics, without its scope (``acc`` of ``acc_device``); else ``loss``."""
    names = [name.removesuffix("_device") for name in metrics if name.endswith("_device")]
    better = [name for name in HIGHER_IS_BETTER if name in names]
    return next(iter(better + [name for name in names if name not in ("loss", "bytes")]), "loss")


def other_scores(metrics: Iterable[str]) -> list[str]:
    """Return the scores measured beside the main one, without their scopes: ``f1``, ``auc``, a user's own."""
    names = list(metrics)
    left_out = (main_score(names), "loss", "bytes")
    found = (name.removesuffix("_device") for name in names if name.endswith("_device"))
    return [name for name in found if name not in left_out]


#: scores that are measured where ``task.metrics`` names them
ON_DEMAND = ("f1", "auc", "ece", "mae")
#: what a score is called, and the scopes it is measured in, as words behind it
_NAMES = {
    "acc": "accuracy", "miou": "mean IoU", "f1": "F1", "auc": "AUC", "ece": "calibration error",
    "mae": "mean absolute error",
}  # fmt: skip
SCOPES = {
    "global": "of the global model",
    "edge": "per edge",
    "device": "per device",
    "device_worst": "of the worst tenth of devices",
    "edge_worst": "of the worst tenth of edges",
    "device_std": "spread over devices",
    "device_prior": "per device with its label prior",
    "edge_prior": "per edge with its label prior",
}


def spoken(metric: str) -> str:
    """Return what people call a metric: ``acc_device`` is the accuracy per device."""
    scope = next((s for s in sorted(SCOPES, key=len, reverse=True) if metric.endswith(f"_{s}")), None)
    name = metric if scope is None else metric.removesuffix(f"_{scope}")
    return f"{_NAMES.get(name, name.replace('_', ' '))}{'' if scope is None else ' ' + SCOPES[scope]}"


def spread(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    """Return mean, standard deviation and the mean of the worst tenth of what is known (not NaN); {} if nothing is.

    ``name`` (such as ``acc_device``) names them: itself, with ``_std`` and with ``_worst``.
    """
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return {}
    ordered, tenth = np.sort(known), max(1, len(known) // 10)
    worst = ordered[-tenth:] if lower_is_better(name) else ordered[:tenth]
    return {name: float(known.mean()), f"{name}_std": float(known.std()), f"{name}_worst": float(worst.mean())}


def adjusted_rand(truth: ArrayLike, found: ArrayLike) -> float:
    """Return the adjusted Rand index of two labellings ``[N]``: 1 the same groups, 0 what chance would give.

    Hubert and Arabie, Comparing Partitions, 1985. Labels are names only: any renaming leaves the index as it is.
    """
    _, a = np.unique(np.asarray(truth), return_inverse=True)
    _, b = np.unique(np.asarray(found), return_inverse=True)
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)
    both, rows, columns = (float((c * (c - 1) / 2).sum()) for c in (table, table.sum(1), table.sum(0)))
    pairs = len(a) * (len(a) - 1) / 2
    expected = rows * columns / pairs if pairs else 0.0
    most = (rows + columns) / 2
    # Both put everything together, or both everything apart: the same grouping.
    return 1.0 if most == expected else (both - expected) / (most - expected)


def human_bytes(value: float) -> str:
    """Write bytes with a unit."""
    if value != value:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def human_seconds(value: float) -> str:
    """Write virtual seconds with a unit."""
    if value != value:
        return "never"
    if value < 600:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 36000 else f"{value / 3600:.1f} h"
