"""The random graph of devices: as many links as asked for, short ways, connected whoever leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.world import Shape
from espalier.world.links import BoundGraph, Graph, RandomGraph
from espalier.world.links.random_graph import linked_pairs


def bind(spec: Graph | RandomGraph, n: int, seed: int = 0) -> BoundGraph:
    bound = spec.bind(Shape(n, 0, seed, model_bytes=10**6))
    assert isinstance(bound, BoundGraph)
    return bound


def test_links_by_hand() -> None:
    # Drawn: 0-1 .1, 0-2 .9, 1-2 .6, 0-3 .8, 1-3 .7, 2-3 .95. With probability .65: 0-1 and 1-2. Device 3 would be
    # alone: the spanning tree of the lowest draws takes 0-1, 1-2 and 1-3 (.7, its lowest).
    draws = np.array([[0, 0.1, 0.9, 0.8], [0.1, 0, 0.6, 0.7], [0.9, 0.6, 0, 0.95], [0.8, 0.7, 0.95, 0]])
    assert np.argwhere(linked_pairs(draws, 0.65)).tolist() == [[0, 1], [1, 2], [1, 3]]
    assert np.argwhere(linked_pairs(draws[:1, :1], 0.65)).tolist() == []


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 40), gone=st.sets(st.integers(0, 39), max_size=35), seed=st.integers(0, 99))
def test_it_is_connected_whoever_is_there(n: int, gone: set[int], seed: int) -> None:
    absent = frozenset(g for g in gone if g < n)
    graph = bind(RandomGraph(degree=1.5), n, seed).without(absent)
    assert isinstance(graph, BoundGraph)
    present = [d for d in range(n) if d not in absent]
    if present:
        assert set(graph.within(present[0], n).tolist()) == set(present[1:])


def test_a_device_has_as_many_neighbours_as_asked_for() -> None:
    degrees = [len(bind(RandomGraph(degree=8.0), 200).neighbours(d)) for d in range(200)]
    assert np.mean(degrees) == pytest.approx(8.0, abs=0.6)


def test_ways_hardly_grow_with_the_fleet() -> None:
    # In the geometric graph they grow like √N; in a uniform one like log N.
    def hops(spec: Graph | RandomGraph, n: int) -> float:
        graph = bind(spec, n)
        return float(np.mean([graph.hop_count(0, d) for d in range(1, n)]))

    assert hops(RandomGraph(), 200) < 1.6 * hops(RandomGraph(), 30)
    assert hops(Graph(), 200) > 2.0 * hops(Graph(), 30)


def test_a_degree_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="degree"):
        RandomGraph(degree=0.0)
