"""Durations over changing speeds."""

from __future__ import annotations

import math
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.world.draws import Field
from espalier.world.piecewise import Bursts, Pace, seconds, step


def stairs(*rows: tuple[float, float]) -> object:
    """Return a pace from (from when, seconds per unit)."""
    times = [t for t, _ in rows]

    def pace(now: float) -> Pace:
        i = bisect_right(times, now) - 1
        return rows[i][1], times[i + 1] if i + 1 < len(times) else math.inf

    return pace


def test_worked_by_hand() -> None:
    # 2 s per unit until t=10, then paused until 15, then 1 s per unit. From t=4: 3 units until 10,
    # nothing until 15, the remaining 2 of 5 units until 17: 13 seconds.
    pace = stairs((0, 2.0), (10, math.inf), (15, 1.0))
    assert seconds(pace, 5, 4.0) == 13.0  # type: ignore[arg-type]


def test_constant_speed_is_the_plain_product() -> None:
    assert seconds(lambda t: (0.1, math.inf), 7, 123.456) == 7 * 0.1


@pytest.mark.parametrize(("work", "expected"), [(0, 0.0), (3, 6.0), (3.5, math.inf)])
def test_ends_of_the_line(work: float, expected: float) -> None:
    # Exactly the work that fits before a pause for ever is done; more is never done.
    pace = stairs((0, 2.0), (6, math.inf))
    assert seconds(pace, work, 0.0) == expected  # type: ignore[arg-type]


paces = st.lists(st.tuples(st.floats(0.1, 20), st.floats(0.1, 10)), min_size=1, max_size=6)


@given(paces, st.floats(0, 50), st.floats(0, 20), st.floats(0, 20))
def test_work_in_two_parts_takes_as_long_as_at_once(
    rows: list[tuple[float, float]], start: float, first: float, second: float
) -> None:
    at, table = 0.0, [(0.0, 1.0)]
    for gap, each in rows:
        at += gap
        table.append((at, each))
    pace = stairs(*table)
    a = seconds(pace, first, start)  # type: ignore[arg-type]
    b = seconds(pace, second, start + a)  # type: ignore[arg-type]
    assert seconds(pace, first + second, start) == pytest.approx(a + b, abs=1e-9)  # type: ignore[arg-type]


@given(st.floats(0, 1e9), st.floats(1e-3, 1e6))
def test_step_always_goes_on(now: float, period: float) -> None:
    index, turn = step(now, period)
    assert index * period <= now < turn == (index + 1) * period


@given(st.integers(0, 10**6), st.integers(1, 10**5))
def test_step_at_a_boundary_is_the_new_period(index: int, tenths: int) -> None:
    period = tenths / 10
    assert step(index * period, period)[0] == index


class TestBursts:
    bursts = Bursts(Field.of(0, "b"), mean=10.0, every=100.0)

    def test_state_follows_the_spells(self) -> None:
        begin, end = self.bursts.spell(3, 5)
        assert 300 <= begin < 400 and end > begin
        assert self.bursts.state((begin + end) / 2, 5)[0]
        assert self.bursts.state(begin, 5) == (True, end)

    def test_a_spell_that_crosses_its_window_goes_on(self) -> None:
        crossing = next(w for w in range(500) if self.bursts.spell(w, 1)[1] > (w + 1) * 100)
        _, end = self.bursts.spell(crossing, 1)
        # Its own window is over, but the spell is not.
        assert self.bursts.state((crossing + 1) * 100.0, 1) == (True, end)

    def test_share_of_time(self) -> None:
        busy, now = 0.0, 0.0
        while now < 100_000:
            state, change = self.bursts.state(now, 2)
            busy += (change - now) * state
            assert change > now
            now = change
        # 10 s per 100 s; 1000 spells of an exponential length scatter by 10/√1000 % = .3 %.
        assert busy / now == pytest.approx(0.10, abs=0.012)
