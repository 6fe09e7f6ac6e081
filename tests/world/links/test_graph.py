"""The graph of devices: connected, multi-hop, and still connected when devices leave."""

from __future__ import annotations

import heapq
import math
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ConfigError, WorldError
from espalier.world import Shape, Tier
from espalier.world.links import BoundGraph, Graph, MeasuredGraph, RandomGraph, Signal
from espalier.world.links.graph import connected_pairs, linked_pairs, pairs_in_reach, reach_for, spanning


def bind(n: int, seed: int = 0, **options: object) -> BoundGraph:
    bound = Graph(**options).bind(Shape(n, 0, seed, model_bytes=10**6))  # type: ignore[arg-type]
    assert isinstance(bound, BoundGraph)
    return bound


def fewest_hops(graph: BoundGraph, start: int) -> dict[int, int]:
    found, todo = {start: 0}, deque([start])
    while todo:
        at = todo.popleft()
        for near in graph.neighbours(at).tolist():
            if near not in found:
                found[near] = found[at] + 1
                todo.append(near)
    return found


def plain_dijkstra(graph: BoundGraph, source: int, nbytes: int) -> dict[int, float]:
    best, heap = {source: 0.0}, [(0.0, source)]
    while heap:
        so_far, at = heapq.heappop(heap)
        if so_far > best[at]:
            continue
        for near in graph.neighbours(at).tolist():
            there = so_far + graph.network.link(at, near, nbytes)
            if there < best.get(near, math.inf):
                best[near] = there
                heapq.heappush(heap, (there, near))
    return best


class TestGeometry:
    def test_worked_by_hand(self) -> None:
        # Points on a line at 0, 1, 2, 5, 9 with reach 1.5: the first three are in reach of each other in
        # pairs; 2–5 and 5–9 join the rest because the spanning tree needs them.
        points = np.array([[x, 0.0] for x in (0, 1, 2, 5, 9)])
        assert np.stack(pairs_in_reach(points, 1.5), 1).tolist() == [[0, 1], [1, 2]]
        assert np.stack(connected_pairs(points, 1.5), 1).tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
        assert np.stack(connected_pairs(points, 2.0), 1).tolist() == [[0, 1], [0, 2], [1, 2], [2, 3], [3, 4]]

    def test_few_points(self) -> None:
        assert len(connected_pairs(np.array([[0.5, 0.5]]), 1.0)[0]) == 0
        assert len(connected_pairs(np.empty((0, 2)), 1.0)[0]) == 0
        assert len(spanning(np.array([[0.5, 0.5], [0.5, 0.5]]))) == 1

    def test_triangulated_tree_is_the_minimum(self) -> None:
        points = np.random.default_rng(0).random((60, 2))
        tree = spanning(points)
        # Prim's algorithm on all pairs.
        distance = np.linalg.norm(points[:, None] - points[None], axis=2)
        inside, total = [0], 0.0
        while len(inside) < 60:
            outside = [i for i in range(60) if i not in inside]
            part = distance[np.ix_(inside, outside)]
            total += part.min()
            inside.append(outside[int(part.argmin() % len(outside))])
        assert np.linalg.norm(points[tree[:, 0]] - points[tree[:, 1]], axis=1).sum() == pytest.approx(total)

    def test_the_degree_is_as_asked(self) -> None:
        points = np.random.default_rng(1).random((4000, 2))
        a, _ = pairs_in_reach(points, reach_for(4000, 10))
        # The border takes a few per cent.
        assert 2 * len(a) / 4000 == pytest.approx(10, rel=0.06)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 80), st.integers(0, 1000), st.floats(0, 0.9))
def test_connected_whoever_is_absent(n: int, seed: int, share: float) -> None:
    graph = bind(n, seed, degree=3)
    absent = frozenset(range(int(share * (n - 1))))
    view = graph.without(absent)
    assert isinstance(view, BoundGraph)
    present = set(range(n)) - absent
    assert fewest_hops(view, n - 1).keys() == present
    for device in absent:
        assert len(view.neighbours(device)) == 0
        assert view.time(n - 1, device, 1, 0.0) == math.inf


def test_a_view_depends_on_who_is_absent_only() -> None:
    graph = bind(40)
    first = graph.without(frozenset({1, 2})).without(frozenset({5}))
    second = bind(40).without(frozenset({5}))
    present = np.array([i for i in range(40) if i != 5])
    assert (first.matrix(present, 1000) == second.matrix(present, 1000)).all()
    assert graph.without(frozenset()) is graph
    back = first.without(frozenset())
    assert (back.matrix(np.arange(40), 7) == graph.matrix(np.arange(40), 7)).all()


def test_links_that_stay_keep_their_delay() -> None:
    graph = bind(40)
    view = graph.without(frozenset({3}))
    assert isinstance(view, BoundGraph)
    for near in graph.neighbours(0).tolist():
        if near != 3:
            assert view.network.link(0, near, 10**6) == graph.network.link(0, near, 10**6)


