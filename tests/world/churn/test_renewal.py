"""Devices that come and go, hosts that fail."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ConfigError, WorldError
from espalier.world import Shape, Transitions
from espalier.world.churn import Churn, Failures, NoChurn, TwoState
from espalier.world.churn.renewal import Renewal

SHAPE = Shape(2000, 3, seed=4)


def same(a: Transitions, b: Transitions) -> bool:
    return all((x == y).all() and len(x) == len(y) for x, y in zip(a, b, strict=True))


def test_nobody_comes_or_goes() -> None:
    for churn in (NoChurn(), TwoState(working=1.0)):
        bound = churn.bind(SHAPE)
        assert bound.still and bound.initial().all()
        assert len(bound.window(0, 1e9).time) == 0


def test_seven_in_ten_work_at_first_and_in_the_long_run() -> None:
    bound = TwoState(working=0.7, mean_stay=60).bind(SHAPE)
    there = bound.initial().copy()
    # 2000 devices scatter by √(.21/2000) = .010.
    assert there.mean() == pytest.approx(0.7, abs=0.035)
    shares = []
    for t in range(0, 1500, 50):
        part = bound.window(t, t + 50)
        for device, alive in zip(part.device, part.alive, strict=True):
            assert there[device] != alive
            there[device] = alive
        shares.append(there.mean())
    assert np.mean(shares) == pytest.approx(0.7, abs=0.02)


def test_stays_have_their_means() -> None:
    bound = TwoState(working=0.7, mean_stay=60).bind(SHAPE)
    assert isinstance(bound, Renewal)
    devices, there = np.arange(2000), bound.initial()
    # Sojourn 0 of a device that is there at first and sojourn 1 of one that is not are stays of mean
    # 60 s; away it is for 60·.3/.7 = 25.7 s.
    stays = bound.sojourns(devices, np.where(there, 0, 1))
    away = bound.sojourns(devices, np.where(there, 1, 0))
    assert stays.mean() == pytest.approx(60, rel=0.08)
    assert away.mean() == pytest.approx(25.7, rel=0.08)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 900), min_size=2, max_size=6), st.integers(0, 5))
def test_any_windows_in_any_order_give_the_same(cuts: list[float], seed: int) -> None:
    shape = Shape(40, 1, seed)
    whole = TwoState(mean_stay=20).bind(shape).window(0, 900)
    bound = TwoState(mean_stay=20).bind(shape)
    bounds = sorted({0.0, 900.0, *cuts})
    parts = {i: bound.window(a, b) for i, (a, b) in reversed(list(enumerate(pairwise(bounds))))}
    joined = Transitions(*(np.concatenate([parts[i][c] for i in sorted(parts)]) for c in range(5)))
    assert same(joined, whole)
    assert (np.diff(whole.time) >= 0).all()


def test_many_small_spans_give_what_one_large_gives() -> None:
    bound = TwoState(mean_stay=20).bind(Shape(300, 0, 1))
    other = TwoState(mean_stay=20).bind(Shape(300, 0, 1))
    assert isinstance(other, Renewal)
    other._span = 7.3
    assert same(bound.window(13, 400), other.window(13, 400))
    assert same(bound.window(5, 9), other.window(5, 9))


def test_only_leaves_can_be_silent() -> None:
    part = TwoState(silent=0.25).bind(SHAPE).window(0, 200)
    assert not part.silent[part.alive].any()
    assert part.silent[~part.alive].mean() == pytest.approx(0.25, abs=0.03)
    assert not TwoState().bind(SHAPE).window(0, 200).silent.any()


def test_there_is_no_window_without_end() -> None:
    with pytest.raises(WorldError, match="finite"):
        TwoState().bind(SHAPE).window(0, math.inf)


class TestFailures:
    def test_hosts_that_never_return(self) -> None:
        bound = Failures(rate=1 / 100, hosts=("devices",)).bind(SHAPE)
        assert bound.initial().all()
        part = bound.window(0, 100)
        # After one mean life 1 - 1/e = .632 have failed, each once, without a word.
        assert len(part.device) / 2000 == pytest.approx(0.632, abs=0.03)
        assert len(set(part.device.tolist())) == len(part.device)
        assert part.silent.all() and not part.alive.any()

    def test_edges_and_the_cloud_restart(self) -> None:
        bound = Failures(rate=0.1, hosts=("edges", "cloud"), restart=5.0, keep_state=False).bind(SHAPE)
        part = bound.window(0, 500)
        assert set(part.device.tolist()) == {2000, 2001, 2002, 2003}
        assert bound.initial().all() and part.forgets.all()
        for host in range(2000, 2004):
            mine = part.rows(np.flatnonzero(part.device == host))
            assert not mine.alive[0] and (mine.alive[1:] != mine.alive[:-1]).all()
            gaps = np.diff(mine.time)[~mine.alive[:-1]]
            assert gaps == pytest.approx(np.full(len(gaps), 5.0))

    def test_announced_with_state(self) -> None:
        part = Failures(0.1, restart=1, silent=False).bind(Shape(5, 0, 0)).window(0, 100)
        assert not part.silent.any() and not part.forgets.any() and len(part.time) > 10


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "two_state", "working": 0},
        {"kind": "two_state", "mean_stay": 0},
        {"kind": "two_state", "silent": 1.5},
        {"kind": "failures", "rate": 0},
        {"kind": "failures", "rate": 1, "restart": 0},
        {"kind": "failures", "rate": 1, "hosts": []},
        {"kind": "failures", "rate": 1, "hosts": ["edge"]},
    ],
)
def test_refusals(table: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"churn\.\w+"):
        Churn.build(table)
