"""Theory beside practice: gradient mismatch, the terms of the convergence bound, when a feature pays.

The text after Table 9 swaps the coefficients of ε_{i,c} and ε_{c,g}; everything here follows Eq. (10)
and (11) (D19).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.methods.d2d.clusters import Clusters, Floats


@dataclass(frozen=True, eq=False)
class Mismatch:
    """Distances between gradients at one model.

    Attributes:
        cluster_global: ``[U]`` ‖∇F_c − ∇F‖ per cluster.
        device_cluster: ``[N]`` ‖∇F_i − ∇F_c‖ per device.
    """

    cluster_global: Floats
    device_cluster: Floats

    @property
    def means(self) -> tuple[float, float]:
        """Plain means over clusters and over devices, as in Table 9."""
        return float(self.cluster_global.mean()), float(self.device_cluster.mean())

    @property
    def bounds(self) -> tuple[float, float]:
        """ε_{c,g} and ε_{i,c} of Assumptions 4.4 and 4.5: the largest distances."""
        return float(self.cluster_global.max()), float(self.device_cluster.max())


def gradient_mismatch(gradients: NDArray[Any], weights: ArrayLike, clusters: Clusters) -> Mismatch:
    """How far clusters are from the fleet and devices from their clusters.

    Args:
        gradients: ``[N, P]`` gradient of every device's loss over all its samples, at one model.
        weights: ``[N]`` samples.
        clusters: Who is with whom.
    """
    n = np.asarray(weights, dtype=np.float64)
    fleet = n @ gradients / n.sum()
    cluster_global, device_cluster = np.empty(len(clusters)), np.empty(n.size)
    for number, members in enumerate(clusters.members):
        own = gradients[members].astype(np.float64)
        mean = n[members] @ own / n[members].sum()
        cluster_global[number] = np.linalg.norm(mean - fleet)
        device_cluster[members] = np.linalg.norm(own - mean, axis=1)
    return Mismatch(cluster_global, device_cluster)


def mismatch_term(eps_cg: float, eps_ic: float, r_max: int) -> float:
    """½ε²_{i,c} + ((r_max + 1)/4)ε²_{c,g}: the mismatch's part of Eq. (11), times γL."""
    return 0.5 * eps_ic**2 + (r_max + 1) / 4 * eps_cg**2


def progress_weight(lr: float, clusters: Clusters, weights: ArrayLike, rounds: ArrayLike, steps: ArrayLike) -> float:
    """w^p = γ Σ_c ρ_c Σ_i π_i r_c h_i of one global round.

    Args:
        lr: Learning rate γ.
        clusters: Who is with whom.
        weights: ``[N]`` samples, which give ρ and π.
        rounds: ``[U]`` intra-cluster rounds r_c.
        steps: ``[N]`` local steps h_i per intra-cluster round.
    """
    n, h = np.asarray(weights, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    r = np.asarray(rounds, dtype=np.float64)[clusters.labels]
    return float(lr * (n * r * h).sum() / n.sum())


def loss_term(losses: ArrayLike, w: ArrayLike) -> float:
    """Table 8: (1/P) Σ_p (2/w^p)[F(x^{p−1}) − F(x^p)].

    Args:
        losses: ``[P + 1]`` global loss before the first and after every round.
        w: ``[P]`` from `progress_weight`. A round in which no cluster trained has w = 0, says nothing
            about progress and is left out of sum and count.
    """
    f, weight = np.asarray(losses, dtype=np.float64), np.asarray(w, dtype=np.float64)
    trained = weight > 0
    return float((2 / weight[trained] * -np.diff(f)[trained]).mean())


def affordable_feature_time(r_phi: float, r_method: float, t_phi: float, t_g: float, t_cg: float) -> float:
    """Feature time below which a method that needs more rounds is still faster (D21); negative: never.

    ``t_ft < (R_φ/R_method)(t_φ + t_g + t_cg) − (t_g + t_cg)``: ``r_phi`` and ``r_method`` are global rounds
    to the same accuracy, times are per round.
    """
    return r_phi / r_method * (t_phi + t_g + t_cg) - (t_g + t_cg)


def needed_phi_time(r_phi: float, r_method: float, t_g: float, t_cg: float) -> float:
    """φ's collection time below which no feature, even a free one, makes the method faster (Table 11)."""
    return (r_method / r_phi - 1) * (t_g + t_cg)
