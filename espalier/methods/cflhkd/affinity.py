"""How alike two devices are: their label distributions and the directions they train in (CFLHKD, section 4.4).

The printed Eq. (17) adds a divergence (small is alike) to a similarity (large is alike). We turn the divergence
around: ``A = gamma (1 - JSD) + (1 - gamma) cos``, the divergence in bits so that it lies in [0, 1]. Identical
devices have affinity 1.

Cosines of updates are wanted where the updates are not: an edge has its devices' models, the cloud has none of them.
A :class:`Sketch` folds an update of any length into a few hundred numbers whose cosines are those of the
updates, up to about ``1 / sqrt(size)``.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from espalier.core.errors import ConfigError
from espalier.policies.dendrogram import Floats
from espalier.policies.update_clustering import cosines_of_gram


def distributions(histograms: ArrayLike) -> Floats:
    """Scale histograms ``[N, C]`` to sum one each (an empty one becomes uniform)."""
    counts = np.atleast_2d(np.asarray(histograms, dtype=np.float64))
    sums = counts.sum(1, keepdims=True)
    return np.where(sums > 0, counts / np.where(sums > 0, sums, 1.0), 1.0 / counts.shape[1])


def jensen_shannon(p: ArrayLike, q: ArrayLike) -> float:
    """Return the Jensen–Shannon divergence of two histograms ``[C]`` in bits: 0 alike, 1 disjoint."""
    return float(_divergences(distributions(p)[0], distributions(q))[0])


def jensen_shannon_matrix(histograms: ArrayLike) -> Floats:
    """Return the pairwise divergences ``[N, N]`` of histograms ``[N, C]`` in bits."""
    mixes = distributions(histograms)
    found = np.stack([_divergences(p, mixes) for p in mixes])
    np.fill_diagonal(found, 0.0)
    return (found + found.T) / 2


def _divergences(p: Floats, q: Floats) -> Floats:
    """Divergences of one distribution ``[C]`` from several ``[N, C]``: entropy of the mean less mean entropy."""
    found: Floats = _entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2
    return np.clip(found, 0.0, 1.0)


def _entropy(p: Floats) -> Floats:
    logs = np.log2(p, out=np.zeros_like(p), where=p > 0)
    found: Floats = -(p * logs).sum(-1)
    return found


def cosines(vectors: ArrayLike) -> Floats:
    """Return the pairwise cosines ``[N, N]`` of vectors ``[N, d]``; a zero vector is orthogonal to all others."""
    rows = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    return cosines_of_gram(rows @ rows.T, lengths)


def affinity(divergence: ArrayLike, cosine: ArrayLike, gamma: float = 0.5) -> Floats:
    """Eq. (17), the divergence turned around: ``gamma (1 - JSD) + (1 - gamma) cos``; 1 for identical devices."""
    found: Floats = gamma * (1.0 - np.asarray(divergence, dtype=np.float64))
    return found + (1.0 - gamma) * np.asarray(cosine, dtype=np.float64)


def ranking(affinities: Floats) -> list[int]:
    """Eq. (18): devices by the norm of their affinity row, largest first; ties by number."""
    norms = np.linalg.norm(affinities, axis=1)
    # Rounding must not decide between rows that are permutations of each other.
    return sorted(range(len(norms)), key=lambda i: (-round(float(norms[i]), 9), i))


class Sketch:
    """Folds vectors ``[n_params]`` into ``[size]`` numbers: every coordinate adds to one of them, up or down.

    Everybody who draws it from the same generator has the same folding. Inner products survive in expectation,
    with a standard deviation of about ``1 / sqrt(size)`` of the vectors' lengths.
    """

    def __init__(self, n_params: int, size: int, rng: np.random.Generator) -> None:
        if size < 1:
            raise ConfigError(f"A sketch of size {size} holds nothing; accepted: a number from 1.")
        self.size = size
        self._place = torch.from_numpy(rng.integers(0, size, n_params))
        self._sign = torch.from_numpy(rng.integers(0, 2, n_params) * 2.0 - 1.0)

    def fold(self, vectors: Tensor) -> NDArray[np.float32]:
        """Return the sketches ``[K, size]`` of vectors ``[K, n_params]``."""
        folded = torch.zeros(len(vectors), self.size, dtype=torch.float64)
        for row, vector in zip(folded, vectors, strict=True):
            row.index_add_(0, self._place, vector.double() * self._sign)
        return folded.numpy().astype(np.float32)
