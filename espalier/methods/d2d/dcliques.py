"""Benchmark B: greedy swaps that lower the label skew of cliques of fixed size (D-Cliques).

No moves, no links, no speeds. Labels do not change from round to round, so the cliques are computed once;
heads and round times come from `espalier.methods.d2d.swap.evaluate` as for every clustering (D16). An
exchange must lower the summed skew strictly: with "≤", as the D2D paper prints it, the search would walk
about on plateaus.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from espalier.core.errors import ConfigError
from espalier.methods.d2d.clusters import Clusters, Floats, Sizes
from espalier.methods.d2d.skew import Skew
from espalier.methods.d2d.start import random_start

_STRICT = 1e-12


@dataclass(frozen=True, eq=False)
class DCliques:
    """Result of the greedy search.

    Attributes:
        clusters: The cliques.
        skews: ``[trials + 1]`` skew summed over all cliques, before and after each trial.
    """

    clusters: Clusters
    skews: Floats


def greedy_cliques(skew: Skew, n_clusters: int | None, rng: np.random.Generator, n_swap: int = 80) -> DCliques:
    """Swap devices between random pairs of cliques while that lowers their skew.

    Args:
        skew: The fleet's label histograms.
        n_clusters: Number of cliques, of equal size up to one; None for a fifth of the devices.
        rng: Draws the cliques, the pairs and one of the improving swaps.
        n_swap: Trials (the original paper uses 1,000, the D2D paper 80).
    """
    if n_swap < 0:
        raise ConfigError(f"n_swap is {n_swap}; give the number of trials, 0 or more.")
    n = len(skew.counts)
    members = list(random_start(n, Sizes.for_fleet(n, n_clusters).n_clusters, rng).members)
    each = np.array([skew.of(m) for m in members])
    totals = [float(each.sum())]
    for _ in range(n_swap if len(members) > 1 else 0):
        one, two = (int(c) for c in rng.choice(len(members), size=2, replace=False))
        first, second = members[one], members[two]
        skew1, skew2 = skew.exchanges(first, second)
        both = skew1 + skew2
        better = np.flatnonzero(both[:-1, :-1] < both[-1, -1] - _STRICT)
        if better.size:
            i, j = divmod(int(better[rng.integers(better.size)]), second.size)
            members[one] = np.sort(np.append(np.delete(first, i), second[j]))
            members[two] = np.sort(np.append(np.delete(second, j), first[i]))
            each[one], each[two] = skew1[i, j], skew2[i, j]
        totals.append(float(each.sum()))
    return DCliques(Clusters(tuple(members)), np.array(totals))
