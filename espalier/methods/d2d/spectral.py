"""Benchmarks A and A+: spectral clustering by time and direction (FedMDS, as the D2D paper uses it).

A puts devices with like times and like directions together. A+ turns the directions around: like times,
unlike directions. The number of clusters is given, their sizes are not; a device left alone joins the
cluster most similar to it, so that every cluster has somebody to merge with (D17).
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from espalier.core.errors import ConfigError
from espalier.methods.d2d.clusters import Clusters, Floats, Ints


def scaled_times(seconds: ArrayLike) -> Floats:
    """Times ``[N]`` scaled to [0, 1] over the fleet, all 0 where they are equal.

    Unscaled steps would drown the cosines, which are at most 1.
    """
    t = np.asarray(seconds, dtype=np.float64)
    span = float(np.ptp(t))
    return (t - t.min()) / span if span > 0 else np.zeros_like(t)


def similarity(seconds: ArrayLike, cosines: Floats, sigma: float) -> Floats:
    """Benchmark A: ``G_ij = exp(−‖F_i − F_j‖/(2σ²))`` with ``F_i = (t_i, cos(φ_i, φ_1), …)``.

    The norm is not squared, as printed.

    Args:
        seconds: ``[N]`` time of each device.
        cosines: ``[N, N]`` cosines between features.
        sigma: Width σ.
    """
    rows = np.column_stack([scaled_times(seconds), cosines])
    return np.exp(-cdist(rows, rows) / (2 * sigma**2))


def adapted_similarity(seconds: ArrayLike, cosines: Floats, sigma_t: float, sigma_ft: float) -> Floats:
    """Benchmark A+: ``exp(−|t_i − t_j|/(2σ_t²)) + exp(+‖F'_i − F'_j‖/(2σ_ft²))``, F' without the time."""
    t = scaled_times(seconds)
    apart = cdist(cosines, cosines) / (2 * sigma_ft**2)
    if apart.max(initial=0.0) > 700:
        raise ConfigError(f"sigma_ft is {sigma_ft}; exp({apart.max():.0f}) overflows; choose a larger width.")
    return np.exp(-np.abs(t[:, None] - t) / (2 * sigma_t**2)) + np.exp(apart)


def spectral_clusters(affinity: Floats, n_clusters: int, rng: np.random.Generator) -> Clusters:
    """Normalised spectral clustering of a similarity matrix, nobody left alone.

    Args:
        affinity: ``[N, N]`` symmetric, positive.
        n_clusters: Clusters asked for; fewer come back where some stay empty or hold one device.
        rng: Seeds k-means.
    """
    n = len(affinity)
    scale = 1.0 / np.sqrt(affinity.sum(axis=1))
    laplacian = np.eye(n) - scale[:, None] * affinity * scale
    _, vectors = eigh(laplacian, subset_by_index=(0, n_clusters - 1))
    labels = k_means(unit_rows(np.asarray(vectors, dtype=np.float64)), n_clusters, rng)
    return Clusters.from_labels(merge_singletons(labels, affinity))


def merge_singletons(labels: Ints, affinity: Floats) -> Ints:
    """Move each device that is alone to the cluster with the highest mean similarity to it.

    Args:
        labels: ``[N]`` cluster of each device.
        affinity: ``[N, N]`` similarity.

    Returns:
        ``[N]`` labels; no cluster has one member unless the fleet has one device or one cluster.
    """
    result = labels.copy()
    for device in range(labels.size):
        numbers, sizes = np.unique(result, return_counts=True)
        if numbers.size > 1 and sizes[numbers == result[device]] == 1:
            others = numbers[numbers != result[device]]
            means = [affinity[device, result == number].mean() for number in others]
            result[device] = others[int(np.argmax(means))]
    return result


def k_means(points: Floats, n_clusters: int, rng: np.random.Generator) -> Ints:
    """Cluster of each row, the best of ten k-means runs."""
    model = KMeans(n_clusters, n_init=10, random_state=int(rng.integers(2**31 - 1)))
    with warnings.catch_warnings():
        # Fewer distinct points than clusters is an answer here: the empty clusters are dropped.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit_predict(points), dtype=np.int64)


def unit_rows(points: Floats) -> Floats:
    """Rows scaled to length 1; zero rows stay."""
    norms = np.linalg.norm(points, axis=1, keepdims=True)
    return points / np.where(norms > 0, norms, 1.0)