def test_unconnected_graphs_may_fall_apart() -> None:
    graph = bind(40, degree=0.5, connected=False)
    times = graph.matrix(np.arange(40), 1)
    assert np.isinf(times).any()
    a, b = np.argwhere(np.isinf(times))[0]
    assert graph.hops(int(a), int(b)) == ()


def test_routes_are_the_fastest() -> None:
    graph = bind(60, degree=4)
    for source in (0, 17):
        best = plain_dijkstra(graph, source, 10**6)
        for target, expected in best.items():
            assert graph.network.delay(source, target, 10**6) == pytest.approx(expected)
            hops = graph.hops(source, target)
            assert all(tier is Tier.DEV_DEV for tier, _, _ in hops)
            assert sum(graph.network.link(a, b, 500) for _, a, b in hops) == pytest.approx(
                graph.time(source, target, 500, 0.0)
            )


def test_bandwidth_and_latency_are_in_range_and_symmetric() -> None:
    graph = bind(200, bandwidth=(1e6, 1e7), latency=(0.001, 0.01))
    for a in range(200):
        for b in graph.neighbours(a).tolist():
            latency = graph.network.link(a, b, 0)
            assert graph.network.link(b, a, 0) == latency and 0.001 <= latency <= 0.01
            assert 0.1 <= graph.network.link(a, b, 10**6) - latency <= 1.0


def test_signal_strength_slows_the_far() -> None:
    graph = bind(100)
    plain, weak = graph.network, bind(100, signal=Signal()).network
    slower = [
        (weak.link(a, b, 10**6) - weak.link(a, b, 0)) / (plain.link(a, b, 10**6) - plain.link(a, b, 0))
        for a in range(100)
        for b in graph.neighbours(a).tolist()
    ]
    assert min(slower) >= 1 and max(slower) > 3


def test_servers_are_reached_over_access_links() -> None:
    graph = Graph().bind(Shape(10, 2, 0))
    assert graph.time(3, 12, 10**9, 0.0) == 0.0
    assert graph.hops(3, 12, via=10) == ((Tier.DEV_EDGE, 3, 10), (Tier.EDGE_CLOUD, 10, 12))


class TestMeasured:
    def test_routes(self, tmp_path: Path) -> None:
        file = tmp_path / "net.csv"
        # 0–1 and 1–2 of 1 s and 2 s for 1 MB; 0–2 directly takes 10 s.
        file.write_text("a,b,bandwidth,latency\n0,1,1e6,0\n2,1,1e6,1\n0,2,1e5,0\n")
        graph = MeasuredGraph(file).bind(Shape(4, 0, 0, model_bytes=10**6))
        assert graph.time(0, 2, 10**6, 0.0) == pytest.approx(3.0)
        assert graph.hops(0, 2) == ((Tier.DEV_DEV, 0, 1), (Tier.DEV_DEV, 1, 2))
        assert graph.without(frozenset({1})).time(0, 2, 10**6, 0.0) == pytest.approx(10.0)
        assert graph.time(0, 3, 1, 0.0) == math.inf

    @pytest.mark.parametrize("rows", ["0,1,1,0\n1,0,1,0", "2,2,1,0", "0,1,0,0", "0,9,1,0"])
    def test_bad_files(self, tmp_path: Path, rows: str) -> None:
        file = tmp_path / "net.csv"
        file.write_text("a,b,bandwidth,latency\n" + rows + "\n")
        with pytest.raises(WorldError, match=r"net\.csv"):
            MeasuredGraph(file).bind(Shape(4, 0, 0))


def test_a_thousand_devices_are_no_trouble() -> None:
    graph = bind(1000)
    gone = frozenset(range(0, 1000, 3))
    view = graph.without(gone)
    present = np.array([i for i in range(1000) if i not in gone])
    assert np.isfinite(view.matrix(present, 10**6)).all()


def bound_graph(spec: Graph | RandomGraph, n: int, seed: int = 0) -> BoundGraph:
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
    graph = bound_graph(RandomGraph(degree=1.5), n, seed).without(absent)
    assert isinstance(graph, BoundGraph)
    present = [d for d in range(n) if d not in absent]
    if present:
        assert fewest_hops(graph, present[0]).keys() == set(present)


def test_a_device_has_as_many_neighbours_as_asked_for() -> None:
    degrees = [len(bound_graph(RandomGraph(degree=8.0), 200).neighbours(d)) for d in range(200)]
    assert np.mean(degrees) == pytest.approx(8.0, abs=0.6)


def test_ways_hardly_grow_with_the_fleet() -> None:
    # In the geometric graph they grow like √N; in a uniform one like log N.
    def hops(spec: Graph | RandomGraph, n: int) -> float:
        graph = bound_graph(spec, n)
        return sum(fewest_hops(graph, 0).values()) / (n - 1)

    assert hops(RandomGraph(), 200) < 1.6 * hops(RandomGraph(), 30)
    assert hops(Graph(), 200) > 2.0 * hops(Graph(), 30)


def test_a_degree_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="degree"):
        RandomGraph(degree=0.0)
