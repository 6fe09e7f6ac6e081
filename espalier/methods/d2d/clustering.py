"""Ways to split a fleet into clusters: the paper's swap search and its three benchmarks, by name.

Each sees the same ground (who answered, how long they take, where they learn towards) and answers with
clusters; heads, round times and rounds follow from them in the same way for all (`espalier.methods.d2d.swap.evaluate`,
D16).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import Bound, NonNegativeInt, PositiveFloat, PositiveInt
from espalier.core.spec import Spec
from espalier.methods.d2d.alignment import Alignment, Angle, Skew, cosines, gram
from espalier.methods.d2d.clusters import Clusters, Floats, Ints, Sizes
from espalier.methods.d2d.spectral import adapted_similarity, similarity, spectral_clusters
from espalier.methods.d2d.swap import Solution, random_start, reverse_spectral_start, search

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


def greedy_cliques(skew: Skew, n_clusters: int, rng: np.random.Generator, n_swap: int = 80) -> DCliques:
    """Swap devices between random pairs of cliques while that lowers their skew (D-Cliques).

    The summed skew must fall strictly: with "≤", as the D2D paper prints it, the search would walk about on plateaus.

    Args:
        skew: The fleet's label histograms.
        n_clusters: Number of cliques, of equal size up to one.
        rng: Draws the cliques, the pairs and one of the improving swaps.
        n_swap: Trials (the original paper uses 1,000, the D2D paper 80).
    """
    members = list(random_start(len(skew.counts), n_clusters, rng).members)
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


@dataclass(frozen=True, eq=False)
class Ground:
    """What the server knows when it forms clusters; devices are numbered 0 … n-1 here.

    Attributes:
        weights: ``[n]`` samples.
        seconds: ``[n]`` t', what each device needs to compute one round.
        times: ``[n, n]`` when the report of the row's device is at the column's.
        features: ``[n, d]`` learning directions, or label counts where ``labels``.
        labels: Whether the features are label counts.
        rng: The search's generator.
    """

    weights: Ints
    seconds: Floats
    times: Floats
    features: NDArray[Any]
    labels: bool
    rng: np.random.Generator

    @cached_property
    def alignment(self) -> Alignment:
        """How far clusters are from the fleet: an angle, or label skew."""
        return Skew.from_counts(self.features) if self.labels else Angle.from_gram(self._products)

    @cached_property
    def _products(self) -> Floats:
        # Label counts are sums over samples already: weighing them again would count samples twice.
        return gram(self.features, np.ones(len(self.weights)) if self.labels else self.weights)

    @cached_property
    def cosines(self) -> Floats:
        """``[n, n]`` cosines between features."""
        return cosines(self._products)


@dataclass(frozen=True)
class Clustering(Spec, ABC, family="clustering"):
    """A way to split a fleet; ``n_clusters`` is U_C, by default a fifth of the devices."""

    #: whether clusters are kept as long as the same devices are there
    once: ClassVar[bool] = False

    n_clusters: PositiveInt | None = None

    @abstractmethod
    def clusters(self, ground: Ground) -> tuple[Clusters, dict[str, Any]]:
        """Return the clusters, and what is worth noting about how they came about."""

    def many(self, n_devices: int) -> int:
        """Return the number of clusters for a fleet (never more than there are devices)."""
        return min(n_devices, self.n_clusters or max(1, round(n_devices / 5)))


@dataclass(frozen=True)
class SwapSearch(Clustering, kind="swap"):
    """Algorithms 2 and 3 of the D2D paper.

    Attributes:
        solution: Which metrics must improve: angle and time, of pairs ("1.1") or of each cluster ("1.2"), angle and
            angle/time ("2"), time and angle/time ("3").
        n_swap: Trials.
        z: How many times larger an improvement must be than what is given up; default: the paper's for the solution.
        pick: Which valid exchange is made: a random one, or the best.
        start: Where the search begins.
        n_min: Smallest cluster, by default 2.
        n_max: Largest cluster, by default twice the mean, rounded up.
    """

    solution: Solution = "1.1"
    n_swap: NonNegativeInt = 80
    z: Annotated[float, Bound(ge=1)] | None = None
    pick: Literal["random", "best"] = "random"
    start: Literal["random", "reverse_spectral"] = "random"
    n_min: PositiveInt | None = None
    n_max: int | None = None

    def check(self) -> None:
        """Refuse a search that no cluster could pass."""
        self.require(self.n_max is None or self.n_max >= (self.n_min or 1), "n_max", "at least n_min")

    def clusters(self, ground: Ground) -> tuple[Clusters, dict[str, Any]]:
        """Search."""
        sizes = self.sizes(len(ground.weights))
        begin = None
        if self.start == "reverse_spectral":
            begin = reverse_spectral_start(ground.cosines, sizes.n_clusters, ground.rng)
        found = search(
            ground.alignment, ground.times, sizes, ground.rng, solution=self.solution, z=self.z, n_swap=self.n_swap,
            pick=self.pick, start=begin,
        )  # fmt: skip
        note = {
            "accepted": len(found.trace),
            "angle_before": float(found.start.angles.mean()),
            "angle_after": float(found.end.angles.mean()),
        }
        return found.end.clusters, note

    def sizes(self, n_devices: int) -> Sizes:
        """Return sizes that the devices who are there can fill (D6): some may be missing in a round."""
        many = self.many(n_devices)
        if self.n_min is not None:
            many = max(1, min(many, n_devices // self.n_min))
        mean = -(-n_devices // many)
        high = 2 * mean if self.n_max is None else max(self.n_max, mean)
        return Sizes(many, min(self.n_min or 2, n_devices // many), high)


@dataclass(frozen=True)
class Spectral(Clustering, kind="spectral"):
    """Benchmark A: devices of like speed and like direction together; ``sigma`` is the width of likeness."""

    sigma: PositiveFloat = 0.5

    def clusters(self, ground: Ground) -> tuple[Clusters, dict[str, Any]]:
        """Cluster by time and direction."""
        affinity = similarity(ground.seconds, ground.cosines, self.sigma)
        return spectral_clusters(affinity, self.many(len(ground.weights)), ground.rng), {}


@dataclass(frozen=True)
class Adapted(Clustering, kind="adapted"):
    """Benchmark A+: devices of like speed and unlike direction together."""

    sigma_t: PositiveFloat = 0.5
    sigma_ft: PositiveFloat = 0.8

    def clusters(self, ground: Ground) -> tuple[Clusters, dict[str, Any]]:
        """Cluster by time and against direction."""
        affinity = adapted_similarity(ground.seconds, ground.cosines, self.sigma_t, self.sigma_ft)
        return spectral_clusters(affinity, self.many(len(ground.weights)), ground.rng), {}


@dataclass(frozen=True)
class Cliques(Clustering, kind="cliques"):
    """Benchmark B: swaps that lower the label skew, clusters of equal size, links and speeds unseen."""

    once: ClassVar[bool] = True

    n_swap: NonNegativeInt = 80

    def clusters(self, ground: Ground) -> tuple[Clusters, dict[str, Any]]:
        """Swap while it helps."""
        n = len(ground.weights)
        found = greedy_cliques(Skew.from_counts(ground.features), self.many(n), ground.rng, self.n_swap)
        return found.clusters, {"skew_before": float(found.skews[0]), "skew_after": float(found.skews[-1])}
