"""Learning rates by round."""

from __future__ import annotations

import math

import pytest

from espalier.core.errors import ConfigError
from espalier.core.learning import Schedule, TrainingFacts


def halved(clock: int) -> float:
    return 0.5


def rates(table: dict[str, object], rounds: int) -> list[float]:
    schedule = Schedule.build(table)
    return [schedule.factor(t) for t in range(rounds)]


def test_schedules_by_hand() -> None:
    assert rates({"kind": "constant"}, 2) == [1.0, 1.0]
    assert rates({"kind": "step", "gamma": 0.5, "every": 2}, 5) == [1.0, 1.0, 0.5, 0.5, 0.25]
    assert rates({"kind": "step", "gamma": 0.1, "at": [1, 3]}, 4) == pytest.approx([1.0, 0.1, 0.1, 0.01])
    # (1 + cos(pi t / 4)) / 2 at t = 0 … 4: 1, (1 + 1/sqrt 2) / 2, 1/2, …, 0 (a millionth, which optimisers take)
    side = (1 + 1 / math.sqrt(2)) / 2
    assert rates({"kind": "cosine", "rounds": 4}, 6) == pytest.approx([1, side, 0.5, 1 - side, 1e-6, 1e-6])
    assert rates({"kind": "cosine", "rounds": 4, "final": 0.2}, 5)[2:] == pytest.approx(
        [0.6, 0.2 + 0.8 * (1 - side), 0.2]
    )
    after = {"kind": "step", "gamma": 0.5, "every": 1}
    assert rates({"kind": "warmup", "rounds": 3, "then": after}, 6) == [0.25, 0.5, 0.75, 1.0, 0.5, 0.25]
    own = f"{__name__}:halved"
    assert rates({"kind": "function", "path": own}, 2) == [0.5, 0.5]
    assert Schedule.build({"kind": "warmup", "then": {"kind": "function", "path": own}}).code == (own,)


def test_rates_and_steps_of_an_experiment() -> None:
    # 0.4 · 0.5 (the schedule's second round) · 0.9 (the decay's) = 0.18; 25 samples in tens are 3 steps
    facts = TrainingFacts(lr=0.4, lr_decay=0.9, schedule={"kind": "step", "gamma": 0.5, "every": 1})  # type: ignore[arg-type]
    assert facts.lr_at(1) == pytest.approx(0.18)
    assert facts.batches(25, 2) == 6
    assert TrainingFacts.build({"unit": "step"}).batches(25, 2) == 2
    assert TrainingFacts.build(facts.to_plain()) == facts


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"kind": "step"}, "every"),
        ({"kind": "cosine", "rounds": 0}, "rounds"),
        ({"kind": "cosin"}, "cosine"),
        ({"kind": "function", "path": "math"}, "package.module:function"),
    ],
)
def test_what_is_no_schedule(table: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Schedule.build(table)


def test_a_function_that_is_not_there_or_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match="cannot be imported"):
        Schedule.build({"kind": "function", "path": "math:nothing"}).factor(0)
    with pytest.raises(ConfigError, match="gave 0"):
        Schedule.build({"kind": "function", "path": "math:sin"}).factor(0)
