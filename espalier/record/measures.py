"""Which way a measured figure is better, and which of a run's scores is the main one."""

from __future__ import annotations

from collections.abc import Iterable

#: scores of which more is better; every other one is an error, a loss or a cost
HIGHER_IS_BETTER = ("acc", "miou", "ari")


def lower_is_better(name: str) -> bool:
    """Tell from a metric's name, such as ``acc_global`` or ``position_mm_edge``, whether a small figure is good."""
    return name.split("_")[0] not in HIGHER_IS_BETTER


def main_score(metrics: Iterable[str]) -> str:
    """Return the main score among a run's metrics, without its scope (``acc`` of ``acc_device``); else ``loss``."""
    names = [name.removesuffix("_device") for name in metrics if name.endswith("_device")]
    better = [name for name in HIGHER_IS_BETTER if name in names]
    return next(iter(better + [name for name in names if name not in ("loss", "bytes")]), "loss")
