"""How long a cluster's uploads take when its members share one uplink (FedUC's time sharing)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

Sharing = Literal["private", "time_shared", "equal_share"]


def makespan(ready: ArrayLike, upload: ArrayLike, sharing: Sharing) -> float:
    """Return when the last member's upload is done, in seconds after dispatch; 0 without members.

    ``time_shared``: one after another at the full rate, the earliest ready first, which no other order beats:
    ``f_1 = r_1 + u_1``, ``f_i = max(f_{i-1}, r_i) + u_i``. ``equal_share``: each has 1/n of the rate,
    ``max(r_i + n u_i)``. ``private``: each has a link of its own, ``max(r_i + u_i)``.

    Args:
        ready: When each member could begin to upload, seconds, [n].
        upload: Seconds of each upload alone, [n].
        sharing: How they share the uplink.
    """
    r, u = np.asarray(ready, dtype=np.float64), np.asarray(upload, dtype=np.float64)
    if len(r) == 0:
        return 0.0
    if sharing == "time_shared":
        order = np.argsort(r, kind="stable")
        # The last is done when the uploads from some member on have run without a gap.
        return float((r[order] + np.cumsum(u[order][::-1])[::-1]).max())
    return float((r + (len(r) if sharing == "equal_share" else 1) * u).max())
