"""The privacy accountant: what a sequence of noisy releases costs, as (ε, δ), and what a run has spent of it.

The arithmetic is Google's dp-accounting library (Rényi composition); here are the mechanisms of this project in
its terms. Neighbouring means: one device's (or one sample's) data are replaced by any other. A sum of changes
clipped to length C then moves by at most 2C, so noise of standard deviation ``noise · C`` has the multiplier
``noise / 2`` of its sensitivity.

What a run, simulated or real, has spent has two views: of whoever gets a device's reports (noise at the device),
and of whoever sees merged models only (noise at an aggregator). Each is the worst child's ε: its releases are
composed, whichever aggregators it was at. Trainings are counted whether or not their models were reported, so the
figure never says too little.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from espalier.core.errors import ConfigError
from espalier.core.method import Plan
from espalier.policies.privacy import PrivateLocal, PrivateMerge


@dataclass(frozen=True)
class Release:
    """One noisy release: a Gaussian mechanism, on ``sampled`` of ``population`` drawn without replacement.

    Attributes:
        multiplier: Standard deviation of the noise as a multiple of the sensitivity.
        sampled: How many were drawn …
        population: … of how many. Equal: everybody takes part.
    """

    multiplier: float
    sampled: int = 1
    population: int = 1


def epsilon(releases: Mapping[Release, int], delta: float) -> float:
    """Return the ε of a sequence of releases (each with how often it happened) at a δ; inf without noise.

    Raises:
        ConfigError: The accounting library is not installed, or δ is no probability.
    """
    if not 0 < delta < 1:
        raise ConfigError(f"delta = {delta!r}: must be a probability, such as one over the number of devices.")
    counted = {release: count for release, count in releases.items() if count > 0}
    if not counted:
        return 0.0
    if any(release.multiplier <= 0 for release in counted):
        return math.inf
    return _composed(tuple(sorted(counted.items(), key=lambda item: repr(item[0]))), delta)


@lru_cache(maxsize=4096)
def _composed(releases: tuple[tuple[Release, int], ...], delta: float) -> float:
    events, rdp, replace_one = _library()
    accountant = rdp.RdpAccountant(neighboring_relation=replace_one)
    for release, count in releases:
        event = events.GaussianDpEvent(release.multiplier)
        if release.sampled < release.population:
            event = events.SampledWithoutReplacementDpEvent(release.population, release.sampled, event)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def noise_for(target: float, delta: float, rounds: int, sampled: int = 1, population: int = 1) -> float:
    """Return the least noise (as a multiple of the clipping length) that keeps ε within a target.

    Args:
        target: The ε that must not be exceeded.
        delta: The δ.
        rounds: How often a device's change is released.
        sampled: How many devices take part in a round …
        population: … of how many.
    """
    if target <= 0 or rounds < 1:
        raise ConfigError(f"target = {target!r}, rounds = {rounds!r}: both must be positive.")

    def spent(noise: float) -> float:
        return epsilon({Release(noise / 2, sampled, population): rounds}, delta)

    low, high = 0.0, 1.0
    while spent(high) > target:
        low, high = high, 2 * high
        if high > 1e6:
            raise ConfigError(f"target = {target!r}: no sensible amount of noise keeps ε below it.")
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > target else (low, middle)
    return high


def require_library() -> None:
    """Raise a :class:`ConfigError` if the accounting library is not there (before a run, not after it)."""
    _library()


def _library() -> tuple[Any, Any, Any]:
    try:
        from dp_accounting import NeighboringRelation, dp_event, rdp  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            "Accounting for privacy needs the package dp-accounting: pip install 'espalier-hfl[privacy]'."
        ) from error
    return dp_event, rdp, NeighboringRelation.REPLACE_ONE


#: children whose releases are composed exactly: those with the most of them
COMPOSED_CHILDREN = 64


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
        revealed: How many statistics each has reported.
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
        if "cut" in merge:  # too many children for a note of a real fleet: what they have spent is not known
            return {-1: Counter({Release(0.0): 1})}
        children = merge["children"]
        release = Release(merge["noise"] / 2, merge["reports"], len(children))
        for child in children:
            found.setdefault(child, Counter())[release] += 1
    return found


def _worst(releases: list[Counter[Release]], delta: float) -> dict[str, Any]:
    most = sorted(releases, key=lambda counter: -counter.total())[:COMPOSED_CHILDREN]
    worst = max((epsilon(counter, delta) for counter in most), default=0.0)
    return {
        "epsilon": None if math.isinf(worst) else worst,
        "releases": max((counter.total() for counter in most), default=0),
    }
