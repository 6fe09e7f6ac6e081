"""Who may aggregate."""

from __future__ import annotations

import pytest

from espalier.core.errors import ConfigError, WorldError
from espalier.world import Capability, Shape
from espalier.world.capability import Everyone, Fraction, Listed


def test_masks() -> None:
    shape = Shape(10, 0, 0)
    assert Everyone().bind(shape).may_aggregate().all()
    assert Fraction(0.3).bind(shape).may_aggregate().sum() == 3
    assert Fraction(0.01).bind(shape).may_aggregate().sum() == 1
    assert Listed((2, 5)).bind(shape).may_aggregate().nonzero()[0].tolist() == [2, 5]
    assert (Fraction(0.3).bind(shape).may_aggregate() == Fraction(0.3).bind(shape).may_aggregate()).all()


def test_a_mask_cannot_be_changed() -> None:
    mask = Everyone().bind(Shape(3, 0, 0)).may_aggregate()
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = False


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="fraction"):
        Fraction(0)
    with pytest.raises(ConfigError, match="at least one"):
        Capability.build({"kind": "listed", "devices": []})
    with pytest.raises(WorldError, match="has 10: must be a device, 0 … 9"):
        Listed((10,)).bind(Shape(10, 0, 0))
