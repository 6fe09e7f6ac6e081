"""Which way a measured figure is better."""

from __future__ import annotations

#: scores of which more is better; every other one is an error, a loss or a cost
HIGHER_IS_BETTER = ("acc", "miou", "ari")


def lower_is_better(name: str) -> bool:
    """Tell from a metric's name, such as ``acc_global`` or ``position_mm_edge``, whether a small figure is good."""
    return name.split("_")[0] not in HIGHER_IS_BETTER
