"""Devices that take longer than they say."""

from __future__ import annotations

import pytest

from espalier.core.errors import ConfigError
from espalier.world.compute import Constant, Noise, Redrawn, Throttled, Uniform
from espalier.world.protocols import Shape

SHAPE = Shape(4, 1, seed=3)


def test_throttled_devices_say_one_thing_and_do_another() -> None:
    compute = Throttled(Constant(0.5), devices=(1,), factor=3.0).bind(SHAPE)
    assert [compute.nominal(d, 4, 0.0) for d in (0, 1)] == [2.0, 2.0]
    assert [compute.duration(d, 4, 0.0, 0) for d in (0, 1)] == pytest.approx([2.0, 6.0])
    assert compute.units().tolist() == [0.5] * 4


def test_throttling_multiplies_with_noise_and_survives_a_redraw() -> None:
    noisy = Noise(Constant(0.5), 0.3).bind(SHAPE)
    both = Throttled(Noise(Constant(0.5), 0.3), devices=(1,), factor=2.0).bind(SHAPE)
    assert both.duration(1, 4, 0.0, 7) == pytest.approx(2 * noisy.duration(1, 4, 0.0, 7))
    redrawn = Throttled(Redrawn(Uniform(0.1, 0.9)), devices=(1,), factor=2.0).bind(SHAPE)
    assert redrawn.at(5).duration(1, 1, 0.0, 0) == pytest.approx(2 * redrawn.at(5).nominal(1, 1, 0.0))
    assert redrawn.at(5).nominal(1, 1, 0.0) != redrawn.at(6).nominal(1, 1, 0.0)


def test_a_factor_is_positive() -> None:
    with pytest.raises(ConfigError, match="factor"):
        Throttled(Constant(0.5), devices=(1,), factor=0.0)
