"""How well two groupings of the same things agree."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


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
