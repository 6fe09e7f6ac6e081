"""When whose data change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.world import ORDINARY, BoundDrift, Concept, Drift, Shape
from espalier.world.drift import ExchangeLabels, Gradual, LabelSwitch, NoDrift, PermuteLabels, RotatePrior

SHAPE = Shape(100, 5, seed=0)


def share(drift: BoundDrift, concept: Concept, at: float) -> float:
    found, which = drift.concepts(int(at), at)
    return float((which == found.index(concept)).mean()) if concept in found else 0.0


def concept(drift: BoundDrift, device: int, round: int, now: float) -> Concept:
    found, which = drift.concepts(round, now)
    return found[which[device]]


def test_none() -> None:
    bound = NoDrift().bind(SHAPE)
    assert concept(bound, 3, 99, 1e9) == ORDINARY
    assert bound.changes(1e9) == []
    found, which = bound.concepts(5, 0.0)
    assert found == [ORDINARY] and which.tolist() == [0] * 100


def test_labels_switch_at_round_50() -> None:
    # K21: digits 0–4, from round 50 on 5–9.
    bound = LabelSwitch(at_round=50).bind(SHAPE)
    old, new = Concept(labels=(0, 1, 2, 3, 4)), Concept(labels=(5, 6, 7, 8, 9))
    assert bound.clock == "round" and bound.changes(100) == [50.0] and bound.changes(49) == []
    assert concept(bound, 0, 49, 1e9) == old and concept(bound, 0, 50, 0.0) == new
    assert share(bound, old, 49) == 1 and share(bound, new, 50) == 1


def test_a_fraction_switches_at_a_time() -> None:
    bound = LabelSwitch(at_time=7.5, fraction=0.3, before=(0, 1), after=(1, 2)).bind(SHAPE)
    old, new = Concept(labels=(0, 1)), Concept(labels=(1, 2))
    assert bound.clock == "time" and bound.changes(8) == [7.5]
    assert share(bound, old, 7.4) == 1
    assert share(bound, new, 7.5) == pytest.approx(0.3) and share(bound, old, 7.5) == pytest.approx(0.7)


def test_labels_are_exchanged_at_a_round() -> None:
    bound = ExchangeLabels(at_round=25).bind(SHAPE)
    assert bound.changes(100) == [25.0]
    assert concept(bound, 7, 24, 1e9) == ORDINARY and concept(bound, 7, 25, 0.0) == Concept(shift=5)
    # Twice by half of ten classes is no turn at all: two labels change places.
    assert [(c + 5 + 5) % 10 for c in range(10)] == list(range(10))
    half = ExchangeLabels(at_round=25, fraction=0.5, turn=3).bind(SHAPE)
    assert share(half, ORDINARY, 30) == 0.5 and share(half, Concept(shift=3), 30) == 0.5


def test_permutations_in_several_ways() -> None:
    bound = PermuteLabels(at_round=3, fraction=0.8, ways=4).bind(Shape(1000, 5, 0))
    assert share(bound, ORDINARY, 2) == 1 and share(bound, ORDINARY, 3) == pytest.approx(0.2)
    for way in range(1, 5):
        assert share(bound, Concept(permutation=way), 3) == pytest.approx(0.2, abs=0.04)


def test_gradual_steps_worked_by_hand() -> None:
    # From round 10 to 20 in 4 steps of .1 to .4: at 12.5, 15, 17.5 and 20, so rounds 13, 15, 18, 20.
    bound = Gradual("rotation", start=10, end=20, amount=0.4, levels=4).bind(SHAPE)
    assert bound.changes(100) == [13, 15, 18, 20] and bound.changes(15) == [13, 15]
    values = [concept(bound, 0, r, 0.0).rotation for r in (0, 12, 13, 15, 18, 19, 20, 99)]
    assert values == pytest.approx([0, 0, 0.1, 0.2, 0.3, 0.3, 0.4, 0.4])


@pytest.mark.parametrize("feature", ["brightness", "noise", "rotation"])
def test_gradual_features(feature: str) -> None:
    bound = Gradual(feature, 0, 10, amount=0.5, fraction=0.5, clock="time").bind(SHAPE)  # type: ignore[arg-type]
    final = Concept(**{feature: 0.5})  # type: ignore[arg-type]
    assert share(bound, final, 10.0) == 0.5 and share(bound, ORDINARY, 10.0) == 0.5


def test_prior_goes_round() -> None:
    bound = RotatePrior(period=2.5).bind(SHAPE)
    # Turns at 2.5, 5, 7.5 count from rounds 3, 5, 8 on.
    assert [concept(bound, 0, r, 0.0).shift for r in range(9)] == [0, 0, 0, 1, 1, 2, 2, 2, 3]
    assert bound.changes(8) == [3, 5, 8]
    timed = RotatePrior(period=2.5, clock="time").bind(SHAPE)
    assert timed.changes(7.5) == [2.5, 5.0, 7.5] and concept(timed, 0, 0, 5.0).shift == 2


DRIFTS = [
    LabelSwitch(at_round=7, fraction=0.4),
    PermuteLabels(at_round=4, ways=3),
    Gradual("noise", 3, 17, 0.7, levels=5, fraction=0.6),
    RotatePrior(period=3.7, fraction=0.5),
    RotatePrior(period=0.7, clock="time"),
    Gradual("brightness", 1.3, 9.1, -1.0, levels=7, clock="time"),
]


@given(st.sampled_from(DRIFTS), st.integers(0, 40))
def test_concepts_change_at_the_changes_and_only_there(drift: Drift, tick: int) -> None:
    bound = drift.bind(SHAPE)
    step = 1.0 if bound.clock == "round" else 0.25
    before, after = tick * step, (tick + 1) * step

    def all_at(at: float) -> list[Concept]:
        found, which = bound.concepts(int(at), at)
        assert len(set(found)) == len(found)
        return [found[i] for i in which]

    announced = any(before < t <= after for t in bound.changes(after))
    assert (all_at(before) != all_at(after)) == announced


def test_the_same_devices_drift_under_one_seed() -> None:
    a, b = (LabelSwitch(at_round=1, fraction=0.3).bind(SHAPE).concepts(5, 0.0)[1] for _ in range(2))
    assert (a == b).all()
    other = LabelSwitch(at_round=1, fraction=0.3).bind(Shape(100, 5, seed=1)).concepts(5, 0.0)[1]
    assert not np.array_equal(a, other)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"kind": "label_switch"}, "at_round"),
        ({"kind": "label_switch", "at_round": 1, "at_time": 1}, "not both"),
        ({"kind": "label_switch", "at_round": 1, "after": []}, "after"),
        ({"kind": "label_switch", "at_round": 1, "before": [1, 1]}, "different"),
        ({"kind": "label_switch", "at_round": -1}, "at_round"),
        ({"kind": "permute_labels", "at_round": 1, "ways": 0}, "ways"),
        ({"kind": "permute_labels", "at_round": 1, "fraction": 0}, "fraction"),
        ({"kind": "gradual", "start": 5, "end": 5}, "end"),
        ({"kind": "gradual", "feature": "noise", "amount": -1}, "amount"),
        ({"kind": "gradual", "feature": "brightnes"}, "'brightness'?"),
        ({"kind": "rotate_prior", "period": 0}, "period"),
    ],
)
def test_refusals(table: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        Drift.build(table)
    assert says in str(error.value)
