from __future__ import annotations

from pathlib import Path

import pytest

from espalier.report.budget import Budget, budgets, reached
from tests.report.conftest import reading_of, with_metrics


def test_the_budget_is_what_every_run_reached(tmp_path: Path) -> None:
    # rounds every 10 s: A ends at 30 s after 300 steps, B at 20 s after 400
    a = with_metrics(tmp_path / "a", "A", 0, {"acc_device": [0.1, 0.2, 0.3, 0.4], "steps": [0, 100, 200, 300]})
    b = with_metrics(tmp_path / "b", "B", 0, {"acc_device": [0.1, 0.5, 0.6], "steps": [0, 200, 400]})
    found = budgets([a, b])
    assert found == {"time": Budget("time", 20.0), "steps": Budget("steps", 300.0), "round": Budget("round", 2.0)}
    assert found["time"].value(a, "acc_device") == 0.3 and found["time"].value(b, "acc_device") == 0.6
    # 300 steps: B had made 200 of its own when it was last evaluated within them
    assert found["steps"].value(a, "acc_device") == 0.4 and found["steps"].value(b, "acc_device") == 0.5
    assert found["time"].value(a, "nothing") != found["time"].value(a, "nothing")  # not a number


def test_every_seed_has_its_own(tmp_path: Path) -> None:
    """A comparison gives each method the time of the first seed by seed: none is cut at the quickest seed's end."""
    runs = {
        (label, seed): with_metrics(
            tmp_path / f"{label}{seed}", label, seed, {"acc_device": [0.1 * i for i in range(n)]}
        )
        for label, seed, n in (("A", 0, 3), ("B", 0, 4), ("A", 1, 6), ("B", 1, 5), ("B", 2, 2))
    }
    budget = budgets(list(runs.values()))["time"]
    # under seed 2 there is nobody to compare B with: it counts as far as everybody got
    assert budget == Budget("time", 10.0, by_seed={0: 20.0, 1: 40.0})
    found = {key: budget.value(run, "acc_device") for key, run in runs.items()}
    assert found == pytest.approx({("A", 0): 0.2, ("B", 0): 0.2, ("A", 1): 0.4, ("B", 1): 0.4, ("B", 2): 0.1})
    assert budget.text == "10.0 s to 40.0 s of virtual time"


def test_a_run_that_ended_by_itself_sets_no_limit(tmp_path: Path) -> None:
    a = with_metrics(tmp_path / "a", "A", 0, {"acc_device": [0.1, 0.2, 0.3, 0.4]})
    b = with_metrics(tmp_path / "b", "B", 0, {"acc_device": [0.1, 0.05]}, stalled="It diverged in round 2.")
    assert budgets([a, b])["time"].amount == 30.0
    assert budgets([a, b])["time"].value(b, "acc_device") == 0.05
    assert budgets([b])["time"].amount == 10.0


def test_a_world_that_costs_nothing_has_no_time_to_hold_equal(tmp_path: Path) -> None:
    run = with_metrics(tmp_path / "a", "A", 0, {"acc_device": [0.1, 0.2], "steps": [0, 10]})
    run.frame["time"] = 0.0
    assert list(budgets([run])) == ["steps", "round"]


def test_what_an_experiment_limits_comes_first(tmp_path: Path) -> None:
    run = reading_of(tmp_path / "a")
    assert list(budgets([run])) == ["time", "bytes", "round"]
    run.experiment["stop"] = {"bytes": 1e6}
    assert list(budgets([run])) == ["bytes", "time", "round"]
    assert reached(run, "bytes") == 2 * 20_000 * 10 * (20 + 4) and reached(run, "steps") != reached(run, "steps")


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget("time", 6942.0), "115.7 min of virtual time"), (Budget("steps", 12345.0), "12,345 local steps"),
        (Budget("bytes", 2.5e6), "2.5 MB sent"), (Budget("round", 1.0), "1 round"), (Budget("round", 7.0), "7 rounds"),
    ],
)  # fmt: skip
def test_words(budget: Budget, text: str) -> None:
    assert budget.text == text
