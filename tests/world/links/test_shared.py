"""Shared uplinks."""

from __future__ import annotations

import numpy as np
import pytest

from espalier.world import Shape
from espalier.world.links import Graph, PerTier, Shared, TierLink


def test_links_say_how_uploads_share() -> None:
    shape = Shape(4, 2, 0)
    inner = PerTier(TierLink(100.0), TierLink(1000.0))
    bound = Shared(inner, rate=50.0, discipline="equal_share").bind(shape)
    assert inner.bind(shape).uplink == "private" and bound.uplink == "equal_share"
    # Up: 200 B at the edge's 50 B/s, not the device's 100. Down and beyond the edge: as before.
    assert bound.time(0, 4, 200, 0.0) == 4.0
    assert bound.time(4, 0, 200, 0.0) == 2.0
    assert bound.time(0, 6, 200, 0.0, via=5) == pytest.approx(4.2)
    # A device slower than the uplink is its own bottleneck.
    assert Shared(inner, rate=500.0).bind(shape).time(0, 4, 200, 0.0) == 2.0
    assert Shared(inner).bind(Shape(4, 0, 0)).time(0, 4, 200, 0.0) == 2.0


def test_the_rest_is_the_inner_links() -> None:
    bound = Shared(Graph(degree=3), rate=1.0).bind(Shape(20, 1, 0))
    inner = Graph(degree=3).bind(Shape(20, 1, 0))
    assert (bound.matrix(np.arange(20), 10) == inner.matrix(np.arange(20), 10)).all()
    assert bound.neighbours(3).tolist() == inner.neighbours(3).tolist()
    assert bound.hops(0, 9) == inner.hops(0, 9)
    gone = frozenset({1})
    assert bound.without(gone).time(0, 9, 10, 0.0) == inner.without(gone).time(0, 9, 10, 0.0)
    assert bound.without(gone).uplink == "time_shared"
    assert bound.at(3) is bound
