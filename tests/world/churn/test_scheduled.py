"""Scripts of joins, leaves and deaths, and several causes together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ConfigError, WorldError
from espalier.world import Shape
from espalier.world.churn import ChurnEvent, Combined, Failures, Scheduled, TwoState

# Devices 0 … 2, edges 3 and 4, the cloud 5.
SHAPE = Shape(3, 2, 0)


def script(*rows: tuple[float, int | str, str]) -> Scheduled:
    return Scheduled(tuple(ChurnEvent(*row) for row in rows))  # type: ignore[arg-type]


def test_a_script() -> None:
    rows = ((9, 1, "leave"), (4, 0, "join"), (9, "edge:1", "die"), (12, "cloud", "die"), (20, "cloud", "restart"))
    bound = script(*rows).bind(SHAPE)
    # Device 0 joins later, so it is not there at first.
    assert bound.initial().tolist() == [False, True, True]
    part = bound.window(0, 100)
    assert part.time.tolist() == [4, 9, 9, 12, 20]
    assert part.device.tolist() == [0, 1, 4, 5, 5]
    assert part.alive.tolist() == [True, False, False, False, True]
    assert part.silent.tolist() == [False, False, True, True, False]
    # The cloud restarts without its state, and so lost it when it died; the edge did not.
    assert part.forgets.tolist() == [False, False, False, True, True]
    assert bound.window(4, 9).device.tolist() == [0]


def test_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "churn.csv"
    file.write_text("time,device,event\n5,2,die\n8.5,2,join\n6,edge:0,leave\n")
    part = Scheduled(file=file).bind(SHAPE).window(0, 10)
    assert part.device.tolist() == [2, 3, 2]
    assert part.silent.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((1, 3, "leave"), "host 3"),
        ((1, "edge:2", "leave"), "'edge:2'"),
        ((1, "clod", "leave"), "'clod'"),
        ((1, -1, "leave"), "host -1"),
    ],
)
def test_unknown_hosts(row: tuple[float, int | str, str], says: str) -> None:
    with pytest.raises(WorldError, match=says):
        script(row).bind(SHAPE)


def test_events_must_alternate() -> None:
    with pytest.raises(WorldError, match="host 1 cannot leave at 7 s: it is not there"):
        script((5, 1, "die"), (7, 1, "leave")).bind(SHAPE)
    with pytest.raises(WorldError, match="host 5 cannot join at 3 s: it is there already"):
        script((3, "cloud", "join")).bind(SHAPE)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not both"):
        Scheduled()
    with pytest.raises(ConfigError, match="not both"):
        Scheduled((ChurnEvent(1, 0, "leave"),), tmp_path / "x.csv")
    with pytest.raises(ConfigError, match="Did you mean 'leave'"):
        ChurnEvent(1, 0, "leav")  # type: ignore[arg-type]
    file = tmp_path / "bad.csv"
    file.write_text("time,device,event\n1,0,dies\n")
    with pytest.raises(WorldError, match="Did you mean 'die'"):
        Scheduled(file=file).bind(SHAPE)


class TestCombined:
    def test_there_when_all_causes_let_it_be(self) -> None:
        # Cause A: device 0 is away in [2, 6); cause B: in [4, 9). Together: away in [2, 9).
        both = Combined((script((2, 0, "leave"), (6, 0, "join")), script((4, 0, "die"), (9, 0, "join"))))
        bound = both.bind(SHAPE)
        part = bound.window(0, 50)
        assert part.time.tolist() == [2, 9] and part.alive.tolist() == [False, True]
        assert part.silent.tolist() == [False, False]
        # A window that begins in the middle knows what went before.
        assert bound.window(5, 50).time.tolist() == [9]

    def test_late_for_one_cause_absent_for_both(self) -> None:
        bound = Combined((script((3, 0, "join")), script((5, 0, "join")))).bind(SHAPE)
        assert bound.initial().tolist() == [False, True, True]
        assert bound.window(0, 9).time.tolist() == [5]

    def test_a_death_for_ever_ends_it(self) -> None:
        bound = Combined((TwoState(mean_stay=1), script((2, 0, "die")))).bind(SHAPE)
        assert not (bound.window(2, 1000).device == 0).any() or bound.window(2, 1000).time[0] == 2

    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 1000), st.floats(0, 150))
    def test_equals_the_plain_way(self, seed: int, cut: float) -> None:
        shape = Shape(8, 1, seed)
        parts = (TwoState(mean_stay=15), Failures(rate=0.05, restart=4, hosts=("devices", "edges")))
        bound = Combined(parts).bind(shape)
        late, early = bound.window(cut, 200), bound.window(0, cut)
        time, device = np.concatenate((early.time, late.time)), np.concatenate((early.device, late.device))
        alive = np.concatenate((early.alive, late.alive))
        # The plain way: replay all transitions of all causes one by one.
        apart = [part.bind(shape) for part in parts]
        states = [np.append(b.initial(), [True, True]) for b in apart]
        every = sorted((t, d, i, a) for i, b in enumerate(apart) for t, d, a in zip(*b.window(0, 200)[:3], strict=True))
        expected = []
        for t, d, i, a in every:
            was = all(s[d] for s in states)
            states[i][d] = a
            if all(s[d] for s in states) != was:
                expected.append((t, d, not was))
        assert list(zip(time.tolist(), device.tolist(), alive.tolist(), strict=True)) == expected

    def test_needs_two(self) -> None:
        with pytest.raises(ConfigError, match="at least two"):
            Combined((TwoState(),))
