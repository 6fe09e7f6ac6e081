"""Messages that go wrong, links that vanish."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.world import Fate, Faults, Shape, Tier
from espalier.world.faults import NoFaults, Odds, Outage, RandomFaults

SHAPE = Shape(10, 2, 0)


def test_none() -> None:
    bound = NoFaults().bind(SHAPE)
    assert bound.fate(Tier.DEV_EDGE, 3) == Fate(False, False, 0.0, False)
    assert bound.back(0, 10, 5.0) == 5.0


def test_odds_are_met_tier_by_tier() -> None:
    odds = Odds(loss=0.1, duplicate=0.05, reorder=0.2, corrupt=0.02, delay=3.0)
    bound = RandomFaults(dev_edge=odds).bind(SHAPE)
    fates = [bound.fate(Tier.DEV_EDGE, n) for n in range(20_000)]
    assert np.mean([f.lost for f in fates]) == pytest.approx(0.1, abs=0.01)
    assert np.mean([f.duplicated for f in fates]) == pytest.approx(0.05, abs=0.007)
    assert np.mean([f.corrupted for f in fates]) == pytest.approx(0.02, abs=0.005)
    held = np.array([f.delay_extra for f in fates])
    assert (held > 0).mean() == pytest.approx(0.2, abs=0.015)
    assert held.max() < 3.0 and held[held > 0].mean() == pytest.approx(1.5, abs=0.06)
    assert bound.fate(Tier.DEV_DEV, 3) == bound.fate(Tier.EDGE_CLOUD, 4) == Fate(False, False, 0.0, False)


def test_a_message_s_fate_is_its_own() -> None:
    a, b = (RandomFaults(dev_dev=Odds(loss=0.5)).bind(SHAPE) for _ in range(2))
    assert [a.fate(Tier.DEV_DEV, n) for n in range(50)] == [b.fate(Tier.DEV_DEV, n) for n in range(49, -1, -1)][::-1]


def test_outages_by_script() -> None:
    outages = (Outage(0, 5.0, 8.0, b=10), Outage(10, 7.5, 9.0), Outage(3, 20.0, math.inf))
    bound = RandomFaults(outages=outages).bind(SHAPE)
    # The first ends at 8 while the second, of all the edge's links, goes on until 9.
    assert bound.back(0, 10, 4.9) == 4.9
    assert bound.back(0, 10, 5.0) == bound.back(10, 0, 6.0) == 9.0
    assert bound.back(1, 10, 6.0) == 6.0 and bound.back(1, 10, 8.0) == 9.0
    assert bound.back(0, 11, 6.0) == 6.0
    assert bound.back(3, 11, 21.0) == math.inf


@given(st.integers(0, 12), st.integers(0, 12), st.floats(0, 5000))
def test_vanishing_links_come_back(src: int, dst: int, now: float) -> None:
    bound = RandomFaults(vanish_every=50.0, vanish_mean=20.0).bind(SHAPE)
    back = bound.back(src, dst, now)
    assert now <= back < now + 500
    assert bound.back(dst, src, now) == back and bound.back(src, dst, back) == back


def test_how_often_links_are_gone() -> None:
    bound = RandomFaults(vanish_every=100.0, vanish_mean=5.0).bind(SHAPE)
    gone = [bound.back(d, 10, t) > t for d in range(10) for t in range(0, 20_000, 17)]
    assert np.mean(gone) == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"kind": "random", "dev_edge": {"loss": 1}}, "faults.odds.loss"),
        ({"kind": "random", "dev_edge": {"los": 0.1}}, "Did you mean 'loss'?"),
        ({"kind": "random", "outages": [{"a": 0, "start": 5, "end": 5}]}, "later than start"),
        ({"kind": "random", "outages": [{"a": 0, "start": 5}]}, "end must be given"),
        ({"kind": "random", "vanish_every": 5, "vanish_mean": 5}, "vanish_mean"),
        ({"kind": "random", "outages": {"a": 0}}, "a list"),
    ],
)
def test_refusals(table: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        Faults.build(table)
    assert says in str(error.value)
