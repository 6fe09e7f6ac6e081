from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from espalier.report.groups import compare
from espalier.report.reading import Reading
from espalier.report.standings import Column, Place, Values
from espalier.report.verdict import Verdict, measures, time_to_target, verdicts
from tests.report.conftest import reading_of, with_metrics

Scores = dict[str, tuple[float, ...]]


def made(folder: Path, scores: Scores, **changes: str) -> list[Reading]:
    """One run per method and seed, with a last score each."""
    return [
        with_metrics(folder / f"{label}{seed}", label, seed, {"acc_device": [0.1, value]}, **changes)
        for label, values in scores.items()
        for seed, value in enumerate(values)
    ]


def judge(readings: list[Reading], measure: str | None = None, budget: str | None = None) -> Verdict:
    (found,) = verdicts(compare(readings), measure, budget)
    return found


def place(found: Verdict, label: str) -> Place:
    return next(p for p in found.places if p.group.label == label)


def cell(found: Verdict, label: str, key: str) -> Values:
    return place(found, label).cells[[c.key for c in found.columns].index(key)]


def test_ranked_and_tested_against_the_leader(tmp_path: Path) -> None:
    # against A = .90 .80 .85: B's differences are .05 .02 .05, p = .0572 (see test_paired); C's .50 .51 .49 are
    # t = .5/(.01/√3) = 86.6, p = 1 − 86.6/√(7500 + 2) = .000133. Holm: C .000267, B .0572.
    found = judge(made(tmp_path, {"C": (0.40, 0.29, 0.36), "A": (0.90, 0.80, 0.85), "B": (0.85, 0.78, 0.80)}))
    assert [(p.rank, p.group.label, p.mark) for p in found.places] == [(1, "A", ""), (2, "B", "≈"), (3, "C", "")]
    best, near, far = found.places
    assert best.gap is None and best.cells[0].best and best.cells[0].text(found.columns[0]) == "0.850 ± 0.050"
    assert near.p == pytest.approx(0.0571909584) and near.tied and not near.cells[0].best
    assert far.p == pytest.approx(2 * 0.000133302, rel=1e-3) and far.gap is not None
    assert far.gap.mean == pytest.approx(0.5)
    held = "after 10.0 s of virtual time, which every run reached."
    assert found.headline == f"A leads with accuracy per device 0.850 ± 0.050 {held}"
    sure = "95 % interval −0.003 to 0.083, 3 paired seeds, by Holm's rule"
    assert f"0.040 ahead of B ({sure}), which may be chance." in found.detail
    assert found.lines[0] == "3 seeds (0, 1, 2)."


def test_it_says_whose_devices_answer_with_a_prior(tmp_path: Path) -> None:
    one, other = made(tmp_path, {"A": (0.9,), "B": (0.8,)})
    assert judge([one, other]).warnings == ()
    (told,) = judge([replace(one, with_prior=True), other]).warnings
    assert told.startswith("Devices of A answer with their own label shares as prior, others' do not; evaluate.prior")
    assert judge([replace(r, with_prior=True) for r in (one, other)]).warnings == ()
    who = "A, whose devices answer with their own label shares as prior, leads with accuracy per device 0.900"
    assert judge([replace(one, with_prior=True), other]).headline.startswith(who)
    assert judge([one, replace(other, with_prior=True)]).headline.startswith("A leads with")
    assert judge([replace(r, with_prior=True) for r in (one, other)]).headline.startswith("A leads with")
    scores = {"acc_device": [0.1, 0.9], "acc_device_prior": [0.1, 0.7]}
    ours, theirs = (with_metrics(tmp_path / f"{label}-both", label, 0, scores) for label in "AB")
    found = judge([replace(ours, with_prior=True), theirs], "acc_device_prior")
    assert found.measure == "acc_device_prior" and found.warnings == (), "all are ranked with it"
    found = judge([replace(ours, with_prior=True), theirs], "acc_device")
    assert found.warnings[0].endswith("the measure acc_device_prior ranks all of them with it.")


