"""A small fleet on real data: handwritten digits, two labels per device, softmax regression from zero."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from espalier.core.seeds import stream
from espalier.methods.d2d.clusters import Floats, Ints
from espalier.methods.d2d.timing import arrivals

from . import reference


@dataclass(frozen=True, eq=False)
class DigitsFleet:
    gradients: Floats  # [N, 650] at the zero model, over all samples of a device
    counts: Ints  # [N, 10]
    times: Floats  # [N, N]
    compute: Floats  # [N]

    @property
    def samples(self) -> Ints:
        return self.counts.sum(axis=1)


def gradient(x: Floats, y: Ints, model: Floats) -> Floats:
    """Gradient ``[650]`` of the mean cross-entropy of softmax regression with a bias."""
    inputs = np.column_stack([x, np.ones(len(x))])
    scores = inputs @ model.reshape(65, 10)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    result: Floats = (inputs.T @ p / len(y)).ravel()
    return result


@cache
def digits_fleet(n: int = 40, labels: int = 2) -> DigitsFleet:
    x, y = load_digits(return_X_y=True)
    x = x / 16.0
    rng = stream(3, "digits-fleet")
    pools = {c: list(rng.permutation(np.flatnonzero(y == c))) for c in range(10)}
    gradients, counts = [], []
    for i in range(n):
        own = [(i + k * 3) % 10 for k in range(labels)]
        rows = np.concatenate([[pools[c].pop() for _ in range(int(rng.integers(5, 20)))] for c in own])
        gradients.append(gradient(x[rows], y[rows], np.zeros(650)))
        counts.append(np.bincount(y[rows], minlength=10))
    throughput = np.triu(rng.uniform(1, 5, (n, n)), 1)
    compute: NDArray[np.float64] = rng.uniform(5, 20, n)
    times = arrivals(compute, reference.link_seconds(30, throughput + throughput.T))
    return DigitsFleet(np.array(gradients), np.array(counts, dtype=np.int64), times, compute)
