"""Theory beside practice: gradient mismatch, the terms of the convergence bound, when a feature pays.

The text after Table 9 swaps the coefficients of ε_{i,c} and ε_{c,g}; everything here follows Eq. (10)
and (11) (D19).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.errors import TrainingError
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
    if gradients.ndim != 2 or not len(gradients) == n.size == clusters.n_devices:
        raise TrainingError(
            f"gradients has shape {gradients.shape}, weights {n.shape}, clusters hold {clusters.n_devices} "
            "devices; expected [N, P], [N] and N."
        )
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
    if f.size != weight.size + 1 or not (weight > 0).any():
        raise TrainingError(f"{f.size} losses and {weight.size} weights; expected P + 1 and P, one weight above 0.")
    trained = weight > 0
    return float((2 / weight[trained] * -np.diff(f)[trained]).mean())


@dataclass(frozen=True)
class Bound:
    """Terms of a bound on the mean squared gradient; their sum is the bound."""

    loss: float
    gradient: float
    cluster_global: float
    device_cluster: float

    @property
    def total(self) -> float:
        """The bound."""
        return self.loss + self.gradient + self.cluster_global + self.device_cluster


def bound_per_round(
    losses: ArrayLike,
    w: ArrayLike,
    *,
    eps_cg: float,
    eps_ic: float,
    eta: float,
    g: float,
    r_max: int,
    h_max: int,
) -> Bound:
    """Terms of Eq. (10): mismatch ε, sampling noise η, gradient bound G, largest r_c and h_i."""
    return Bound(
        loss_term(losses, w),
        4 / 3 * g**2,
        (r_max + 1) * (h_max + 5) / 4 * eps_cg**2,
        (h_max + 5) / 2 * (eps_ic**2 + eta**2),
    )


def bound_overall(
    losses: ArrayLike,
    w: ArrayLike,
    *,
    eps_cg: float,
    eps_ic: float,
    eta: float,
    g: float,
    r_max: int,
    lr: float,
    smoothness: float,
) -> Bound:
    """Terms of Eq. (11): as Eq. (10) with the losses between first and last round eliminated.

    ``lr`` is γ and ``smoothness`` L; `largest_lr` says which γ the derivation allows.
    """
    f, weight = np.asarray(losses, dtype=np.float64), np.asarray(w, dtype=np.float64)
    if f.size != weight.size + 1 or not (weight > 0).all():
        raise TrainingError(f"{f.size} losses and {weight.size} weights; expected P + 1 and P, all weights above 0.")
    spread, scale = float(weight.max() / weight.min()), lr * smoothness
    return Bound(
        float(2 / (weight.size * weight.min()) * (f[0] - f[-1])),
        spread * 4 / 3 * g**2,
        spread * (r_max + 1) / (4 * scale) * eps_cg**2,
        spread / (2 * scale) * (eps_ic**2 + eta**2),
    )


def largest_lr(smoothness: float, clusters: Clusters, weights: ArrayLike, rounds: ArrayLike, steps: ArrayLike) -> float:
    """Largest learning rate for which appendix A derives Eq. (10) and (11) in one round.

    The least of 1/(L(r_c h_i)_max), 1/(L(h_max + 5)) and √6/(L(r_c √(mean h²_c) √(h_i + 5))_max), the
    conditions at Eq. (19), (26) and (27). The main text prints weaker ones.
    """
    n, h = np.asarray(weights, dtype=np.float64), np.asarray(steps, dtype=np.float64)
    r = np.asarray(rounds, dtype=np.float64)
    product = root = 0.0
    for number, members in enumerate(clusters.members):
        mean_square = float(n[members] @ h[members] ** 2 / n[members].sum())
        product = max(product, float(r[number] * h[members].max()))
        root = max(root, float(r[number] * math.sqrt(mean_square * (h[members].max() + 5))))
    limits = [1 / (h.max() + 5)]
    if product > 0:
        limits += [1 / product, math.sqrt(6) / root]
    return float(min(limits)) / smoothness


def affordable_feature_time(r_phi: float, r_method: float, t_phi: float, t_g: float, t_cg: float) -> float:
    """Feature time below which a method that needs more rounds is still faster (D21); negative: never.

    ``t_ft < (R_φ/R_method)(t_φ + t_g + t_cg) − (t_g + t_cg)``: ``r_phi`` and ``r_method`` are global rounds
    to the same accuracy, times are per round.
    """
    return r_phi / r_method * (t_phi + t_g + t_cg) - (t_g + t_cg)


def needed_phi_time(r_phi: float, r_method: float, t_g: float, t_cg: float) -> float:
    """φ's collection time below which no feature, even a free one, makes the method faster (Table 11)."""
    return (r_method / r_phi - 1) * (t_g + t_cg)
