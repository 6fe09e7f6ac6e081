"""What the real Flower merges models to; run by Flower's interpreter: ``flower_merges.py models.npz out.npz``."""

from __future__ import annotations

import sys

import numpy as np
from flwr.server.strategy.aggregate import aggregate, aggregate_krum, aggregate_median, aggregate_trimmed_avg


def main(source: str, target: str) -> None:
    """Merge models ``[K, P]`` with ``counts [K]`` of samples of which ``hostile`` are hostile, in every way."""
    given = np.load(source)
    results = [([model], int(n)) for model, n in zip(given["models"], given["counts"], strict=True)]
    hostile = int(given["hostile"])
    np.savez(
        target,
        samples=aggregate(results)[0],
        median=aggregate_median(results)[0],
        trimmed_mean=aggregate_trimmed_avg(results, hostile / len(results))[0],
        krum=aggregate_krum(results, hostile, 0)[0],
        multi_krum=aggregate_krum(results, hostile, len(results) - hostile - 2)[0],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
