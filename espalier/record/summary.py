"""A figure of many nodes in three numbers: mean, spread and the worst tenth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from espalier.record.measures import lower_is_better


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
