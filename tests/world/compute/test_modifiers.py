"""Noise, fluctuation, busy spells and redraws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.world import Shape
from espalier.world.compute import Busy, Compute, Constant, Fluctuating, Noise, Redrawn, Throttled, Uniform
from tests.world.compute import seconds_per_batch

SHAPE = Shape(50, 5, seed=3)


def test_noise_is_lognormal_per_job() -> None:
    bound = Noise(Constant(2.0), sigma=0.3).bind(SHAPE)
    factors = np.array([bound.duration(7, 1, 0.0, job) / 2.0 for job in range(4000)])
    assert np.log(factors).mean() == pytest.approx(0, abs=0.02)
    assert np.log(factors).std() == pytest.approx(0.3, abs=0.015)
    # What the device estimates has no noise, and a job has its own whatever was asked before.
    assert bound.nominal(7, 3, 0.0) == 6.0
    assert bound.duration(7, 1, 99.0, 11) / 2.0 == factors[11]


def test_noise_scales_with_the_work() -> None:
    bound = Noise(Constant(2.0)).bind(SHAPE)
    assert bound.duration(1, 10, 0.0, 0) == pytest.approx(10 * bound.duration(1, 1, 0.0, 0))


def test_fluctuation_integrates_exactly() -> None:
    bound = Fluctuating(Constant(1.0), 0.5, 1.5, period=20.0).bind(SHAPE)
    power = [1.0 / bound.pace(4, 20.0 * k)[0] for k in range(4)]
    assert all(0.5 <= p < 1.5 for p in power) and len(set(power)) == 4
    # From t=15: 5 s at power 0 do 5·p0 batches, 20 s at power 1 do 20·p1, the rest is done at power 2.
    done = 5 * power[0] + 20 * power[1]
    assert bound.duration(4, done + 3, 15.0, 0) == pytest.approx(25 + 3 / power[2])
    assert bound.nominal(4, 6, 15.0) == pytest.approx(6 / power[0])


def test_busy_spells_pause() -> None:
    bound = Busy(Constant(1.0), mean=10, every=100).bind(SHAPE)
    each, begin = bound.pace(2, 0.0)
    assert each == 1.0
    paused, end = bound.pace(2, begin)
    assert paused == math.inf and end > begin
    # Work that would end 1 s after the spell begins ends 1 s after it ends.
    assert bound.duration(2, begin + 1, 0.0, 0) == pytest.approx(end + 1)
    # Its own estimate knows nothing of spells, even in the middle of one.
    assert bound.nominal(2, 5, (begin + end) / 2) == 5.0


def test_redrawn_per_global_round() -> None:
    bound = Redrawn(Uniform(1, 2)).bind(SHAPE)
    rounds = [seconds_per_batch(bound.at(epoch), 50) for epoch in range(3)]
    assert (seconds_per_batch(bound, 50) == rounds[0]).all()
    assert not np.isclose(rounds[0], rounds[1]).any()
    assert (seconds_per_batch(bound.at(2).at(1), 50) == rounds[1]).all()
    assert bound.at(1).duration(3, 4, 0.0, 0) == 4 * rounds[1][3]


def test_modifiers_around_a_redraw_follow_it() -> None:
    bound = Noise(Fluctuating(Redrawn(Uniform(1, 2)))).bind(SHAPE)
    inner = Fluctuating(Redrawn(Uniform(1, 2))).bind(SHAPE)
    assert bound.at(5).nominal(3, 4, 7.0) == inner.at(5).nominal(3, 4, 7.0)
    assert bound.at(5).load(3, 9) == bound.load(3, 9)


def test_all_together_in_any_order_of_asking() -> None:
    table = {
        "kind": "noise",
        "of": {"kind": "busy", "of": {"kind": "fluctuating", "of": {"kind": "uniform", "low": 0.1, "high": 0.5}}},
    }
    calls = [(d, b, t, j) for d in range(3) for b, t, j in ((5, 0.0, 0), (90, 33.0, 1), (400, 1e4, 2))]
    first, second = Compute.build(table).bind(SHAPE), Compute.build(table).bind(SHAPE)
    forwards = [first.duration(*c) for c in calls]
    backwards = [second.duration(*c) for c in reversed(calls)][::-1]
    assert forwards == backwards


@settings(max_examples=60)
@given(st.floats(0, 5000), st.floats(0.01, 300), st.floats(0.01, 300), st.integers(0, 49))
def test_more_work_never_takes_less(start: float, work: float, more: float, device: int) -> None:
    bound = Busy(Fluctuating(Uniform(0.1, 1.0))).bind(SHAPE)
    less, all_ = bound.duration(device, work, start, 0), bound.duration(device, work + more, start, 0)
    assert 0 < less <= all_ < math.inf
    rest = bound.duration(device, more, start + less, 0)
    assert all_ == pytest.approx(less + rest, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "noise", "of": "constant", "sigma": -1},
        {"kind": "fluctuating", "of": "constant", "low": 0},
        {"kind": "fluctuating", "of": "constant", "period": 0},
        {"kind": "busy", "of": "constant", "mean": 100, "every": 100},
    ],
)
def test_refusals(table: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"compute\.\w+ = "):
        Compute.build(table)


FOUR = Shape(4, 1, seed=3)


def test_throttled_devices_say_one_thing_and_do_another() -> None:
    compute = Throttled(Constant(0.5), devices=(1,), factor=3.0).bind(FOUR)
    assert [compute.nominal(d, 4, 0.0) for d in (0, 1)] == [2.0, 2.0]
    assert [compute.duration(d, 4, 0.0, 0) for d in (0, 1)] == pytest.approx([2.0, 6.0])
    assert seconds_per_batch(compute, 4).tolist() == [0.5] * 4


def test_throttling_multiplies_with_noise_and_survives_a_redraw() -> None:
    noisy = Noise(Constant(0.5), 0.3).bind(FOUR)
    both = Throttled(Noise(Constant(0.5), 0.3), devices=(1,), factor=2.0).bind(FOUR)
    assert both.duration(1, 4, 0.0, 7) == pytest.approx(2 * noisy.duration(1, 4, 0.0, 7))
    redrawn = Throttled(Redrawn(Uniform(0.1, 0.9)), devices=(1,), factor=2.0).bind(FOUR)
    assert redrawn.at(5).duration(1, 1, 0.0, 0) == pytest.approx(2 * redrawn.at(5).nominal(1, 1, 0.0))
    assert redrawn.at(5).nominal(1, 1, 0.0) != redrawn.at(6).nominal(1, 1, 0.0)


def test_a_factor_is_positive() -> None:
    with pytest.raises(ConfigError, match="factor"):
        Throttled(Constant(0.5), devices=(1,), factor=0.0)
