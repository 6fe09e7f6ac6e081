"""KMA: clusters by delay, balanced by pre-training accuracy, computed in one place.

Yang, Lu, Cao, Huang, Zhang. E-Tree Learning: A Novel Decentralized Model Learning Framework for Edge AI. IEEE
Internet of Things Journal, 2021 ("K-Means and average accuracy"), as EASF's comparison uses it.

K-medoids over the delays (random starts, the one with the smallest greatest delay is kept); then members move or are
swapped between clusters while that lowers

    J = sum_l |Acc_l - ACC| / ACC  +  weight * D / D_0

where D is the sum of delays between members and their central nodes and D_0 its value before; then central nodes are
picked again (EASF's Eq. 1), and central nodes are clustered in turn until one is left. The accuracy part is our
reconstruction: the text names its two aims and no formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.methods.easf.dsf.formulas import TreeLevel, central_node

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def medoids(delays: Floats, able: NDArray[np.bool_], count: int, rng: np.random.Generator, restarts: int) -> Ints:
    """Return the central node (a row) of each row's cluster, [n].

    Args:
        delays: Seconds between each pair, ``[n, n]``.
        able: Which may be central nodes, ``[n]``.
        count: Number of clusters (at most as many as may lead).
        rng: Draws the starts.
        restarts: Number of starts.
    """
    fit = np.flatnonzero(able)
    best: tuple[float, Ints] | None = None
    for _ in range(restarts):
        centres = np.sort(rng.choice(fit, size=min(count, len(fit)), replace=False))
        while True:
            of = _nearest(delays, centres)
            new = np.sort([_central(delays, np.flatnonzero(of == c), able) for c in centres])
            if np.array_equal(new, centres):
                break
            worse = _spread(delays, _nearest(delays, new)) >= _spread(delays, of)
            centres = new
            if worse:
                of = _nearest(delays, centres)
                break
        greatest = float(delays[np.arange(len(of)), of].max())
        if best is None or greatest < best[0]:
            best = (greatest, of)
    assert best is not None
    return best[1]


def _nearest(delays: Floats, centres: Ints) -> Ints:
    of: Ints = centres[np.argmin(delays[:, centres], axis=1)]
    of[centres] = centres  # a central node stays in its cluster, also where another is as near
    return of


def _spread(delays: Floats, of: Ints) -> float:
    return float(delays[np.arange(len(of)), of].sum())


def _central(delays: Floats, rows: Ints, able: NDArray[np.bool_]) -> int:
    found = central_node(rows.tolist(), delays[np.ix_(rows, rows)], able[rows].tolist())
    assert found is not None
    return found


@dataclass(frozen=True)
class Imbalance:
    """The objective J of clusters given by each row's central node."""

    delays: Floats
    accuracies: Floats
    before: float
    weight: float

    def __call__(self, of: Ints) -> float:
        """Return J."""
        centres, which = np.unique(of, return_inverse=True)
        sizes = np.bincount(which, minlength=len(centres))
        means = np.bincount(which, weights=self.accuracies, minlength=len(centres)) / sizes
        return self._value(np.abs(means - self.accuracies.mean()).sum(), _spread(self.delays, of))

    def _value(self, apart: Floats | float, spread: Floats | float) -> float:
        ratio = spread / self.before if self.before > 0 else 0.0
        return float(apart / max(float(self.accuracies.mean()), 1e-12) + self.weight * ratio)


def balanced(of: Ints, objective: Imbalance) -> Ints:
    """Move and swap members (central nodes stay) while that lowers the objective, the best change first."""
    of = of.copy()
    value = objective(of)
    while True:
        change = _best_change(of, objective)
        if change is None:
            return of
        trial = of.copy()
        for row, centre in change:
            trial[row] = centre
        found = objective(trial)
        if found >= value - 1e-12:
            return of
        of, value = trial, found


