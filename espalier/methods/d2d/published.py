"""The figures of the D2D paper's Tables 6 to 12, as printed.

Values are in the order of the six distributions of `espalier.methods.d2d.settings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Block = Mapping[str, Sequence[float]]

#: accuracy (%) after 2,400 steps, equal links
TABLE6: Block = {
    "Benchmark A": (42.1, 47.7, 41.9, 48.3, 41.1, 49.8),
    "Benchmark A+": (44.0, 49.2, 44.5, 49.3, 42.8, 50.5),
    "Solution 1.1": (44.7, 49.6, 44.5, 49.2, 42.8, 50.4),
    "Solution 1.2": (44.9, 49.5, 44.7, 49.3, 42.7, 50.3),
}
#: accuracy (%) after 2,400 steps, heterogeneous links
TABLE7: Block = {
    "Benchmark A": (42.0, 47.6, 41.8, 47.8, 40.8, 49.5),
    "Benchmark A+": (43.7, 48.8, 43.5, 48.8, 42.6, 49.9),
    "Solution 1.1": (45.0, 49.9, 44.5, 49.5, 42.8, 50.6),
    "Solution 1.2": (45.0, 49.9, 44.6, 49.5, 42.7, 50.5),
}
#: the bound's loss term, times 10⁴
TABLE8: Block = {
    "Benchmark A": (1.59, 1.98, 1.49, 1.94, 1.58, 2.19),
    "Benchmark A+": (1.74, 2.05, 1.71, 2.01, 1.65, 2.11),
    "Solution 1.1": (1.74, 2.02, 1.75, 2.02, 1.74, 2.13),
    "Solution 1.2": (1.76, 2.03, 1.75, 2.01, 1.75, 2.16),
}
#: mean distance of clusters' gradients from the fleet's
TABLE9_CLUSTER: Block = {
    "Benchmark A": (7.63, 3.84, 7.81, 3.92, 9.67, 4.16),
    "Benchmark A+": (4.25, 2.36, 4.48, 2.54, 5.78, 2.72),
    "Solution 1.1": (3.92, 2.06, 5.13, 2.66, 5.81, 2.09),
    "Solution 1.2": (4.02, 2.30, 4.98, 2.69, 5.98, 2.26),
}
#: mean distance of devices' gradients from their clusters'
TABLE9_DEVICE: Block = {
    "Benchmark A": (8.34, 4.69, 8.08, 4.57, 10.75, 5.63),
    "Benchmark A+": (11.78, 6.12, 11.76, 6.05, 14.97, 7.03),
    "Solution 1.1": (12.18, 6.36, 11.84, 6.20, 15.43, 7.28),
    "Solution 1.2": (12.07, 6.26, 11.78, 6.14, 15.36, 7.23),
}
#: accuracy (%) by global round time (90, 120, 150, 180), solutions 1.1, 2, 3 in turn
TABLE10: Mapping[str, Sequence[Sequence[float]]] = {
    "σ=750 I_c=4": ((45.4, 43.6, 44.5), (46.8, 44.6, 46.1), (47.2, 44.7, 46.7), (47.1, 45.1, 46.4)),
    "σ=750 I_c=7": ((49.9, 47.9, 49.2), (51.4, 49.4, 50.7), (52.0, 50.0, 51.1), (52.1, 50.1, 51.0)),
    "σ=1250 I_c=4": ((44.8, 43.7, 44.6), (45.9, 45.0, 45.8), (46.6, 45.2, 46.5), (46.4, 45.3, 46.5)),
    "σ=1250 I_c=7": ((49.7, 48.5, 49.0), (51.3, 50.1, 50.9), (51.8, 50.3, 51.4), (51.5, 50.3, 51.3)),
    "σ=1600 I_c=2": ((39.2, 37.6, 38.3), (39.8, 38.7, 39.2), (40.7, 37.7, 38.9), (40.3, 39.1, 39.6)),
    "Dir(0.05)": ((34.8, 32.7, 33.7), (36.1, 34.3, 34.9), (36.4, 34.7, 35.6), (35.4, 33.5, 34.0)),
    "Dir(0.1)": ((42.7, 41.1, 42.0), (43.5, 42.6, 43.1), (44.1, 42.7, 44.0), (44.3, 43.5, 44.1)),
    "Dir(0.5)": ((49.5, 47.4, 48.4), (50.9, 48.6, 49.7), (51.4, 49.2, 50.1), (51.5, 49.1, 50.3)),
}
#: target accuracy (%), and the rounds that features and benchmark B need for what φ reaches in 16
TARGET: Sequence[float] = (45.2, 50.1, 44.8, 49.6, 43.4, 51.1)
ROUNDS: Block = {
    "1.1-crop": (17.4, 16.7, 16.4, 16.1, 16.7, 16.8),
    "Benchmark B": (21.2, 21.6, 20.4, 20.9, 22.3, 22.6),
    "1.1-pred": (20.8, 20.6, 20.2, 20.1, 22.3, 21.1),
    "1.1-skew": (19.2, 19.9, 19.0, 19.3, 21.2, 21.0),
}
#: the feature time (steps) below which each is faster than φ with t_φ = 50 (NaN: never)
AFFORDABLE: Block = {
    "1.1-crop": (36.0, 42.7, 46.0, 48.6, 43.0, 41.9),
    "Benchmark B": (5.7, 3.5, 11.1, 7.7, float("nan"), float("nan")),
    "1.1-pred": (8.6, 9.8, 12.4, 13.6, float("nan"), 6.6),
    "1.1-skew": (20.3, 14.8, 21.2, 18.9, 6.2, 7.2),
}
