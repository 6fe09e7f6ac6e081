"""Where a swap search begins.

`random_start` is line 1 of Algorithm 2. `reverse_spectral_start` is what the paper proposes for large
fleets, "clustering dissimilar clients together", without saying how. Spectral clustering on
dissimilarities, read literally, needs one eigenvector per cluster, returns clusters of any size, and
its clusters are further from the fleet's direction than random ones. We group *alike* devices by a
spectral embedding instead and deal each group out over the clusters like a suit of cards: every cluster
gets its share of every kind, sizes differ by at most one, and a handful of eigenvectors is enough.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigsh

from espalier.core.errors import ConfigError
from espalier.methods.d2d.clusters import Clusters, Floats, Ints
from espalier.methods.d2d.spectral import k_means, unit_rows


def random_start(n_devices: int, n_clusters: int, rng: np.random.Generator) -> Clusters:
    """Split the fleet at random into clusters whose sizes differ by at most one."""
    return _dealt(rng.permutation(n_devices), n_clusters)


def reverse_spectral_start(cosines: Floats, n_clusters: int, rng: np.random.Generator, n_kinds: int = 10) -> Clusters:
    """Split the fleet so that every cluster mixes devices of different directions.

    Args:
        cosines: ``[N, N]`` cosines between features (`espalier.methods.d2d.angle.cosines`).
        n_clusters: Number of clusters.
        rng: Draws the k-means seeds and the order inside a kind.
        n_kinds: Kinds of devices to tell apart; about the number of labels serves well.

    Returns:
        Clusters whose sizes differ by at most one.
    """
    if n_kinds < 1:
        raise ConfigError(f"n_kinds is {n_kinds}; tell at least 1 kind of device apart.")
    order = rng.permutation(len(cosines))
    kinds = min(n_kinds, len(cosines) - 1)
    if kinds > 1:
        kind = k_means(_embedding(cosines, kinds, rng), kinds, rng)
        order = order[np.argsort(kind[order], kind="stable")]
    return _dealt(order, n_clusters)


def _dealt(order: Ints, n_clusters: int) -> Clusters:
    """Give the devices, in this order, to the clusters in turn."""
    if not 1 <= n_clusters <= order.size:
        raise ConfigError(f"n_clusters is {n_clusters}; {order.size} devices allow 1 to {order.size}.")
    return Clusters.of(order[at::n_clusters] for at in range(n_clusters))


def _embedding(cosines: Floats, dimensions: int, rng: np.random.Generator) -> Floats:
    """Leading eigenvectors ``[N, dimensions]`` of the normalised similarity (1 + cos)/2, rows of length 1.

    The operator is applied without forming the matrix: at 5,000 devices every copy is 200 MB.
    """
    n = len(cosines)
    scale = 1.0 / np.sqrt(0.5 * (n + cosines.sum(axis=1)))

    def apply(vector: Floats) -> Floats:
        scaled = scale * vector.ravel()
        product: Floats = scale * 0.5 * (scaled.sum() + cosines @ scaled)
        return product

    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    _, vectors = eigsh(operator, k=dimensions, which="LA", v0=rng.standard_normal(n))
    return unit_rows(np.asarray(vectors, dtype=np.float64))