def test_what_the_commonest_answer_scores_is_told(tmp_path: Path) -> None:
    """Most rows are of one class: 0.9 is then no more than always answering it."""
    readings = made(tmp_path, {"A": (0.9,), "B": (0.8,)})
    assert judge(readings).warnings == ()
    common = [replace(r, constant=("'healthy'", 0.854)) for r in readings]
    (told,) = judge(common).warnings
    assert told.startswith("Always answering 'healthy' would score 0.854: read accuracies against that")
    assert told.endswith('what does not reward it (task.metrics = ["f1", "auc"]).')
    scores = {"acc_device": [0.1, 0.9], "f1_device": [0.1, 0.5]}
    counted = replace(with_metrics(tmp_path / "f1", "A", 0, scores), constant=("'healthy'", 0.854))
    (told,) = judge([counted]).warnings
    assert 'runs.verdict("f1_device")' in told and "--measure f1_device" in told and "task.metrics" not in told


def test_a_run_that_always_answers_one_class_is_told_of(tmp_path: Path) -> None:
    """With lr = 500 everything is soon answered with the commonest class, which looks like learning."""
    for loss in (9e4, 0.5):  # a bias alone that has learnt how common the classes are lowers the loss
        scores = {"acc_device": [0.3, 0.795], "loss_device": [0.7, loss]}
        run = replace(with_metrics(tmp_path / f"a{loss}", "A", 0, scores), constant=("'healthy'", 0.795))
        (told,) = [w for w in judge([run]).warnings if "is no better than" in w]
        assert "A is no better than always answering 'healthy' (seed 0): its accuracy is 0.795." in told
    better = {"acc_device": [0.3, 0.85], "loss_device": [0.7, 0.9]}
    run = replace(with_metrics(tmp_path / "b", "A", 0, better), constant=("'healthy'", 0.795))
    assert not any("is no better than" in w for w in judge([run]).warnings)


def test_another_score_that_was_measured_ranks_too(tmp_path: Path) -> None:
    readings = [
        with_metrics(tmp_path / label, label, 0, {"acc_device": [0.1, 0.5], "f1_device": [0.1, f1]})
        for label, f1 in (("A", 0.3), ("B", 0.6))
    ]
    assert measures(compare(readings).groups) == ["acc_device", "f1_device"]
    assert judge(readings, "f1_device").headline.startswith("B leads with F1 per device 0.600")


def test_a_lead_that_one_comparison_would_tell_but_three_do_not(tmp_path: Path) -> None:
    # each is .03, .04 and .05 behind in some order: t = .04/(.01/√3) = 6.93, p = 1 − 6.93/√(48 + 2) = .0202,
    # alone the interval would be .04 ± 4.303·.01/√3 = .0152 … .0648; Holm: 3 × .0202 = .0606, so it is that of the
    # level .05/3: t = .98333·√(2/(1 − .98333²)) = 7.6488, .04 ± 7.6488·.01/√3 = −.0042 … .0842
    rest = {"B": (0.85, 0.77, 0.81), "C": (0.87, 0.76, 0.80), "D": (0.86, 0.75, 0.82)}
    found = judge(made(tmp_path, {"A": (0.90, 0.80, 0.85), **rest}))
    assert "interval −0.004 to 0.084, 3 paired seeds, by Holm's rule), which may be chance." in found.detail


def test_two_seeds_are_never_told_apart(tmp_path: Path) -> None:
    found = judge(made(tmp_path, {"A": (0.9, 0.9), "B": (0.1, 0.1)}))
    assert "cannot be told with 2 seeds" in found.detail and place(found, "B").mark == "°"
    assert place(found, "B").p is None and place(found, "B").gap.low is None  # type: ignore[union-attr]


def test_one_seed_says_so(tmp_path: Path) -> None:
    found = judge(made(tmp_path, {"A": (0.5,), "B": (0.6,)}))
    assert found.places[0].group.label == "B" and "cannot be told with one seed" in found.detail
    assert cell(found, "A", "acc_device").text(found.columns[0]) == "0.500"


def test_ties_are_said_as_ties(tmp_path: Path) -> None:
    found = judge(made(tmp_path, {"A": (0.5, 0.7), "B": (0.5, 0.7), "C": (0.1, 0.2)}))
    assert [p.rank for p in found.places] == [1, 1, 3]
    assert found.headline.startswith("A and B are level: accuracy per device 0.600 ± 0.141")
    assert cell(found, "A", "acc_device").best and cell(found, "B", "acc_device").best


