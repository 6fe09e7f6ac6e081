"""The ways to split a fleet, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from espalier.core.errors import ConfigError
from espalier.core.seeds import stream
from espalier.methods.d2d.alignment import Skew
from espalier.methods.d2d.clustering import Adapted, Cliques, Clustering, Ground, Spectral, SwapSearch, greedy_cliques
from espalier.methods.d2d.swap import random_start

from .digits import digits_fleet


def ground(n: int, seed: int = 0, labels: bool = False) -> Ground:
    rng = np.random.default_rng(seed)
    features = rng.integers(1, 9, (n, 4)) if labels else rng.normal(size=(n, 6))
    times = rng.uniform(1, 9, (n, n))
    return Ground(rng.integers(1, 50, n), times.diagonal().copy(), times, features, labels, rng)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(
        [
            SwapSearch(),
            SwapSearch(start="reverse_spectral", pick="best", solution="1.2"),
            SwapSearch(n_clusters=4, n_min=3, n_max=4),
            Spectral(),
            Adapted(n_clusters=3),
        ]
    ),
    st.integers(1, 23),
)
def test_every_device_is_in_one_cluster_however_many_are_there(clustering: Clustering, n: int) -> None:
    clusters, _ = clustering.clusters(ground(n))
    assert sorted(d for members in clusters.members for d in members) == list(range(n))


@settings(deadline=None, max_examples=23)
@given(st.integers(1, 23))
def test_cliques_need_label_counts_only(n: int) -> None:
    clusters, note = Cliques(n_swap=20).clusters(ground(n, labels=True))
    assert clusters.n_devices == n and note["skew_after"] <= note["skew_before"] + 1e-12
    sizes = clusters.sizes
    assert sizes.max() - sizes.min() <= 1


def test_a_fifth_of_the_devices_unless_told_otherwise() -> None:
    assert SwapSearch().many(23) == 5 and SwapSearch().many(2) == 1 and Spectral(7).many(4) == 4


def test_sizes_give_way_when_devices_are_missing() -> None:
    # 4 clusters of 3 to 4 hold 12 to 16 devices. Of 7 that are there at most 2 clusters of 3 can be made.
    clusters, _ = SwapSearch(n_clusters=4, n_min=3, n_max=4).clusters(ground(7))
    assert len(clusters) == 2 and sorted(clusters.sizes) == [3, 4]
    clusters, _ = SwapSearch(n_clusters=2, n_max=3).clusters(ground(9))
    assert sorted(clusters.sizes)[-1] <= 5


def test_the_search_lowers_what_it_looks_at() -> None:
    _, note = SwapSearch(n_swap=60).clusters(ground(20))
    assert note["accepted"] > 0 and note["angle_after"] < note["angle_before"]


def test_label_counts_are_not_weighted_twice() -> None:
    # Two devices with counts (2, 0) and (0, 4): their cosine is 0 whatever they weigh; with (1, 1) and (3, 3) it is 1.
    def cosine(counts: list[list[int]]) -> float:
        field = Ground(np.array([2, 4]), np.ones(2), np.ones((2, 2)), np.array(counts), True, np.random.default_rng(0))
        return float(field.cosines[0, 1])

    assert cosine([[2, 0], [0, 4]]) == 0 and cosine([[1, 1], [3, 3]]) == pytest.approx(1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SwapSearch(solution="4"),  # type: ignore[arg-type]
        lambda: SwapSearch(z=0.5),
        lambda: SwapSearch(n_swap=-1),
        lambda: SwapSearch(n_min=0),
        lambda: SwapSearch(n_min=4, n_max=3),
        lambda: Spectral(sigma=0.0),
        lambda: Adapted(sigma_ft=0.0),
        lambda: Cliques(n_clusters=0),
        lambda: Clustering.build({"kind": "swaps"}),
    ],
)
def test_impossible_settings_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


def test_two_cliques_by_hand():
    # Labels A,A | B,B: skew 1 + 1 = 2, and any of the four swaps brings it to 0. Start from each way the
    # random cliques may fall: if they are already mixed there is nothing to do.
    skew = Skew.from_counts(np.array([[1, 0], [1, 0], [0, 1], [0, 1]]))
    seen = set()
    for seed in range(12):
        found = greedy_cliques(skew, 2, stream(seed, "cliques"), n_swap=1)
        seen.add(float(found.skews[0]))
        assert found.skews[-1] == 0.0
        assert all(skew.of(m) == 0.0 for m in found.clusters.members)
    assert seen == {0.0, 2.0}


@given(
    hnp.arrays(np.int64, st.tuples(st.integers(2, 14), st.integers(1, 4)), elements=st.integers(0, 5)),
    st.integers(1, 5),
    st.integers(0, 10),
)
@settings(deadline=None)
def test_skew_never_rises_and_sizes_never_change(counts, u, seed):
    counts = counts + (counts.sum(axis=1, keepdims=True) == 0)
    u = min(u, len(counts))
    skew = Skew.from_counts(counts)
    found = greedy_cliques(skew, u, stream(seed, "cliques"), n_swap=12)
    assert (np.diff(found.skews) <= 0).all()
    start = random_start(len(counts), u, stream(seed, "cliques"))
    assert found.clusters.sizes.tolist() == start.sizes.tolist()
    assert found.clusters.n_devices == len(counts)
    assert found.skews[-1] == pytest.approx(sum(skew.of(m) for m in found.clusters.members))


def test_a_plateau_is_not_walked():
    # All histograms equal: no swap is strictly better, so the cliques stay as they were drawn.
    skew = Skew.from_counts(np.full((9, 3), 7))
    found = greedy_cliques(skew, 3, stream(4, "plateau"))
    assert found.clusters.labels.tolist() == random_start(9, 3, stream(4, "plateau")).labels.tolist()


def test_digits_cliques_hold_more_labels():
    fleet = digits_fleet()
    found = greedy_cliques(Skew.from_counts(fleet.counts), 8, stream(0, "digits"))
    assert len(found.clusters) == 8
    assert found.skews[-1] < 0.7 * found.skews[0]
