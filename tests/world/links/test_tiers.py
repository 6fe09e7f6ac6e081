"""Per-tier links: times, hops, draws and signal strength."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ConfigError, WorldError
from espalier.world import BoundLinks, Links, Shape, Tier
from espalier.world.links import Graph, Pairs, PerTier, Shared, Signal, TierLink, Trace, Uniform

# Devices 0 … 3, edges 4 and 5, the cloud 6.
SHAPE = Shape(4, 2, seed=1, model_bytes=1000)
LINKS = PerTier(TierLink(100.0, 1.0, up=0.5), TierLink(1000.0, 2.0), TierLink(50.0, 0.25))


def test_times_worked_by_hand() -> None:
    bound = LINKS.bind(SHAPE)
    # Down: 1 s + 200 B / 100 B/s. Up: half the bandwidth, 1 + 200/50.
    assert bound.time(4, 0, 200, 0.0) == 3.0
    assert bound.time(0, 4, 200, 0.0) == 5.0
    # To the cloud it pays both hops, 5 + (2 + 200/1000), and back 3 + 2.2.
    assert bound.time(0, 6, 200, 0.0, via=5) == pytest.approx(7.2)
    assert bound.time(6, 0, 200, 0.0) == pytest.approx(5.2)
    assert bound.time(4, 6, 200, 0.0) == pytest.approx(2.2)
    # From edge to edge over the cloud; between devices directly; to itself at no cost.
    assert bound.time(4, 5, 200, 0.0) == pytest.approx(4.4)
    assert bound.time(1, 3, 200, 0.0) == 4.25
    assert bound.time(2, 2, 200, 0.0) == 0.0


def test_hops() -> None:
    bound = LINKS.bind(SHAPE)
    assert bound.hops(0, 4) == ((Tier.DEV_EDGE, 0, 4),)
    assert bound.hops(0, 6, via=5) == ((Tier.DEV_EDGE, 0, 5), (Tier.EDGE_CLOUD, 5, 6))
    # Without via the device's first edge: 3 mod 2 = 1, host 5.
    assert bound.hops(6, 3) == ((Tier.EDGE_CLOUD, 6, 5), (Tier.DEV_EDGE, 5, 3))
    assert bound.hops(4, 5) == ((Tier.EDGE_CLOUD, 4, 6), (Tier.EDGE_CLOUD, 6, 5))
    assert bound.hops(1, 2) == ((Tier.DEV_DEV, 1, 2),)
    assert bound.hops(1, 1) == ()


def test_the_first_edge_is_the_partition_s() -> None:
    shape = Shape(4, 2, 1, home=np.array([1, 1, 0, 0]))
    assert LINKS.bind(shape).hops(0, 6)[0] == (Tier.DEV_EDGE, 0, 5)


def test_without_edges_a_device_reaches_the_cloud_itself() -> None:
    bound = LINKS.bind(Shape(3, 0, 0))
    assert bound.hops(1, 3) == ((Tier.DEV_EDGE, 1, 3),)
    assert bound.time(3, 1, 200, 0.0) == 3.0


def test_no_direct_link_is_no_path() -> None:
    bound = PerTier(TierLink(100.0)).bind(SHAPE)
    assert bound.time(0, 1, 10, 0.0) == math.inf
    assert bound.hops(0, 1) == ()
    assert len(bound.neighbours(0)) == 0
    assert np.isinf(bound.matrix(np.array([0, 1]), 10)).tolist() == [[False, True], [True, False]]


@pytest.mark.parametrize("links", [Uniform(), Uniform(1000.0, 0.1), PerTier(), PerTier(dev_dev=None)])
def test_a_way_is_there_where_its_hops_take_a_time(links: Links) -> None:
    bound = links.bind(SHAPE)
    for src, dst in np.ndindex(SHAPE.n_hosts, SHAPE.n_hosts):
        assert bound.hops(src, dst) == BoundLinks.hops(bound, src, dst)


def test_ideal_links_take_no_time() -> None:
    assert Uniform().bind(SHAPE).time(0, 6, 10**12, 0.0) == 0.0


def test_each_device_has_its_own_link_drawn_once() -> None:
    shape = Shape(5000, 2, seed=1)
    bound = PerTier(TierLink((1e6, 1e7), (0.01, 0.05))).bind(shape)
    latency = np.array([bound.time(5000, d, 0, 0.0) for d in range(5000)])
    bandwidth = np.array([1e6 / (bound.time(5000, d, 10**6, 0.0) - latency[d]) for d in range(5000)])
    assert latency.min() >= 0.01 and latency.max() <= 0.05
    assert latency.mean() == pytest.approx(0.03, abs=0.001)
    assert bandwidth.mean() == pytest.approx(5.5e6, rel=0.03)
    assert bound.time(5000, 7, 0, 0.0) == bound.time(5001, 7, 0, 99.0)


def test_between_devices_the_slower_end_decides() -> None:
    bound = PerTier(dev_dev=TierLink((1.0, 10.0), (0.1, 0.2))).bind(SHAPE)
    own = bound.matrix(np.arange(4), 100)
    assert (own == own.T).all()
    assert own[0, 1] == bound.time(0, 1, 100, 0.0)
    # Who is the slowest of three decides two of their three links, so the two longest are equal.
    latency = np.sort(bound.matrix(np.arange(3), 0)[np.triu_indices(3, 1)])
    assert latency[1] == latency[2] > latency[0]


class TestSignal:
    def test_share_worked_by_hand(self) -> None:
        # At the reach: 5 dB = 3.162, log2(4.162) = 2.057 of log2(1001) = 9.967: .2064.
        # At a tenth of it: 5 + 30 dB, capped at 30: the whole bandwidth.
        signal = Signal(reach_db=5, best_db=30, exponent=3, shadowing_db=0)
        share = signal.share(np.array([1.0, 0.1]), 1.0, np.zeros(2))
        assert share == pytest.approx([0.2064, 1.0], abs=1e-4)

    def test_shadow_moves_it(self) -> None:
        # One standard deviation of 4 dB less at the reach: 1 dB = 1.259, log2(2.259)/9.967 = .1180.
        share = Signal(5, 30, 3, 4).share(np.array([1.0]), 1.0, np.array([-1.0]))
        assert share == pytest.approx([0.1180], abs=1e-4)

    @given(st.floats(1e-9, 10), st.floats(1e-9, 10), st.floats(-5, 5))
    def test_falls_with_distance_within_bounds(self, a: float, b: float, shadow: float) -> None:
        near, far = Signal().share(np.array([min(a, b), max(a, b)]), 1.0, np.full(2, shadow))
        assert 0 < far <= near <= 1

    def test_slows_access_links(self) -> None:
        shape = Shape(200, 1, 0)
        plain, weak = (PerTier(TierLink(1e6, signal=s)).bind(shape) for s in (None, Signal()))
        times = [(plain.time(200, d, 10**6, 0.0), weak.time(200, d, 10**6, 0.0)) for d in range(200)]
        assert all(b >= a for a, b in times) and any(b > 1.5 * a for a, b in times)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"kind": "uniform", "bandwidth": 0}, "bandwidth"),
        ({"kind": "per_tier", "dev_edge": {"bandwidth": [5, 1]}}, "links.tier.bandwidth"),
        ({"kind": "per_tier", "dev_edge": {"bandwidth": [5, math.inf]}}, "bandwidth"),
        ({"kind": "per_tier", "dev_edge": {"latency": -1}}, "latency"),
        ({"kind": "per_tier", "dev_edge": {"latncy": 1}}, "Did you mean 'latency'?"),
        ({"kind": "per_tier", "dev_edge": {"up": 0}}, "up"),
        ({"kind": "per_tier", "dev_edge": {"signal": {"exponent": 0}}}, "signal.exponent"),
        ({"kind": "pairs", "absent": 2}, "absent"),
        ({"kind": "pairs", "throughput": [0.5, 2], "whole": True}, "whole"),
        ({"kind": "graph", "degree": 0}, "degree"),
        ({"kind": "shared", "of": "uniform", "rate": 0}, "rate"),
        ({"kind": "shared", "of": "unifrom"}, "Did you mean 'uniform'?"),
    ],
)
def test_refusals(table: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        Links.build(table)
    assert says in str(error.value)


ALL_KINDS: list[BoundLinks] = [
    links.bind(Shape(6, 2, 0, model_bytes=10_000))
    for links in (LINKS, Uniform(1e6, 0.1), Pairs((0, 5), whole=True), Graph(degree=2), Shared(LINKS, 1e4))
]


@settings(max_examples=150)
@given(st.sampled_from(ALL_KINDS), st.integers(0, 8), st.integers(0, 8), st.integers(0, 10**6), st.integers(0, 10**6))
def test_what_all_links_promise(links: BoundLinks, src: int, dst: int, small: int, more: int) -> None:
    hops = links.hops(src, dst)
    time = links.time(src, dst, small, 5.0)
    assert time <= links.time(src, dst, small + more, 5.0)
    if src == dst:
        assert hops == () and time == 0
    elif hops:
        assert math.isfinite(time)
        assert hops[0][1] == src and hops[-1][2] == dst
        assert all(a[2] == b[1] for a, b in pairwise(hops))
    else:
        assert time == math.inf
    if src < 6 and dst < 6:
        matrix = links.matrix(np.array([src, dst]), small) if src != dst else np.zeros((2, 2))
        assert matrix[0, 1] == pytest.approx(time)
        # A neighbour is always reached, though maybe faster over another; who is reached at once is one.
        near = dst in links.neighbours(src)
        assert (near or len(hops) != 1) and (hops or not near)


def test_devices_share_the_link_that_they_pass_to_the_cloud() -> None:
    bound = PerTier(TierLink(100.0, 1.0), TierLink(1000.0, 2.0), shared_backhaul=True).bind(
        Shape(4, 2, 1, home=np.array([0, 0, 0, 1]))
    )
    # 1 + 200/100 to the edge, then 2 + 200/1000 at a third of the rate: three devices start at edge 4.
    assert bound.time(0, 6, 200, 0.0) == pytest.approx(3 + 2 + 3 * 0.2)
    assert bound.time(6, 0, 200, 0.0) == pytest.approx(3 + 2 + 3 * 0.2)
    assert bound.time(3, 6, 200, 0.0) == pytest.approx(3 + 2 + 0.2)
    assert bound.time(4, 6, 200, 0.0) == pytest.approx(2.2)  # the edge itself has all of it


def write(folder: Path, rows: str) -> Path:
    file = folder / "links.csv"
    file.write_text("device,time,bandwidth,latency\n" + rows)
    return file


def test_transfers_follow_the_bandwidth(tmp_path: Path) -> None:
    rows = "0,0,100,1\n0,10,0,1\n0,20,50,2\n1,0,10,0\n"
    bound = Trace(write(tmp_path, rows), access=PerTier(edge_cloud=TierLink(1000.0))).bind(Shape(2, 1, 0))
    # From t=4, 1 s latency: 500 B until 10 at 100 B/s, nothing until 20, 100 B more in 2 s: 18 s.
    assert bound.time(0, 2, 600, 4.0) == 18.0
    assert bound.time(2, 0, 600, 4.0) == 18.0
    # Beyond the edge: 600/1000 s more. Device 1 has a link of its own.
    assert bound.time(0, 3, 600, 4.0) == pytest.approx(18.6)
    assert bound.time(1, 2, 100, 4.0) == 10.0
    assert bound.time(0, 1, 10, 0.0) == math.inf and len(bound.neighbours(0)) == 0


def test_a_link_that_never_returns(tmp_path: Path) -> None:
    bound = Trace(write(tmp_path, "0,0,10,0\n0,5,0,0\n")).bind(Shape(1, 1, 0))
    assert bound.time(0, 1, 50, 0.0) == 5.0
    assert bound.time(0, 1, 51, 0.0) == math.inf


def test_cycle(tmp_path: Path) -> None:
    bound = Trace(write(tmp_path, "3,0,10,0\n8,0,20,0\n"), cycle=True).bind(Shape(4, 1, 0))
    assert [bound.time(d, 4, 20, 0.0) for d in range(4)] == [2.0, 1.0, 2.0, 1.0]


def test_bad_rows(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="line 2: bandwidth"):
        Trace(write(tmp_path, "0,0,-1,0\n")).bind(Shape(1, 1, 0))
