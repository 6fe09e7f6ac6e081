"""What devices say of their links, and orders that take no time between devices."""

from __future__ import annotations

import numpy as np
import pytest

from espalier.core.errors import ConfigError
from espalier.world.links import Pairs, PerTier, Shared, Uniform
from espalier.world.shape import Shape

SHAPE = Shape(6, 1, seed=3, model_bytes=300)


def test_liars_report_all_their_links_scaled() -> None:
    links = Pairs((1.0, 5.0), liars=(2, 4), lie=0.5).bind(SHAPE)
    truth = links.matrix(np.arange(6), 300)
    for device in range(6):
        factor = 0.5 if device in (2, 4) else 1.0
        assert links.claims(device, truth[device]) == pytest.approx(factor * truth[device])
    # the lie is about what is said: messages take what they take
    assert links.time(2, 3, 300, 0.0) == pytest.approx(truth[2, 3])
    assert links.at(7).claims(2, np.array([4.0])) == pytest.approx([2.0])


def test_other_links_tell_the_truth_and_their_orders_take_time() -> None:
    for spec in (Uniform(), PerTier(), Shared(of=PerTier())):
        links = spec.bind(SHAPE)
        assert links.broadcast == "paid"
        assert links.claims(1, np.array([1.0, 2.0])) == pytest.approx([1.0, 2.0])
    assert Pairs().bind(SHAPE).broadcast == "free"
    assert Shared(of=Pairs()).bind(SHAPE).broadcast == "free"


def test_a_lie_is_a_factor() -> None:
    with pytest.raises(ConfigError, match="lie"):
        Pairs(lie=0.0)
