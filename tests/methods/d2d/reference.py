"""Eq. (3) to (5) and the exchanges of Algorithm 3 written out as slowly and plainly as they are printed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.seeds import stream
from espalier.methods.d2d.alignment import Angle, gram
from espalier.methods.d2d.clusters import Floats, Ints
from espalier.methods.d2d.timing import arrivals


def angles(features: NDArray[Any], weights: ArrayLike) -> Angle:
    """The package's angles of a fleet, from its features [N, d] and samples [N]."""
    return Angle.from_gram(gram(features, weights))


def angle(features: NDArray[Any], weights: NDArray[Any], members: Ints) -> float:
    """Eq. (3) from the vectors themselves; a sum that cancels has no direction and counts as π/2."""

    def mean(who: Ints) -> Floats | None:
        terms = [float(weights[i]) * features[i].astype(np.float64) for i in who]
        total = np.sum(terms, axis=0)
        size = sum(float(t @ t) for t in terms)
        return total if total @ total > 1e-12 * size else None

    own, fleet = mean(members), mean(np.arange(len(features)))
    if own is None or fleet is None:
        return math.pi / 2
    cosine = own @ fleet / (np.linalg.norm(own) * np.linalg.norm(fleet))
    value = math.acos(min(1.0, max(-1.0, float(cosine))))
    return 0.0 if value < 1e-6 else value


def skew(counts: NDArray[Any], members: Ints) -> float:
    own, fleet = counts[members].sum(axis=0), counts.sum(axis=0)
    return float(sum(abs(own[k] / own.sum() - fleet[k] / fleet.sum()) for k in range(counts.shape[1])))


def round_time(times: Floats, members: Ints) -> float:
    """Eq. (4) by trying every head."""
    return min(max(float(times[i, j]) for i in members) for j in members)


def exchanges(first: Ints, second: Ints) -> Iterator[tuple[int, int, Ints, Ints]]:
    """Every exchange of Algorithm 3 as ``(i, j, new first, new second)``; -1 stands for nobody."""
    for i in range(-1, first.size):
        for j in range(-1, second.size):
            out = first[i : i + 1] if i >= 0 else first[:0]
            back = second[j : j + 1] if j >= 0 else second[:0]
            new1 = np.concatenate([np.setdiff1d(first, out), back])
            new2 = np.concatenate([np.setdiff1d(second, back), out])
            if new1.size and new2.size:
                yield i, j, new1, new2


def link_seconds(size: float, throughput: Floats) -> Floats:
    """Time ``m/λ`` to send ``size`` over links of a throughput ``[N, N]``; infinite where it is 0."""
    return np.divide(size, throughput, out=np.full_like(throughput, np.inf), where=throughput > 0)


def fleet(
    n: int, d: int, seed: int = 0, kinds: int = 10, absent: float = 0.0
) -> tuple[NDArray[np.float32], Ints, Floats]:
    """Features, samples and arrival times of a fleet whose devices are of a few kinds."""
    rng = stream(seed, "fleet", n, d)
    centres = rng.standard_normal((kinds, d), dtype=np.float32)
    features = centres[rng.integers(kinds, size=n)] + 0.3 * rng.standard_normal((n, d), dtype=np.float32) + 0.3
    throughput = np.triu(rng.uniform(1, 5, (n, n)) * (rng.random((n, n)) >= absent), 1)
    times = arrivals(rng.uniform(5, 20, n), link_seconds(30, throughput + throughput.T))
    return features, rng.integers(200, 2000, n), times
