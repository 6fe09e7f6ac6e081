from __future__ import annotations

import numpy as np
import pytest

from espalier.core.errors import ConfigError
from espalier.core.seeds import stream
from espalier.methods.d2d.angle import Angle, cosines, gram
from espalier.methods.d2d.spectral import adapted_similarity, spectral_clusters
from espalier.methods.d2d.start import random_start, reverse_spectral_start
from espalier.methods.d2d.swap import SearchOptions, evaluate, search

from . import reference


@pytest.mark.parametrize(("n", "u"), [(20, 4), (23, 5), (5, 5), (7, 1)])
def test_random_start_is_balanced_and_reproducible(n, u):
    clusters = random_start(n, u, stream(1, "start"))
    assert len(clusters) == u
    assert np.ptp(clusters.sizes) <= 1
    assert clusters.labels.tolist() == random_start(n, u, stream(1, "start")).labels.tolist()


def test_impossible_numbers_are_refused():
    with pytest.raises(ConfigError, match="n_clusters"):
        random_start(3, 4, stream(0, "s"))
    with pytest.raises(ConfigError, match="n_kinds"):
        reverse_spectral_start(np.eye(3), 1, stream(0, "s"), n_kinds=0)


def test_every_cluster_gets_its_share_of_every_kind():
    # Three kinds of eight devices, pointing along three axes, dealt over four clusters: two of each kind.
    kind = np.arange(24) % 3
    features = np.eye(3)[kind] + 0.01
    clusters = reverse_spectral_start(cosines(gram(features, np.ones(24))), 4, stream(0, "deal"), n_kinds=3)
    for members in clusters.members:
        assert np.bincount(kind[members], minlength=3).tolist() == [2, 2, 2]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_tiny_fleets(n):
    features, weights, _ = reference.fleet(n, 4)
    clusters = reverse_spectral_start(cosines(gram(features, weights)), 1, stream(0, "tiny"))
    assert clusters.n_devices == n


def test_a_dealt_start_is_better_aligned_than_a_random_one_and_than_the_literal_reading():
    features, weights, times = reference.fleet(200, 400)
    alignment = Angle.from_features(features, weights)
    alike = cosines(alignment.products)

    def mean_angle(clusters):
        return evaluate(clusters, alignment, times).angles.mean()

    dealt = mean_angle(reverse_spectral_start(alike, 40, stream(0, "start")))
    drawn = np.mean([mean_angle(random_start(200, 40, stream(s, "start"))) for s in range(5)])
    literal = mean_angle(
        spectral_clusters(adapted_similarity(np.zeros(200), alike, 1.0, 0.8), 40, stream(0, "literal"))
    )
    assert dealt < 0.95 * drawn < literal


def test_the_search_goes_on_from_a_dealt_start():
    features, weights, times = reference.fleet(100, 50)
    alignment = Angle.from_features(features, weights)
    start = reverse_spectral_start(cosines(alignment.products), 20, stream(0, "start"))
    found = search(alignment, times, SearchOptions(n_swap=200), stream(0, "search"), start)
    assert found.start.clusters is start
    assert found.end.times.mean() < found.start.times.mean()
    assert found.end.angles.mean() < found.start.angles.mean()
