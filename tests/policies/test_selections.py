"""Power-of-choice, Oort and TiFL: their rules by hand, and what they draw."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.core.memory import Memory
from espalier.core.messages import ALL, Report
from espalier.core.policies import Selection
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.policies.selections import (
    ByTier,
    ByUtility,
    HighestLosses,
    highest,
    patience,
    tier_shares,
    tiers_by_time,
    utility,
)
from tests.core.fakes import SmallFleet

CLOUD = 10
FLEET = SmallFleet(dict.fromkeys(range(8), CLOUD))


def view(memory: Memory, number: int) -> View:
    return View(0.0, CLOUD, number, number, "", {ALL: Ref(0)}, None, memory, FLEET)


def arrival(child: int, loss: float, seconds: float) -> Arrival:
    report = Report(1, CLOUD, child, CLOUD, {ALL: Ref(0)}, {ALL: 1}, 1, 0, 0.0, compute=seconds, loss=loss)
    return Arrival(report, 0.0)


def rounds(selection: Selection, number: int, loss: dict[int, float], seconds: dict[int, float]) -> list[list[int]]:
    """Let a selection draw and learn; return what it drew."""
    memory, found = Memory(), []
    for r in range(number):
        found.append(selection.pick(view(memory, r)))
        told = [arrival(c, loss.get(c, 1.0), seconds.get(c, 1.0)) for c in found[-1]]
        selection.learn(view(memory, r), told)
    return found


def test_the_highest_losses_and_first_the_unknown() -> None:
    assert highest({0: 0.5, 1: 2.0, 2: 1.0}, [0, 1, 2], 2) == [1, 2]
    assert highest({0: 0.5, 1: 2.0}, [0, 1, 2], 2) == [2, 1]


def test_power_of_choice_prefers_a_high_loss() -> None:
    drawn = rounds(HighestLosses(count=2, candidates=4), 60, {3: 9.0}, {})
    seen = {c: sum(c in d for d in drawn[10:]) for c in range(8)}
    # A candidate in every second round at the least, and then surely chosen.
    assert max(seen, key=lambda c: seen[c]) == 3 and all(len(d) == 2 for d in drawn)


def test_utility_by_hand() -> None:
    # R = 1: no bonus. In time: the gain. 4 s where 2 s are preferred, alpha = 2: a quarter.
    assert utility(8.0, 1, 1, 2.0, 2.0, 2.0) == 8.0
    assert utility(8.0, 1, 1, 4.0, 2.0, 2.0) == 2.0
    assert utility(8.0, 1, 1, 4.0, 2.0, 0.0) == 8.0
    # R = e^10 would give sqrt(0.1 · 10 / 4) = 0.5 for one last seen in round 4
    assert utility(1.0, round(math.exp(10)), 4, 1.0, 2.0, 2.0) == pytest.approx(1.5, abs=1e-5)


def test_patience_grows_when_gains_fall() -> None:
    # windows of two: 10, 8 (fell), 9 (rose), 4 (fell): 0.3 + 2 · 0.05
    assert patience([5, 5, 4, 4, 4, 5, 2, 2], 2, 0.3, 0.05) == pytest.approx(0.4)
    assert patience([5, 5, 4], 2, 0.3, 0.05) == 0.3
    assert patience([3, 2, 1], 1, 0.8, 0.5) == 1.0


def test_oort_draws_what_teaches_much_and_avoids_the_slow() -> None:
    selection = ByUtility(count=2, explore=0.5, explore_decay=1.0, explore_least=0.0)
    drawn = rounds(selection, 80, {7: 20.0, 6: 20.0}, {6: 1000.0})
    seen = {c: sum(c in d for d in drawn[20:]) for c in range(8)}
    assert seen[7] > 50 and seen[6] < 10


def test_oort_hears_everybody_in_the_end() -> None:
    drawn = rounds(ByUtility(count=2), 8, {}, {})
    assert {c for d in drawn for c in d} == set(range(8))


def test_tiers_of_equal_size_the_fastest_first() -> None:
    assert tiers_by_time({4: 3.0, 1: 1.0, 2: 2.0, 7: 9.0}, 2) == [[1, 2], [4, 7]]
    assert tiers_by_time({4: 3.0}, 5) == [[4]]


def test_new_probabilities_of_tiers() -> None:
    # three tiers: D = 3; the highest loss gets 2/3, the next 1/3, the lowest nothing
    assert tier_shares([0.5, 2.0, 1.0]) == [0.0, pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert tier_shares([0.5]) == [1.0]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9))
def test_probabilities_sum_to_one(losses: list[float]) -> None:
    assert sum(tier_shares(losses)) == pytest.approx(1.0)


def test_tifl_profiles_everybody_then_draws_in_one_tier() -> None:
    drawn = rounds(ByTier(count=2, tiers=2), 30, {}, {c: float(c) for c in range(8)})
    assert sorted(c for d in drawn[:4] for c in d) == list(range(8))
    for d in drawn[4:]:
        assert len(d) == 2 and len({c < 4 for c in d}) == 1


def test_credits_bound_how_often_a_tier_is_drawn() -> None:
    drawn = rounds(ByTier(count=2, tiers=2, credits=5), 14, {}, {c: float(c) for c in range(8)})
    assert sum(d[0] < 4 for d in drawn[4:]) == 5


def test_a_child_that_has_left_is_forgotten() -> None:
    for selection in (HighestLosses(count=2), ByUtility(count=2), ByTier(count=2)):
        memory = Memory()
        selection.learn(view(memory, 0), [arrival(3, 1.0, 1.0)])
        held = str(memory.held)
        selection.forget(memory, 3)
        assert "3" in held and str(memory.held) != held
        selection.forget(memory, 3)


def test_a_loss_that_nobody_knows_is_not_remembered() -> None:
    memory, selection = Memory(), HighestLosses(count=2)
    selection.learn(view(memory, 0), [arrival(3, math.nan, 1.0)])
    assert memory.state(selection).losses == {}


def test_impossible_values_are_refused() -> None:
    for make in (lambda: HighestLosses(candidates=0.5), lambda: ByUtility(clip=2.0), lambda: ByTier(tiers=0)):
        with pytest.raises(ConfigError, match=r"at least 1|0, 1"):
            make()