def _best_change(of: Ints, objective: Imbalance) -> list[tuple[int, int]] | None:
    """Return the move or swap with the lowest objective, as new central nodes of rows."""
    delays, acc = objective.delays, objective.accuracies
    centres, which = np.unique(of, return_inverse=True)
    sizes = np.bincount(which, minlength=len(centres)).astype(np.float64)
    sums = np.bincount(which, weights=acc, minlength=len(centres))
    mean, base = acc.mean(), _spread(delays, of)
    off = np.abs(sums / sizes - mean)
    scale, ratio = max(float(mean), 1e-12), objective.weight / objective.before if objective.before > 0 else 0.0
    free = np.flatnonzero(of != np.arange(len(of)))
    if len(free) == 0 or len(centres) < 2:
        return None
    own = delays[free, of[free]]
    a = which[free]
    # Moves: row i of cluster a to cluster b, which leaves a with two or more.
    left = np.abs((sums[a] - acc[free]) / np.maximum(sizes[a] - 1, 1) - mean)
    gained = np.abs((sums[None] + acc[free, None]) / (sizes[None] + 1) - mean)
    apart = off.sum() - off[a][:, None] - off[None] + left[:, None] + gained
    moves = apart / scale + ratio * (base - own[:, None] + delays[np.ix_(free, centres)])
    moves[sizes[a] <= 2] = np.inf
    moves[np.arange(len(free)), a] = np.inf
    # Swaps: row i of cluster a with row j of cluster b.
    shift = acc[free][None] - acc[free][:, None]
    here = np.abs((sums[a][:, None] + shift) / sizes[a][:, None] - mean)
    there = np.abs((sums[a][None] - shift) / sizes[a][None] - mean)
    apart = off.sum() - off[a][:, None] - off[a][None] + here + there
    crossed = delays[free[:, None], centres[a][None]]
    swaps = apart / scale + ratio * (base - own[:, None] - own[None] + crossed + crossed.T)
    swaps[a[:, None] == a[None]] = np.inf
    i, b = np.unravel_index(int(np.argmin(moves)), moves.shape)
    p, q = np.unravel_index(int(np.argmin(swaps)), swaps.shape)
    if not np.isfinite(min(moves[i, b], swaps[p, q])):
        return None
    if moves[i, b] <= swaps[p, q]:
        return [(int(free[i]), int(centres[b]))]
    return [(int(free[p]), int(of[free[q]])), (int(free[q]), int(of[free[p]]))]


def kma(
    devices: Sequence[int],
    delays: Floats,
    accuracies: Mapping[int, float],
    able: Mapping[int, bool],
    rng: np.random.Generator,
    *,
    clusters: int | None = None,
    weight: float = 0.5,
    restarts: int = 20,
    width: int = 32,
) -> list[TreeLevel]:
    """Return the levels of the tree, the root's cluster last.

    Args:
        devices: Those that take part.
        delays: Seconds of one model between each pair, ``[n, n]``.
        accuracies: Pre-training accuracy of each.
        able: Which may aggregate.
        rng: Draws the starts.
        clusters: Memberships of devices (default: the square root of their number, rounded).
        weight: Of delay against balance, lambda_d.
        restarts: Starts of the k-medoids.
        width: The most children of the root: more central nodes are clustered again.
    """
    found: list[TreeLevel] = []
    at, count = list(devices), clusters or round(len(devices) ** 0.5)
    place = {d: i for i, d in enumerate(devices)}
    fit = np.array([able[d] for d in at])
    if not fit.any():
        return []
    while True:
        rows = np.array([place[d] for d in at])
        part = delays[np.ix_(rows, rows)]
        of = medoids(part, fit, max(1, count), rng, restarts)
        if not found:
            values = np.array([accuracies[d] for d in at], dtype=np.float64)
            of = balanced(of, Imbalance(part, values, _spread(part, of), weight))
        level: TreeLevel = {}
        for centre in np.unique(of):
            members = np.flatnonzero(of == centre)
            level[at[_central(part, members, fit)]] = [at[i] for i in members]
        found.append(level)
        if len(level) == 1 and len(found) > 1:
            return found
        at = sorted(level)
        fit = np.ones(len(at), dtype=bool)
        count = 1 if len(at) <= width else round(len(at) ** 0.5)
