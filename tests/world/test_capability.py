"""Who may aggregate."""

from __future__ import annotations

import pytest

from espalier.core.errors import ConfigError, WorldError
from espalier.world import Capability, Shape
from espalier.world.capability import Everyone, Fraction, Listed


def test_masks() -> None:
    shape = Shape(10, 0, 0)
    assert Everyone().mask(shape).all()
    assert Fraction(0.3).mask(shape).sum() == 3
    assert Fraction(0.01).mask(shape).sum() == 1
    assert Listed((2, 5)).mask(shape).nonzero()[0].tolist() == [2, 5]
    assert (Fraction(0.3).mask(shape) == Fraction(0.3).mask(shape)).all()


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="fraction"):
        Fraction(0)
    with pytest.raises(ConfigError, match="at least one"):
        Capability.build({"kind": "listed", "devices": []})
    with pytest.raises(WorldError, match="has 10: must be a device, 0 … 9"):
        Listed((10,)).mask(Shape(10, 0, 0))
