"""How alike devices are, as a method measured it, in the run's record: reports draw it as a heatmap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from espalier.core.address import Address
from espalier.core.view import View

#: devices of one recorded matrix at most; of more, every so-manieth
MOST = 250


def note_similarity(view: View, devices: Sequence[Address], matrix: ArrayLike, what: str) -> None:
    """Record a matrix ``[n, n]`` over n devices (if there are two); ``what`` says what it measures, with its unit."""
    if len(devices) < 2:
        return
    kept = np.unique(np.linspace(0, len(devices) - 1, min(len(devices), MOST)).round().astype(int))
    values = np.asarray(matrix, dtype=np.float64)[np.ix_(kept, kept)]
    view.note("similarity", what=what, devices=[devices[i] for i in kept.tolist()], matrix=values.round(3))