def test_told_apart_from_all(tmp_path: Path) -> None:
    found = judge(made(tmp_path, {"A": (0.90, 0.80, 0.85), "B": (0.40, 0.29, 0.36), "C": (0.30, 0.19, 0.26)}))
    assert "ahead of both others by more than chance" in found.detail


def test_methods_without_a_common_seed_are_not_compared(tmp_path: Path) -> None:
    readings = [with_metrics(tmp_path / f"a{s}", "A", s, {"acc_device": [0.5 + s / 100]}) for s in (0, 1)]
    readings.append(with_metrics(tmp_path / "b", "B", 5, {"acc_device": [0.4]}))
    found = judge(readings)
    assert place(found, "B").gap is None and "shares no seed" in found.detail
    assert "A under 2; B under 1" in found.lines[0]


def test_unequal_ends_are_compared_at_an_equal_budget(tmp_path: Path) -> None:
    """The slow one is better in the end, the quick one at 20 s, which is as far as it went."""
    slow = with_metrics(tmp_path / "a", "slow", 0, {"acc_device": [0.1, 0.2, 0.3, 0.9], "steps": [0, 10, 20, 30]})
    quick = with_metrics(tmp_path / "b", "quick", 0, {"acc_device": [0.1, 0.4, 0.5], "steps": [0, 50, 100]})
    found = judge([slow, quick])
    assert [p.group.label for p in found.places] == ["quick", "slow"]
    assert cell(found, "slow", "acc_device").mean == 0.3 and cell(found, "slow", "end").mean == 0.9
    assert [cell(found, "slow", k).mean for k in ("round", "steps", "time")] == [3, 30, 30]
    assert found.headline.endswith("after 20.0 s of virtual time, which every run reached.")
    assert found.detail.endswith(" At its own end slow has 0.900, quick 0.500.")
    assert "By then it had used 2 rounds and 100 local steps; slow 2 rounds and 20 local steps." in found.detail
    # 30 steps: the quick one had made none of its fifty
    assert [p.group.label for p in judge([slow, quick], budget="steps").places] == ["slow", "quick"]


def test_time_and_bytes_are_no_scores(tmp_path: Path) -> None:
    found = judge([reading_of(tmp_path / "a", label="A"), reading_of(tmp_path / "b", label="B", skill=0.5)])
    lower = {c.key: c.lower for c in found.columns}
    assert lower["time"] is lower["bytes"] is lower["round"] is lower["end"] is None
    assert not any(c.best for p in found.places for c, k in zip(p.cells, found.columns, strict=True) if k.lower is None)
    assert [c.key for c in found.columns[: found.main]] == ["acc_device", "end", "round", "bytes", "time"]


def test_a_method_that_never_gets_there_is_not_best(tmp_path: Path) -> None:
    # A reaches .6 at 10 s under seed 0 and never under seed 1; B at 20 s under both
    curves = {
        ("A", 0): [0.1, 0.7, 0.7], ("A", 1): [0.1, 0.2, 0.3], ("B", 0): [0.1, 0.2, 0.65], ("B", 1): [0.1, 0.2, 0.6],
    }  # fmt: skip
    readings = [with_metrics(tmp_path / f"{x}{s}", x, s, {"acc_device": c}) for (x, s), c in curves.items()]
    found = judge(readings)
    a, b = cell(found, "A", "time_to_target"), cell(found, "B", "time_to_target")
    column = next(c for c in found.columns if c.key == "time_to_target")
    assert column.title == "time to accuracy per device 0.6"
    assert b.best and b.text(column) == "20.0 s"
    assert not a.best and a.text(column) == "10.0 s (1/2)"


def test_small_is_good_where_it_is(tmp_path: Path) -> None:
    readings = [with_metrics(tmp_path / x, x, 0, {"mse_device": [9.0, v]}) for x, v in (("A", 0.6), ("B", 0.5))]
    for reading in readings:
        reading.experiment["task"] |= {"score": "mse_device"}
    found = judge(readings)
    assert found.places[0].group.label == "B" and found.measure == "mse_device"
    assert place(found, "A").gap.mean == pytest.approx(0.1)  # type: ignore[union-attr]


