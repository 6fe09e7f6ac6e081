"""Angles between subspaces, and the clusters they make."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.seeds import stream
from espalier.methods.csahfl.subspace import cluster, leading_vectors, principal_angles, proximity

E1, E2, E3 = np.eye(3)
#: the distances of the specification's linkage example
ROWS = np.array([[0, 1, 3, 10], [1, 0, 3, 10], [3, 3, 0, 4], [10, 10, 4, 0]], dtype=float)


def columns(*vectors: np.ndarray) -> np.ndarray:
    return np.stack(vectors, axis=1)[None]


def subspaces(n: int, d: int, p: int, seed: int = 0) -> np.ndarray:
    rng = stream(seed, "test")
    return np.stack([np.linalg.qr(rng.standard_normal((d, p)))[0] for _ in range(n)])


def test_thirty_degrees_whatever_the_signs() -> None:
    plane = columns(E1, E2)
    # In the plane (e1, e2) the vector (0, cos 30, sin 30) is nearest to e2: cos = cos 30.
    tilted = np.cos(np.pi / 6) * E2 + np.sin(np.pi / 6) * E3
    for a in (1, -1):
        for b in (1, -1):
            for c in (1, -1):
                found = principal_angles(columns(a * E1, b * E2), columns(c * tilted))
                assert found == pytest.approx(30.0)
    # The signed rule of the repository depends on the sign: the best entry of (0, -cos 30) is 0, 90 degrees.
    assert principal_angles(plane, columns(-tilted), "repository") == pytest.approx(90.0)


def test_a_vector_inside_a_plane_is_at_no_angle() -> None:
    inside = columns((E1 + E2) / np.sqrt(2))
    assert principal_angles(columns(E1, E2), inside) == pytest.approx(0.0, abs=1e-5)
    # Entry by entry both cosines are 1/sqrt 2: 45 degrees.
    assert principal_angles(columns(E1, E2), inside, "repository") == pytest.approx(45.0)


def test_trace_sums_all_angles() -> None:
    # Planes (e1, e2) and (e1, cos 30 e2 + sin 30 e3): angles 0 and 30 degrees.
    tilted = np.cos(np.pi / 6) * E2 + np.sin(np.pi / 6) * E3
    assert principal_angles(columns(E1, E2), columns(E1, tilted), "trace") == pytest.approx(30.0, abs=1e-5)


@pytest.mark.parametrize("n", [6, 40])
def test_leading_vectors_are_those_of_the_decomposition(n: int) -> None:
    x = stream(1, "test").standard_normal((n, 20))
    found = leading_vectors(x, 3)
    assert found.T @ found == pytest.approx(np.eye(3), abs=1e-9)
    known = np.linalg.svd(x.T, full_matrices=False)[0][:, :3]
    assert np.abs(np.sum(found * known, axis=0)) == pytest.approx(np.ones(3), abs=1e-9)


def test_fewer_samples_than_vectors_leave_columns_of_zeros() -> None:
    x = np.array([[3.0, 4.0, 0.0]])
    assert np.abs(leading_vectors(x, 3)) == pytest.approx(np.array([[0.6, 0, 0], [0.8, 0, 0], [0, 0, 0]]))
    same = np.array([[3.0, 4.0, 0.0], [6.0, 8.0, 0.0]])
    assert np.abs(leading_vectors(same, 2)) == pytest.approx(np.array([[0.6, 0], [0.8, 0], [0, 0]]))


def test_blocks_do_not_matter() -> None:
    found = subspaces(23, 12, 3)
    whole = proximity(found, block=100)
    assert proximity(found, block=4) == pytest.approx(whole, abs=1e-9)
    assert (whole == whole.T).all() and (np.diag(whole) == 0).all()
    assert whole[2, 17] == pytest.approx(float(principal_angles(found[2:3], found[17:18])[0, 0]), abs=1e-6)


def test_weighted_linkage_is_the_mean_of_two_rows() -> None:
    # 0-1 join at 1; they and 2 at 3; the last pair: WPGMA (10 + 4)/2 = 7, UPGMA (10 + 10 + 4)/3 = 8.
    assert cluster(ROWS, 7.5, "weighted", rescue=False).count == 1
    assert cluster(ROWS, 7.5, "average", rescue=False).count == 2


def test_clusters_are_numbered_by_first_appearance() -> None:
    assert cluster(ROWS, 3.5).labels.tolist() == [0, 0, 0, 1]
    assert cluster(ROWS[::-1, ::-1], 3.5).labels.tolist() == [0, 1, 1, 1]


def test_auto_cuts_in_the_largest_gap() -> None:
    # Heights 1, 3, 7: the largest gap is between 3 and 7; the cut in its middle leaves 2 clusters.
    found = cluster(ROWS, "auto")
    assert (found.count, found.beta, found.why) == (2, 5.0, "")


@pytest.mark.parametrize(("beta", "given"), [(20.0, 1), (0.5, 4)])
def test_a_useless_cut_is_replaced_and_said_so(beta: float, given: int) -> None:
    found = cluster(ROWS, beta)
    assert (found.count, found.beta) == (2, 5.0)
    assert f"{given} cluster(s) of 4" in found.why
    assert cluster(ROWS, beta, rescue=False).count == given


def test_ninety_degrees_means_one_cluster() -> None:
    assert cluster(ROWS, 90.0).count == 1


@pytest.mark.parametrize("n", [1, 2])
def test_very_few_devices_have_no_gap_and_are_one_cluster(n: int) -> None:
    angles = np.array([[0.0, 5.0], [5.0, 0.0]])[:n, :n]
    assert cluster(angles, "auto").count == 1
    assert cluster(angles, 20.0, rescue=False).count == 1


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 15), st.integers(0, 1000))
def test_a_larger_beta_never_makes_more_clusters(n: int, seed: int) -> None:
    angles = proximity(subspaces(n, 6, 2, seed))
    counts = [cluster(angles, beta, rescue=False).count for beta in np.linspace(0, 91, 30)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == n and counts[-1] == 1
    for beta in ("auto", 20.0):
        assert 1 <= cluster(angles, beta).count <= n  # type: ignore[arg-type]


def test_six_hundred_devices_take_a_moment() -> None:
    found = subspaces(600, 200, 3)
    start = time.perf_counter()
    cluster(proximity(found), "auto")
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_a_number_of_clusters_can_be_asked_for(count: int) -> None:
    found = cluster(ROWS, 20.0, count=count)
    assert found.count == min(count, len(ROWS))
    # the height that is said gives the same clusters
    assert cluster(ROWS, found.beta, rescue=False).labels.tolist() == found.labels.tolist()
