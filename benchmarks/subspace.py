"""One-shot clustering at scale: seconds and memory of the vectors, the angles and the cut.

    python benchmarks/subspace.py [--devices 2000] [--features 784] [--samples 30] [--vectors 3]

Devices hold samples of two of ten Gaussian classes. The target is 2,000 devices in under a minute on one core.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from espalier.core.seeds import stream
from espalier.methods.csahfl.subspace import cluster, leading_vectors, proximity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[250, 500, 1000, 2000])
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--vectors", type=int, default=3)
    options = parser.parse_args()
    print(f"{'devices':>8} {'vectors s':>10} {'angles s':>10} {'cut s':>8} {'clusters':>9} {'peak MB':>8}")
    for devices in options.devices:
        rng = stream(0, "benchmark", devices)
        centres = rng.random((10, options.features))
        start = time.perf_counter()
        found = np.empty((devices, options.features, options.vectors))
        for i in range(devices):
            labels = rng.choice(10, 2, replace=False)[rng.integers(2, size=options.samples)]
            data = centres[labels] + 0.2 * rng.standard_normal((options.samples, options.features))
            found[i] = leading_vectors(data, options.vectors)
        vectors = time.perf_counter()
        angles = proximity(found)
        measured = time.perf_counter()
        cut = cluster(angles, "auto")
        end = time.perf_counter()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{devices:8d} {vectors - start:10.2f} {measured - vectors:10.2f} {end - measured:8.2f} "
            f"{cut.count:9d} {peak:8.0f}"
        )


if __name__ == "__main__":
    main()
