"""The sorted threshold clustering and its variance control."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.data import registry
from espalier.data.partition import partition
from espalier.data.partitions import partition_spec
from espalier.methods.cflhkd.affinity import affinity, jensen_shannon_matrix, ranking
from espalier.methods.cflhkd.fdc import assign, cluster, control, halves, scaled_rows, variance

THREE = np.array([[1, 0.9, 0.1], [0.9, 1, 0.2], [0.1, 0.2, 1]])


def random_affinities(seed: int, n: int) -> np.ndarray:
    counts = np.random.default_rng(seed).dirichlet(np.full(5, 0.4), n) * 50
    return affinity(jensen_shannon_matrix(counts), 1.0)


def test_assignment_by_hand() -> None:
    # Order 1, 0, 2. Device 0 is at sqrt(.1^2 + .1^2 + .1^2) = .173 from row 1: joins. The centroid is then
    # (.95, .95, .15); device 2 is at sqrt(.85^2 + .75^2 + .85^2) = 1.417: opens.
    assert np.linalg.norm(THREE[0] - THREE[1]) == pytest.approx(0.1732, abs=1e-4)
    assert np.linalg.norm(THREE[2] - (THREE[0] + THREE[1]) / 2) == pytest.approx(1.4168, abs=1e-4)
    assert assign(THREE, ranking(THREE), 0.7, 8) == [[0, 1], [2]]
    assert cluster(THREE, 0.7, 8) == [[0, 1], [2]]


def test_thresholds_at_the_ends() -> None:
    assert assign(THREE, ranking(THREE), 1.5, 8) == [[0, 1, 2]]
    assert sorted(assign(THREE, ranking(THREE), 0.1, 8)) == [[0], [1], [2]]
    # No more than two clusters: device 2 comes last and joins the nearest of the two that device 1 and 0 opened.
    assert assign(THREE, ranking(THREE), 0.1, 2) == [[1, 2], [0]]
    # Scaled by sqrt(3), 1.417 becomes .818: a threshold of .9 takes it in.
    assert cluster(THREE, 0.9, 8, scaled=True) == [[0, 1, 2]]
    np.testing.assert_allclose(scaled_rows(THREE, True), THREE / np.sqrt(3))


def test_a_larger_threshold_never_gives_more_clusters_on_digits() -> None:
    data = registry.load("digits")
    split = partition(data, partition_spec("dirichlet", {"alpha": 0.5}), n_devices=40, n_edges=4, seed=0)
    found = affinity(jensen_shannon_matrix(split.histogram), 1.0)
    sizes = [len(cluster(found, delta, 40)) for delta in (0.2, 0.5, 0.8, 1.2, 2.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_existing_clusters_keep_their_places_and_empty_ones_are_reused() -> None:
    # Devices 0 and 2 are settled at places 0 and 2; device 1 is loose and joins device 0.
    assert assign(THREE, [1], 0.7, 3, [[0], [], [2]]) == [[0, 1], [], [2]]
    # Nobody within .1: it opens the empty place rather than a fourth.
    assert assign(THREE, [1], 0.1, 3, [[0], [], [2]]) == [[0], [1], [2]]
    # Two clusters are the most, and two exist: the empty place stays empty.
    assert assign(THREE, [1], 0.1, 2, [[0], [], [2]]) == [[0, 1], [], [2]]


def test_variance_by_hand() -> None:
    # Rows 0 and 1 are .173 apart: each is .0866 from their mean, whose square is .0075.
    assert variance(THREE, [0, 1]) == pytest.approx(0.0075)
    assert variance(THREE, [2]) == 0.0


def test_halves_are_the_two_groups() -> None:
    points = np.array([[0.0], [0.1], [0.2], [5.0], [5.1]])
    assert sorted(halves(points, [0, 1, 2, 3, 4])) == [[0, 1, 2], [3, 4]]


def test_control_splits_only_what_is_too_wide() -> None:
    points = np.array([[0.0], [0.1], [5.0], [5.1], [9.0]])
    # Variance of {0, .1, 5, 5.1} is 6.25 > 1: split; {9} is left alone.
    assert control(points, [[0, 1, 2, 3], [4]], 1.0, 8) == [[0, 1], [2, 3], [4]]
    # No room for a third cluster.
    assert control(points, [[0, 1, 2, 3], [4]], 1.0, 2) == [[0, 1, 2, 3], [4]]
    # Two narrow clusters are never merged, however near: nothing was split.
    assert control(points, [[0], [1]], 1.0, 8) == [[0], [1]]


def test_a_half_may_join_its_neighbour() -> None:
    # {0, 5} has variance 6.25 > 1; its half {0} joins {.1}: common variance .0025.
    points = np.array([[0.0], [5.0], [0.1]])
    assert control(points, [[0, 1], [2]], 1.0, 8) == [[0, 2], [1]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.floats(0.05, 2.0), st.integers(1, 6), st.integers(1, 5))
def test_clusters_are_a_partition_within_bounds(seed: int, n: int, delta: float, most: int, least: int) -> None:
    found = random_affinities(seed, n)
    clusters = cluster(found, delta, most, least=least)
    assert sorted(i for c in clusters for i in c) == list(range(n))
    assert min(least, most, n) <= len(clusters) <= most
    once = control(found, clusters, delta, most)
    assert control(found, once, delta, most) == once
    if len(once) < most:
        assert all(variance(found, c) <= delta**2 + 1e-12 for c in once)
