"""The privacy accountant: what a sequence of noisy releases costs, as (ε, δ).

The arithmetic is Google's dp-accounting library (Rényi composition); here are the mechanisms of this project in
its terms. Neighbouring means: one device's (or one sample's) data are replaced by any other. A sum of changes
clipped to length C then moves by at most 2C, so noise of standard deviation ``noise · C`` has the multiplier
``noise / 2`` of its sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from espalier.core.errors import ConfigError


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
            "Accounting for privacy needs the package dp-accounting: pip install 'espalier[privacy]'."
        ) from error
    return dp_event, rdp, NeighboringRelation.REPLACE_ONE