def test_target_of_an_error_is_reached_from_above(tmp_path: Path) -> None:
    reading = with_metrics(tmp_path / "a", "A", 0, {"mse_device": [9.0, 0.7, 0.5]})
    reading.experiment["task"] |= {"score": "mse_device", "target": 0.6}
    assert time_to_target(reading) == 20.0


def test_values_with_units() -> None:
    time, size = Column("time", "time", "seconds"), Column("bytes_x", "x", "bytes")
    # 6942 s are 115.7 min; 336.2 s of spread are 5.6 min
    assert time.pair(6942.0, 336.2) == "115.7 ± 5.6 min"
    assert size.pair(23.1e6, 12e3) == "23.1 ± 0.0 MB"
    assert Values({0: 5.0, 1: 5.0}).text(size) == "5 B"
    assert Values({0: float("nan")}).text(time) == "never"
    assert Values({0: 1000.0, 1: 3000.0}).text(Column("steps", "steps", "count")) == "2,000 ± 1,414"


def test_how_runs_ended_is_said(tmp_path: Path) -> None:
    dead = reading_of(tmp_path / "a", label="FedUC", state="running", reconstruction="the rule is not in the text")
    found = judge([dead])
    assert any("FedUC, seed 0 (dead, round 10)" in line for line in found.warnings)
    assert "FedUC is a reconstruction: the rule is not in the text" in found.lines
    wild = judge([reading_of(tmp_path / "b", label="Wild", stalled="Every update of round 3 was not finite.")])
    assert wild.warnings == ("Wild, seed 0 ended early. Every update of round 3 was not finite.",)
    assert wild.places[0].ended == wild.warnings


def test_traffic_of_a_silent_method_is_zero(tmp_path: Path) -> None:
    loud = reading_of(tmp_path / "a", label="loud")
    silent = with_metrics(tmp_path / "b", "silent", 0, {"acc_device": [0.1, 0.2]})
    found = judge([loud, silent])
    assert cell(found, "silent", "bytes_dev-edge").mean == 0.0
    # 20 devices × 20,000 bytes × 10 rounds, up and down
    assert cell(found, "loud", "bytes_dev-edge").mean == 2 * 20 * 20_000 * 10


def test_every_setting_has_a_verdict_of_its_own(tmp_path: Path) -> None:
    readings = [reading_of(tmp_path / f"{n}", name=f"fleet of {n}", devices=n) for n in (8, 12)]
    found = verdicts(compare(readings))
    assert [v.setting.name for v in found] == ["fleet of 8", "fleet of 12"]
    assert found[0].headline.startswith("HierFAVG · fleet of 8 reaches accuracy per device")


def test_a_budget_that_cannot_be_held_equal_is_told_of(tmp_path: Path) -> None:
    sends = with_metrics(tmp_path / "a", "A", 0, {"acc_device": [0.1, 0.5], "bytes": [0.0, 9.0]})
    alone = with_metrics(tmp_path / "b", "Alone", 0, {"acc_device": [0.1, 0.6]})
    found = judge([sends, alone], None, "bytes")
    assert found.budget.kind == "time"
    assert found.warnings[0] == "The bytes sent cannot be held equal, for Alone used none; virtual time is."
    assert not any("held equal" in w for w in judge([sends, alone], None, "time").warnings)


def test_a_prior_that_lowers_the_loss_at_once_does_not_hide_what_was_learnt(tmp_path: Path) -> None:
    scores = {"acc_device": [0.72, 0.75], "loss_device": [0.5, 0.55], "acc_global": [0.3, 0.75]}
    run = with_metrics(tmp_path / "a", "A", 0, scores)
    assert not any("learnt nothing" in w for w in judge([run]).warnings)
    stuck = with_metrics(tmp_path / "b", "A", 0, {**scores, "acc_global": [0.3, 0.31]})
    assert any("learnt nothing" in w for w in judge([stuck]).warnings)
