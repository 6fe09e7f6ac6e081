"""Shared uplinks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.world import Shape
from espalier.world.links import Graph, PerTier, Shared, TierLink, equal_share_finish, time_shared_finish


def test_the_specs_vector() -> None:
    # r = (1, 2, 6), u = 2: 1+2 = 3, max(3,2)+2 = 5, max(5,6)+2 = 8. Equal shares: 6 + 3·2 = 12.
    assert time_shared_finish([1, 2, 6], [2, 2, 2]).tolist() == [3, 5, 8]
    assert equal_share_finish([1, 2, 6], [2, 2, 2]).max() == 12


def test_order_given_is_order_returned() -> None:
    assert time_shared_finish([6, 1, 2], 2).tolist() == [8, 3, 5]
    assert time_shared_finish([], []).tolist() == []


jobs = st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20)), min_size=1, max_size=5)


@given(jobs)
def test_earliest_ready_first_ends_earliest(rows: list[tuple[float, float]]) -> None:
    ready, upload = (np.array(column) for column in zip(*rows, strict=True))

    def makespan(order: tuple[int, ...]) -> float:
        at = 0.0
        for i in order:
            at = max(at, ready[i]) + upload[i]
        return at

    finish = time_shared_finish(ready, upload)
    assert finish.max() <= min(makespan(o) for o in itertools.permutations(range(len(rows)))) + 1e-9
    assert finish.max() <= equal_share_finish(ready, upload).max() + 1e-9 or len(set(upload)) > 1
    assert (finish >= ready + upload - 1e-9).all()


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
