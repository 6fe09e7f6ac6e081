"""The policies' base classes: how many children work in a round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.memory import Memory
from espalier.core.policies import Selection
from espalier.core.view import View
from tests.core.fakes import SmallFleet


def view(edge: int, round: int, children: int) -> View:
    found = View(0.0, edge, round, round, "", {}, None, Memory(), SmallFleet({}))  # type: ignore[arg-type]
    found.children = range(children)
    return found


def drawn(fraction: float, children: int, edge: int = 10, rounds: int = 60) -> list[int]:
    return [len(Selection(fraction).pick(view(edge, r, children))) for r in range(rounds)]


def test_a_whole_share_is_drawn_in_every_round() -> None:
    # 0.29 · 100 is 28.999999999999996 in floating point
    assert set(drawn(0.3, 100)) == {30} and set(drawn(0.29, 100)) == {29}


def test_small_edges_together_work_as_much_as_the_fleet_would() -> None:
    """40 devices at 8 edges, 30 %: 1.5 of 5 at each, so 12 of the fleet and not 8."""
    edges = [drawn(0.3, 5, edge=10 + k) for k in range(8)]
    assert all(set(one) == {1, 2} and sum(one) == 90 for one in edges)
    per_round = [sum(one) for one in zip(*edges, strict=True)]
    assert sum(per_round) / len(per_round) == 12
    # they round up in different rounds
    assert min(per_round) > 8 and max(per_round) < 16


@given(st.floats(0.05, 1.0), st.integers(1, 60), st.integers(0, 1000))
def test_a_rounded_share_is_next_to_the_share(fraction: float, children: int, first: int) -> None:
    counts = [Selection(fraction).wanted(view(10, first + r, children), children) for r in range(20)]
    share = fraction * children
    assert all(1 <= c <= children and (abs(c - share) < 1 + 1e-6 or c == 1) for c in counts)
    if share >= 1:
        assert sum(counts) == pytest.approx(20 * share, abs=1 + 1e-3)


def test_a_count_is_kept() -> None:
    assert [Selection(0.5, count=c).wanted(view(10, 0, 4), 4) for c in (0, 3, 9)] == [1, 3, 4]
