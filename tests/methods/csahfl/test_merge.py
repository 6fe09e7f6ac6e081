"""CSAHFL's Eq. (11) to (14), by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.memory import Memory
from espalier.core.messages import Report
from espalier.core.statistics import LABEL_HISTOGRAMS
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.csahfl.method import (
    ByDistribution,
    cluster_weights,
    distribution_weight,
    divergence,
    quantity_weights,
)
from tests.core.fakes import SmallFleet

CLOUD = 20


def report(edge: int, models: dict[str, Ref], reporters: dict[str, dict[int, int]]) -> Arrival:
    samples = {g: sum(d.values()) for g, d in reporters.items()}
    message = Report(1, CLOUD, edge, CLOUD, models, samples, 1, 0, 0.0, stats={"reporters": reporters})
    return Arrival(message, 1.0)


def merged(merge: ByDistribution, fleet: SmallFleet, arrivals: list[Arrival], histograms: dict[int, Any]) -> float:
    view = View(0.0, CLOUD, 0, 0, "", {"": Ref(0)}, None, Memory(), fleet)
    view.product(LABEL_HISTOGRAMS).update(histograms)
    return fleet.store.numbers[merge.merge(view, arrivals)[""]]


def test_divergence() -> None:
    # two of four labels, half each, against uniform: ln 2 twice with weight ½
    assert divergence([1, 1, 0, 0], [1, 1, 1, 1]) == pytest.approx(0.6931, abs=1e-4)
    assert distribution_weight([1, 1, 0, 0], [5, 5, 5, 5]) == pytest.approx(0.5906, abs=1e-4)
    assert divergence([3, 1], [6, 2]) == pytest.approx(0.0, abs=1e-12)


@given(st.lists(st.integers(0, 50), min_size=3, max_size=3), st.lists(st.integers(1, 50), min_size=3, max_size=3))
def test_divergence_is_never_negative(p: list[int], q: list[int]) -> None:
    if sum(p):
        assert divergence(p, q) >= -1e-9


def test_weights() -> None:
    assert quantity_weights([1, 3]).tolist() == [0.25, 0.75]
    # ¼·1 and ¾·½: 0.25 and 0.375, over their sum 0.625
    assert cluster_weights([0.25, 0.75], [1.0, 0.5]).tolist() == pytest.approx([0.4, 0.6])


def test_quantity_times_similarity() -> None:
    fleet = SmallFleet({})
    a, b = fleet.store.number(1.0), fleet.store.number(2.0)
    histograms = {0: np.array([2.0, 2.0]), 1: np.array([4.0, 0.0]), 2: np.array([0.0, 4.0])}
    arrivals = [report(10, {"c0": a, "c1": b}, {"c0": {0: 4}, "c1": {1: 4}})]
    # Everybody: (6, 6). c0 is uniform: weight 1. c1 has one of two labels: KL = ln 2, weight 1/(1 + ln 2).
    other = 1.0 / (1.0 + math.log(2.0))
    expected = (1.0 * 1.0 + other * 2.0) / (1.0 + other)
    assert merged(ByDistribution(), fleet, arrivals, histograms) == pytest.approx(expected)
    assert merged(ByDistribution("samples"), fleet, arrivals, histograms) == pytest.approx(1.5)
    # without histograms only quantity is left
    assert merged(ByDistribution(), fleet, arrivals, {}) == pytest.approx(1.5)


def test_a_clusters_distribution_is_that_of_all_its_devices() -> None:
    # Of c1 only device 1 reported, which has one label; with device 3 the cluster is as even as everybody, weight 1.
    fleet = SmallFleet({})
    fleet.groups = {0: "c0", 1: "c1", 3: "c1"}
    a, b = fleet.store.number(1.0), fleet.store.number(2.0)
    histograms = {0: np.array([2.0, 2.0]), 1: np.array([4.0, 0.0]), 3: np.array([0.0, 4.0])}
    arrivals = [report(10, {"c0": a, "c1": b}, {"c0": {0: 4}, "c1": {1: 4}})]
    assert merged(ByDistribution(), fleet, arrivals, histograms) == pytest.approx(1.5)


def test_uniform_weights_ignore_samples() -> None:
    fleet = SmallFleet({})
    a, b = fleet.store.number(1.0), fleet.store.number(2.0)
    arrivals = [report(10, {"c0": a, "c1": b}, {"c0": {0: 90}, "c1": {1: 10}})]
    assert merged(ByDistribution("uniform"), fleet, arrivals, {}) == pytest.approx(1.5)
    assert merged(ByDistribution("samples"), fleet, arrivals, {}) == pytest.approx(1.1)


def test_one_edge_or_two_give_the_same_model() -> None:
    """Devices 0 (n 1, w 1), 1 (n 3, w 5) in c0, 2 (n 4, w 2) in c1; at one edge, or c0 split over two."""
    fleet = SmallFleet({})
    number = fleet.store.number
    # at one edge c0's model is (1·1 + 3·5) / 4 = 4
    one = [report(10, {"c0": number(4.0), "c1": number(2.0)}, {"c0": {0: 1, 1: 3}, "c1": {2: 4}})]
    two = [
        report(10, {"c0": number(1.0)}, {"c0": {0: 1}}),
        report(11, {"c0": number(5.0), "c1": number(2.0)}, {"c0": {1: 3}, "c1": {2: 4}}),
    ]
    histograms = {0: np.array([1.0, 0.0]), 1: np.array([3.0, 0.0]), 2: np.array([2.0, 2.0])}
    found = [merged(ByDistribution(), fleet, arrivals, histograms) for arrivals in (one, two)]
    assert found[0] == pytest.approx(found[1])


def test_a_device_that_reported_at_two_edges_counts_once() -> None:
    fleet = SmallFleet({})
    number = fleet.store.number
    arrivals = [
        report(10, {"c0": number(1.0)}, {"c0": {0: 2}}),
        report(11, {"c0": number(3.0), "c1": number(10.0)}, {"c0": {0: 2}, "c1": {1: 2}}),
    ]
    # c0 stands for 2 samples, not 4, so both clusters weigh ½; inside c0 the edges weigh the same: (1 + 3)/2 = 2
    assert merged(ByDistribution("samples"), fleet, arrivals, {}) == pytest.approx(0.5 * 2 + 0.5 * 10)


def test_without_groups_an_edge_is_a_cluster() -> None:
    fleet = SmallFleet({})
    number = fleet.store.number
    arrivals = [
        report(10, {"": number(1.0)}, {"": {0: 1}}),
        report(11, {"": number(3.0)}, {"": {1: 9}}),
    ]
    assert merged(ByDistribution("uniform"), fleet, arrivals, {}) == pytest.approx(2.0)
