"""What a run, simulated or real, has spent of its devices' privacy: for its record.

Two views of models: of whoever gets a device's reports (noise at the device), and of whoever sees merged models
only (noise at an aggregator). Each is the worst child's ε: its releases are composed, whichever aggregators it was
at. Trainings are counted whether or not their models were reported, so the figure never says too little.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterable
from typing import Any

from espalier.core.method import Plan
from espalier.policies.privacy import PrivateLocal, PrivateMerge
from espalier.privacy.accountant import Release, epsilon

#: children whose releases are composed exactly: those with the most of them
COMPOSED = 64


def is_private(plan: Plan) -> bool:
    """Tell whether a plan has anything to account for."""
    merges = (plan.root.merge, plan.edge.merge, plan.middle.merge)
    return isinstance(plan.local, PrivateLocal) or any(isinstance(m, PrivateMerge) for m in merges)


def delta_for(devices: int) -> float:
    """Return the δ that is reported: well below one over the number of devices."""
    return min(1e-5, 0.1 / devices)


def spending(
    plan: Plan, devices: int, jobs: Iterable[int], revealed: Iterable[int], record: sqlite3.Connection
) -> dict[str, Any]:
    """Return what a run has spent so far.

    Args:
        plan: Its policies.
        devices: How many devices there are.
        jobs: How often each has trained.
        revealed: How many statistics each has told.
        record: The run's record, with what private merges have noted (committed).
    """
    delta = delta_for(devices)
    found: dict[str, Any] = {"delta": delta, "neighbours": "one replaced"}
    local = plan.local
    if isinstance(local, PrivateLocal) and local.clip is not None:
        releases = [Counter({Release(local.noise / 2): int(n)}) for n in set(jobs)]
        found["reports"] = {"unit": "device", "clip": local.clip, "noise": local.noise, **_worst(releases, delta)}
    if isinstance(local, PrivateLocal) and local.statistics is not None:
        # A histogram and second moments may go out together: two releases, each of sensitivity √2.
        release = Release(local.statistics / math.sqrt(2))
        releases = [Counter({release: 2 * int(n)}) for n in set(revealed)]
        found["statistics"] = {"unit": "sample", "noise": local.statistics, **_worst(releases, delta)}
    merged = _merges(record)
    if merged:
        found["merges"] = {"unit": "child", **_worst(list(merged.values()), delta)}
    return found


def _merges(record: sqlite3.Connection) -> dict[int, Counter[Release]]:
    """Return the releases of private merges that each child may have been in."""
    rows = record.execute("SELECT data FROM events WHERE kind = 'privacy'")
    found: dict[int, Counter[Release]] = {}
    for (text,) in rows:
        merge = json.loads(text)
        children = merge["children"]
        release = Release(merge["noise"] / 2, merge["reports"], len(children))
        for child in children:
            found.setdefault(child, Counter())[release] += 1
    return found


def _worst(releases: list[Counter[Release]], delta: float) -> dict[str, Any]:
    most = sorted(releases, key=lambda counter: -counter.total())[:COMPOSED]
    worst = max((epsilon(counter, delta) for counter in most), default=0.0)
    return {
        "epsilon": None if math.isinf(worst) else worst,
        "releases": max((counter.total() for counter in most), default=0),
    }
