"""AAF, RAF, the fixed frequencies, predictors and timeouts: Eq. (10) to (14), Algorithms 3 and 4, worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.core.memory import Memory
from espalier.core.messages import Order, Report
from espalier.core.policies import Pace, Progress
from espalier.core.view import Arrival, View
from espalier.methods.easf.aaf import AAF, Predictor, Window, next_time, recommended, stops
from espalier.methods.easf.paces import (
    PREDICTED_ROUND,
    RAF,
    Abandon,
    Adaptive,
    Fixed,
    TimedPace,
    frequencies,
    total_time,
)
from tests.core.fakes import SmallFleet

EDGE, CLOUD = 10, 99


def arrival(child: int, compute: float, updates: int = 1, down: float = 1.0, up: float = 1.0) -> Arrival:
    report = Report(1, EDGE, child, EDGE, {}, {}, updates, 0, 50.0, download=down, compute=compute)
    return Arrival(report, 50.0 + up)


def view(memory: Memory) -> View:
    return View(0.0, EDGE, 0, 0, "", {}, None, memory, SmallFleet({0: EDGE, 1: EDGE, 2: EDGE, 20: EDGE}))


def order(updates: int, budget: float | None) -> Order:
    return Order(1, EDGE, 0, {}, updates, 0, 0, 0.0, budget)


class TestPredictors:
    def test_smoothing_begins_with_the_first_measurement(self) -> None:
        # 10, then .5 · 20 + .5 · 10 = 15, then .5 · 11 + .5 · 15 = 13
        memory: list[float] = []
        seen = []
        for measured in (10, 20, 11):
            memory = Predictor(0.5).after(memory, measured)
            seen.append(memory[-1])
        assert seen == [10, 15, 13]

    def test_window_is_the_mean_of_the_last(self) -> None:
        memory: list[float] = []
        seen = []
        for measured in (1.0, 2.0, 6.0, 10.0):
            memory = Window(size=2).after(memory, measured)
            seen.append(memory[-1])
        assert seen == [1.0, 1.5, 4.0, 8.0]  # 1; (1+2)/2; (2+6)/2; (6+10)/2

    def test_refuse_nonsense(self) -> None:
        for bad in ({"kind": "smoothing", "beta": 0.0}, {"kind": "window", "size": 0}):
            with pytest.raises(ConfigError):
                Predictor.build(bad)

    @given(st.lists(st.floats(0.1, 100), min_size=1, max_size=20), st.floats(0.01, 1))
    def test_predictions_lie_between_the_extremes(self, measured: list[float], beta: float) -> None:
        memory: list[float] = []
        for value in measured:
            memory = Predictor(beta).after(memory, value)
        assert min(measured) - 1e-9 <= memory[-1] <= max(measured) + 1e-9


class TestAlgorithm3:
    def test_time_shrinks_at_once_and_grows_slowly(self) -> None:
        # real 10 (nothing predicted): 10; real 8 < 10: 8; real 9 ≥ 8: 1.1 · 8
        predicted = None
        seen = []
        for real in (10.0, 8.0, 9.0):
            predicted = next_time(predicted, real, 1.1)
            seen.append(predicted)
        assert seen == pytest.approx([10.0, 8.0, 8.8])

    def test_as_many_updates_as_fit(self) -> None:
        assert recommended(10.0, 2.0, 3.0, 20) == (2, 8.0)  # ⌊8/3⌋
        assert recommended(10.0, 2.0, 4.0, 20) == (2, 8.0)  # exactly two
        assert recommended(10.0, 11.0, 3.0, 20) == (1, 0.0)  # nothing fits: one all the same, and no negative budget
        assert recommended(100.0, 0.0, 1.0, 20) == (20, 100.0)  # the upper bound
        assert recommended(10.0, 0.0, 0.0, 20) == (20, 10.0)  # updates that take no time
        assert recommended(0.0, 0.0, 0.0, 20) == (1, 0.0)  # nothing takes any time: there is none to fill

    def test_what_a_parent_learns(self) -> None:
        # child 0: 6 s for 2 updates, child 1: 4 s for 1; transfers 1 + 1 each. Eq. 10: 3 and 4 per update.
        # Eq. 11: real = max(8, 6) = 8 = first prediction. rt = 8 - 2 = 6; rf = ⌊6/3⌋ = 2 and ⌊6/4⌋ = 1.
        pace, memory = AAF(), Memory()
        pace.learn(view(memory), [arrival(0, 6.0, 2), arrival(1, 4.0)])
        work = pace.assign(view(memory), [0, 1, 2])
        assert (work[0].updates, work[0].budget) == (2, pytest.approx(6.0))
        assert (work[1].updates, work[1].budget) == (1, pytest.approx(6.0))
        assert (work[2].updates, work[2].budget) == (1, None)  # nothing is known of it

    def test_times_are_smoothed_child_by_child(self) -> None:
        # child 0's updates took 3, then 5 s: predicted 4; its download 1, then 3: 2; upload 1, 1: 1.
        # real: 5, then 9 ≥ 5: predicted round 1.1 · 5 = 5.5. rt = 5.5 - 3 = 2.5, rf = max(1, ⌊2.5/4⌋) = 1.
        pace, memory = AAF(), Memory()
        pace.learn(view(memory), [arrival(0, 3.0)])
        pace.learn(view(memory), [arrival(0, 5.0, down=3.0)])
        work = pace.assign(view(memory), [0])
        assert (work[0].updates, work[0].budget) == (1, pytest.approx(2.5))

    def test_who_is_missing_counts_with_its_predicted_time(self) -> None:
        # first round: 0 takes 2 + 2 = 4 s in all, 1 takes 6 + 2 = 8: predicted 8. Second: only 0 is in time, with 4 s;
        # Eq. 11 is about all children, 1 is predicted to take 8 ≥ 8: the time grows to 8.8 and does not fall to 4.
        pace, memory = AAF(), Memory()
        pace.learn(view(memory), [arrival(0, 2.0), arrival(1, 6.0)])
        pace.learn(view(memory), [arrival(0, 2.0)])
        assert memory.product(PREDICTED_ROUND) == pytest.approx(8.8)
        # its late report says 14 + 2: an update is predicted to take (6 + 14)/2 = 10 s, in all 12 ≥ 8.8: 9.68
        pace.overdue(memory, arrival(1, 14.0))
        pace.learn(view(memory), [arrival(0, 2.0)])
        assert memory.product(PREDICTED_ROUND) == pytest.approx(9.68)
        # it has left: the time is that of the others
        pace.forget(memory, 1)
        pace.learn(view(memory), [arrival(0, 2.0)])
        assert memory.product(PREDICTED_ROUND) == pytest.approx(4.0)

    def test_a_child_that_left_begins_anew(self) -> None:
        pace, memory = AAF(), Memory()
        pace.learn(view(memory), [arrival(0, 6.0, 2), arrival(1, 4.0)])
        pace.forget(memory, 0)
        pace.forget(memory, 7)  # never known
        work = pace.assign(view(memory), [0, 1])
        assert work[0].budget is None and work[1].budget is not None

    @given(
        st.lists(st.tuples(st.floats(0.01, 50), st.integers(1, 20), st.floats(0, 20), st.floats(0, 20)), min_size=1),
        st.integers(1, 30),
    )
    def test_bounds_hold(self, times: list[tuple[float, int, float, float]], most: int) -> None:
        pace, memory = AAF(f_max=most), Memory()
        pace.learn(view(memory), [arrival(i, c, u, d, p) for i, (c, u, d, p) in enumerate(times)])
        for work in pace.assign(view(memory), range(len(times))).values():
            assert 1 <= work.updates <= most


class TestAlgorithm4:
    @pytest.mark.parametrize(("update", "expected"), [(3.0, 3), (2.0, 4), (6.0, 1)])
    def test_vectors(self, update: float, expected: int) -> None:
        # rf = 3, rt = 10, ρ_a = 1.1, ρ_p = .9.
        # 3 s each: after 2 the third makes 9 ≤ 11, go on; after 3 ≥ rf the fourth makes 12 > 9, stop.
        # 2 s: after 3 the fourth makes 8 ≤ 9, go on; after 4 the fifth makes 10 > 9, stop.
        # 6 s: after 1 the second makes 12 > 11, stop.
        pace, memory, done = AAF(), Memory(), 0
        while True:
            done += 1
            if pace.enough(Progress(order(3, 10.0), done, done * update, update, memory)):
                break
        assert done == expected

    def test_without_a_recommendation_one_update(self) -> None:
        assert AAF().enough(Progress(order(1, None), 1, 2.0, 2.0, Memory()))

    def test_never_more_than_the_bound(self) -> None:
        assert stops(5, 5.1, wanted=20, time=1000.0, slack=1.1, caution=0.9, most=5)

    def test_where_nothing_takes_any_time_the_recommended_updates_are_done(self) -> None:
        assert not stops(2, 0.0, wanted=3, time=0.0, slack=1.1, caution=0.9, most=20)
        assert stops(3, 0.0, wanted=3, time=0.0, slack=1.1, caution=0.9, most=20)

    def test_the_child_predicts_from_its_recent_updates(self) -> None:
        # updates of 2 and 8 s: predicted .5 · 8 + .5 · 2 = 5; spent 10, expected 15 > 1.1 · 13 = 14.3
        pace, memory = AAF(), Memory()
        assert not pace.enough(Progress(order(3, 13.0), 1, 2.0, 2.0, memory))
        assert pace.enough(Progress(order(3, 13.0), 2, 10.0, 8.0, memory))

    def test_a_training_update_by_update_is_asked_for(self) -> None:
        assert AAF().child_decides and not RAF().child_decides


class TestTimeout:
    def test_total_time_is_from_dispatch_to_arrival(self) -> None:
        assert total_time(arrival(0, 5.0, down=2.0, up=3.0)) == 10.0

    def test_adaptive_is_the_predicted_time_with_slack(self) -> None:
        # Eq. 14: 1.5 · 8; the first round waits for all
        pace, memory = AAF(abandon=Adaptive(1.5)), Memory()
        assert pace.deadline(view(memory), {}) is None
        pace.learn(view(memory), [arrival(0, 6.0)])
        assert pace.deadline(view(memory), {}) == pytest.approx(12.0)

    def test_fixed_is_twice_the_first_rounds_median_for_good(self) -> None:
        # children take 3, 5, 12 s in all: median 5, threshold 10; later rounds do not change it
        pace, memory = RAF(abandon=Fixed()), Memory()
        assert pace.deadline(view(memory), {}) is None
        pace.learn(view(memory), [arrival(0, 1.0), arrival(1, 3.0), arrival(2, 10.0)])
        pace.learn(view(memory), [arrival(0, 100.0)])
        assert pace.deadline(view(memory), {}) == pytest.approx(10.0)

    def test_nobody_is_abandoned_before_the_least_time(self) -> None:
        pace, memory = AAF(abandon=Adaptive(1.5), least=20.0), Memory()
        assert pace.deadline(view(memory), {}) is None
        pace.learn(view(memory), [arrival(0, 6.0)])
        assert pace.deadline(view(memory), {}) == 20.0

    def test_none_waits_for_all(self) -> None:
        pace, memory = AAF(abandon=Abandon()), Memory()
        pace.learn(view(memory), [arrival(0, 6.0)])
        assert pace.deadline(view(memory), {}) is None

    def test_refuse_nonsense(self) -> None:
        for bad in ({"kind": "adaptive", "rho_t": 0.9}, {"kind": "fixed", "factor": 0.0}):
            with pytest.raises(ConfigError):
                Abandon.build(bad)


class TestRAF:
    def test_as_many_updates_as_fit_into_the_slowest_childs_time(self) -> None:
        # per update 1, 2, 5 s, transfer 1 each: T = 6; ⌊5/1⌋, ⌊5/2⌋, ⌊5/5⌋
        computing, transfer = {0: 1.0, 1: 2.0, 2: 5.0}, {0: 1.0, 1: 1.0, 2: 1.0}
        found = frequencies(computing, transfer, {0: 1, 1: 1, 2: 1}, 20, "measured")
        assert found == {0: 5, 1: 2, 2: 1}

    def test_measured_stays_long_where_single_does_not(self) -> None:
        # 0 did 5 updates in 10 s (it slowed down to 2 s each), 1 one in 5 s; transfer 1.
        # measured: T = 11 → ⌊10/2⌋ = 5 and ⌊10/5⌋ = 2. single: T = max(3, 6) = 6 → ⌊5/2⌋ = 2 and 1.
        computing, transfer, updates = {0: 10.0, 1: 5.0}, {0: 1.0, 1: 1.0}, {0: 5, 1: 1}
        assert frequencies(computing, transfer, updates, 20, "measured") == {0: 5, 1: 2}
        assert frequencies(computing, transfer, updates, 20, "single") == {0: 2, 1: 1}

    def test_equal_children_do_one_update_each(self) -> None:
        same = dict.fromkeys(range(5), 2.0)
        assert set(frequencies(same, same, dict.fromkeys(range(5), 1), 20, "measured").values()) == {1}

    def test_first_one_update_then_what_was_set_and_one_again_for_a_new_pair(self) -> None:
        pace, memory = RAF(), Memory()
        assert pace.assign(view(memory), [0])[0].updates == 1
        pace.learn(view(memory), [arrival(0, 1.0), arrival(1, 5.0)])  # T = 7: ⌊5/1⌋ and 1
        assert {c: w.updates for c, w in pace.assign(view(memory), [0, 1, 2]).items()} == {0: 5, 1: 1, 2: 1}
        pace.forget(memory, 0)
        assert pace.assign(view(memory), [0])[0].updates == 1

    def test_the_upper_bound(self) -> None:
        assert frequencies({0: 0.0, 1: 50.0}, {0: 0.0, 1: 0.0}, {0: 1, 1: 1}, 7, "measured") == {0: 7, 1: 1}
        assert frequencies({0: 0.0, 1: 0.0}, {0: 0.0, 1: 0.0}, {0: 1, 1: 1}, 7, "measured") == {0: 1, 1: 1}


def test_fixed_frequency_tells_devices_from_aggregators() -> None:
    work = TimedPace(leaf=2).assign(view({}), [0, 20])
    assert (work[0].updates, work[20].updates) == (2, 1)


def test_all_can_be_built_from_a_configuration() -> None:
    table = {"kind": "aaf", "predictor": {"kind": "window", "size": 3}, "abandon": {"kind": "adaptive", "rho_t": 2}}
    pace = Pace.build(table)
    assert isinstance(pace, AAF) and isinstance(pace.predictor, Window) and isinstance(pace.abandon, Adaptive)
    assert Pace.build(pace.to_plain()) == pace
    for bad in (
        {"kind": "aaf", "rho_g": 1.0},
        {"kind": "aaf", "rho_p": 1.0},
        {"kind": "raf", "f_max": 0},
        {"kind": "timed", "leaf": 0},
    ):
        with pytest.raises(ConfigError):
            Pace.build(bad)
