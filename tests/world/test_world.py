"""Whole worlds: the papers' presets, purity, a million devices."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import espalier.world
from espalier.core.errors import ConfigError, WorldError
from espalier.core.method import load_methods
from espalier.methods.cflhkd.world import paper_world as cflhkd
from espalier.methods.csahfl.world import paper_world as csahfl
from espalier.methods.d2d.world import paper_world as d2d
from espalier.methods.easf.world import paper_world as easf
from espalier.world import BoundWorld, Concept, Shape, Tier, World, demo, everyday
from espalier.world.churn import TwoState
from espalier.world.compute import Busy, Fluctuating, Noise, TruncatedNormal
from espalier.world.links import BoundGraph, PerTier, TierLink
from espalier.world.mobility import Markov
from espalier.world.world import PRESETS, register_preset
from tests.world.compute import seconds_per_batch


def fleet(n: int = 60, edges: int = 6, seed: int = 0) -> Shape:
    return Shape(n, edges, seed, batches=np.full(n, 5), model_bytes=248_024)


def facts(world: BoundWorld) -> list[Any]:
    """Ask a world a bit of everything, as plain values."""
    n, now = world.shape.n_devices, 37.0
    devices = np.arange(n)
    links, compute = world.links.at(3), world.compute.at(3)
    churn = world.churn.window(10, 80)
    return [
        seconds_per_batch(world.compute, n).tolist(),
        [compute.duration(d, 20, now, d % 4) for d in range(n)],
        [links.time(d, world.shape.cloud, 1000, now) for d in range(n)],
        links.matrix(devices[:8], 10_000).tolist(),
        world.mobility.moves(devices, devices % 3, devices % world.shape.n_edges).tolist(),
        [column.tolist() for column in churn],
        world.churn.initial().tolist(),
        world.drift.concepts(60, now)[1].tolist(),
        world.may_aggregate.tolist(),
        [world.faults.fate(Tier.DEV_EDGE, m) for m in range(5)],
    ]


load_methods()
WORLDS = [
    *((name, build()) for name, build in PRESETS.items()),
    ("csahfl mobile", csahfl(stay=0.5)),
    ("easf case", easf(case_study=True)),
    ("d2d 3", d2d("3", intermittent=True)),
    ("cflhkd labels", cflhkd("labels")),
    ("faulty", World.build({"faults": {"kind": "random", "dev_edge": {"loss": 0.3}}, "churn": "two_state"})),
]


@pytest.mark.parametrize(("name", "world"), WORLDS, ids=[name for name, _ in WORLDS])
class TestEveryWorld:
    def test_is_the_same_for_all_who_ask(self, name: str, world: World) -> None:
        used = world.bind(fleet())
        first = facts(used)
        assert facts(used) == first
        assert facts(world.bind(fleet())) == first

    def test_survives_a_file_and_a_process(self, name: str, world: World) -> None:
        assert World.build(world.to_plain()) == world
        assert pickle.loads(pickle.dumps(world)) == world

    def test_times_are_times(self, name: str, world: World) -> None:
        bound = world.bind(fleet())
        assert (seconds_per_batch(bound.compute, 60) >= 0).all()
        for device in (0, 31):
            assert 0 <= bound.compute.duration(device, 10, 0.0, 0) < math.inf
            assert 0 <= bound.links.time(device, bound.shape.cloud, 10**6, 0.0) < math.inf


def test_seeds_differ() -> None:
    a, b = (demo().bind(fleet(seed=s)) for s in (0, 1))
    assert not np.isclose(seconds_per_batch(a.compute, 60), seconds_per_batch(b.compute, 60)).any()


def test_the_default_world_is_ideal() -> None:
    bound = World().bind(fleet())
    assert bound.compute.duration(0, 1000, 0.0, 0) == 0
    assert bound.links.time(0, bound.shape.cloud, 10**9, 0.0) == 0
    assert not bound.changes_in_time and bound.mobility.when == "never"
    assert bound.notice == 10.0 and not bound.links.relays


class TestPresets:
    def test_csahfl(self) -> None:
        bound = csahfl(stay=0.5).bind(Shape(200, 5, 0, np.full(200, 7)))
        # A training of E_max = 10 epochs of 7 batches takes the device's delay, 2 to 128 s (C8).
        delays = np.array([bound.compute.nominal(d, 70, 0.0) for d in range(200)])
        assert delays.min() >= 2 and delays.max() <= 128 and 50 < np.median(delays) < 77
        assert isinstance(csahfl(noise=0.3).compute, Noise)
        assert isinstance(csahfl().compute, TruncatedNormal)
        assert bound.mobility.when == "boundary"
        assert csahfl().bind(fleet()).mobility.when == "never"

    def test_csahfl_shares_of_c7(self) -> None:
        # Able to run E_max within T_θ = median + α·IQR: α=.5 → .75, 1 → .92, 1.5 → 1.
        compute = csahfl(noise=0).bind(Shape(20_000, 5, 0, np.ones(20_000, int))).compute
        delays = seconds_per_batch(compute, 20_000) * 10
        q1, median, q3 = np.percentile(delays, [25, 50, 75])
        shares = [(delays <= median + alpha * (q3 - q1)).mean() for alpha in (0.5, 1.0, 1.5)]
        assert shares == pytest.approx([0.75, 0.92, 1.0], abs=0.02)

    def test_easf(self) -> None:
        bound = easf().bind(Shape(100, 0, 0, model_bytes=10**6))
        assert isinstance(bound.links, BoundGraph)
        assert bound.churn.initial().mean() == pytest.approx(0.7, abs=0.12)
        assert bound.changes_in_time and bound.links.relays and bound.may_aggregate.all()
        case = easf(case_study=True).bind(Shape(100, 0, 0, model_bytes=10**6))
        assert case.may_aggregate.sum() == 50
        assert case.links.matrix(np.arange(9), 10**6).sum() > bound.links.matrix(np.arange(9), 10**6).sum()
        assert easf(dynamic=False).bind(Shape(9, 0, 0)).churn.initial().all()

    def test_d2d(self) -> None:
        shape = Shape(20, 0, 0, model_bytes=248_024)
        # Table 4: 10 batches per step, the magnet task 80, Set 3 5 to 15, drawn anew per round.
        assert seconds_per_batch(d2d("1b").bind(shape).compute, 20) == pytest.approx(np.full(20, 0.1))
        assert seconds_per_batch(d2d("2", "magnet").bind(shape).compute, 20) == pytest.approx(np.full(20, 1 / 80))
        third = d2d("3").bind(shape)
        assert (seconds_per_batch(third.compute.at(1), 20) != seconds_per_batch(third.compute.at(2), 20)).any()
        assert not np.isinf(third.links.matrix(np.arange(20), 1)).any()
        assert third.links.time(0, 20, 10**9, 0.0) == 0.0

    def test_cflhkd(self) -> None:
        bound = cflhkd("labels").bind(fleet())
        assert bound.drift.concepts(50, 0.0)[0] == [Concept(labels=(5, 6, 7, 8, 9))]
        assert cflhkd("features").bind(fleet()).drift.concepts(100, 0.0)[0][0].brightness == -0.5
        with pytest.raises(ConfigError, match="Did you mean 'labels'"):
            cflhkd("label")  # type: ignore[arg-type]

    def test_a_name_has_one_owner(self) -> None:
        with pytest.raises(ConfigError, match="a world preset 'csahfl' already"):
            register_preset("csahfl")(demo)

    def test_from_a_table(self) -> None:
        assert World.build("demo") == World.build({"preset": "demo"}) == demo()
        table = {"preset": {"name": "csahfl", "stay": 0.5}, "churn": "two_state", "notice": 3}
        expected = replace(csahfl(stay=0.5), churn=TwoState(), notice=3.0)
        assert World.build(table) == expected
        assert World.build(expected.to_plain()) == expected

    def test_a_table_that_speaks_of_neither_speed_nor_links_has_those_of_every_day(self) -> None:
        assert World.build({}) == everyday()
        assert World.build({"mobility": {"kind": "markov", "stay": 0.5}}) == replace(
            everyday(), mobility=Markov(stay=0.5)
        )
        assert World.build({"preset": "ideal", "notice": 3.0}) == World(notice=3.0)
        assert World.build({"links": "uniform"}) == World()
        assert World.build(World().to_plain()) == World()

    @pytest.mark.parametrize(
        ("value", "says"),
        [
            ("csahf", "Did you mean 'csahfl'?"),
            (3, "world.preset = 3"),
            ({"stay": 1}, "world.preset = None"),
            ({"name": "csahfl", "sty": 1}, "Did you mean 'stay'?"),
            ({"name": "csahfl", "stay": "x"}, "world.preset.stay = 'x': must be a number"),
            ({"name": "d2d", "experiment": "4"}, "world.preset.experiment = '4'"),
            ({"name": "ideal", "x": 1}, "none besides name"),
        ],
    )
    def test_unknown_presets(self, value: object, says: str) -> None:
        with pytest.raises(ConfigError) as error:
            World.build({"preset": value})
        assert says in str(error.value)


def test_shape_refusals() -> None:
    with pytest.raises(WorldError, match="at least one device"):
        Shape(0, 1, 0)
    with pytest.raises(WorldError, match=r"batches has shape \(3,\)"):
        Shape(4, 1, 0, batches=np.ones(3, dtype=np.int64))
    with pytest.raises(WorldError, match="home"):
        Shape(4, 1, 0, home=np.zeros(5, dtype=np.int32))


def test_a_million_devices() -> None:
    n = 1_000_000
    world = World(
        compute=Busy(Fluctuating(Noise(TruncatedNormal(63, 40, 2, 128)))),
        links=PerTier(TierLink((1e6, 1e7), (0.01, 0.05)), TierLink(1e8)),
        mobility=Markov(0.5),
        churn=TwoState(),
    )
    bound, devices = world.bind(Shape(n, 1000, 0)), np.arange(n)
    edges = bound.mobility.moves(devices, np.zeros(n, dtype=np.int64), devices % 1000)
    assert (edges == devices % 1000).mean() == pytest.approx(0.5, abs=0.005)
    assert bound.compute.duration(n - 1, 3, 100.0, 0) > 0
    assert bound.links.time(n - 1, n + 1000, 1000, 0.0, via=n + 7) > 0
    # 70 % there, each leaving after 60 s on average: 700,000 / 60 leaves a second, and as many joins.
    part = bound.churn.window(0.0, 5.0)
    assert len(part.time) == pytest.approx(2 * 5 * n * 0.7 / 60, rel=0.02)


def test_exports() -> None:
    for name in espalier.world.__all__:
        assert hasattr(espalier.world, name)
