"""A study's figures: means, spreads, orders, and seeds under which a target is never reached."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import espalier
from espalier.study.base import Metric, Study, last, reached, studies
from espalier.study.results import Finished, Results, arrangement, keep, kept
from espalier.study.tables import markdown

NEVER = float("nan")


def results(ours: dict[str, list[float]], published: dict[str, float], **options: Any) -> Results:
    options = {"lower": True, "digits": 1, **options}
    study = Study(
        name="made/up",
        title="a table",
        cells=lambda scale: [],
        measures={"time": Metric("time (s)", lambda run: NEVER, **options)},
        published={row: {"here": {"time": value}} for row, value in published.items()},
    )
    cells = {(row, "here"): {s: Finished({"time": v}) for s, v in enumerate(values)} for row, values in ours.items()}
    return Results(study, "smoke", cells)


def test_a_seed_without_a_figure_is_told_and_ranks_behind() -> None:
    """B reached the target sooner, but under one seed of three."""
    found = results({"A": [30.0, 34.0, 38.0], "B": [NEVER, 10.0, NEVER], "C": [NEVER] * 3}, {"A": 1, "B": 2, "C": 3})
    text = markdown(found, "a command")
    assert "| A | **34.0 ± 4.0** (1.0) |" in text
    assert "| B | 10.0 [1 of 3 seeds] (2.0) |" in text
    assert "| C | – (3.0) |" in text
    assert "nan" not in text
    assert found.best("here", "time") == "A"


@pytest.mark.parametrize(("lower", "best", "tau"), [(True, "A", 1.0), (False, "C", 1.0)])
def test_orders(lower: bool, best: str, tau: float) -> None:
    found = results({"A": [1.0], "B": [2.0], "C": [3.0]}, {"A": 10, "B": 20, "C": 30}, lower=lower)
    assert found.best("here", "time") == best == found.best("here", "time", published=True)
    assert found.agreement("here", "time") == pytest.approx(tau)
    swapped = results({"A": [1.0], "B": [3.0], "C": [2.0]}, {"A": 10, "B": 20, "C": 30}, lower=lower)
    assert swapped.agreement("here", "time") == pytest.approx(1 / 3)
    assert results({"A": [1.0], "B": [2.0]}, {}).agreement("here", "time") != 0  # not a number: nothing to compare with


def test_a_number_that_is_neither_good_nor_bad_has_no_best() -> None:
    found = results({"A": [4.0], "B": [8.0], "C": [6.0]}, {"A": 4, "B": 8, "C": 3}, ranked=False)
    assert found.best("here", "time") is None and found.words() == []
    assert "**" not in markdown(found, "a command")


def test_a_paper_that_prints_one_figure_says_nothing_about_the_best() -> None:
    assert results({"A": [1.0], "B": [2.0]}, {"B": 20}).words() == []
    assert len(results({"A": [1.0], "B": [2.0]}, {"A": 10, "B": 20}).words()) == 1


@pytest.mark.parametrize("columns", [1, 2, 9])
def test_markdown_has_a_table_per_measure_and_broad_ones_lie_on_their_side(columns: int) -> None:
    study = Study(
        name="made/up",
        title="a table",
        cells=lambda scale: [],
        measures={
            "one": Metric("first", lambda run: NEVER, digits=0),
            "two": Metric("second", lambda run: NEVER, digits=0),
        },
    )
    value = {(r, f"c{c}"): c + 1.0 + 10 * (r == "B") for r in "AB" for c in range(columns)}
    cells = {at: {0: Finished({"one": v, "two": 2 * v})} for at, v in value.items()}
    lines = markdown(Results(study, "smoke", cells), "a command").splitlines()
    rows = [line for line in lines if line.startswith("|") and "---" not in line]
    if columns == 1:
        assert rows == ["|  | c0: first | c0: second |", "| A | 1 | 2 |", "| B | **11** | **22** |"]
    elif columns == 2:
        assert ["first:" in lines, "second:" in lines] == [True, True]
        assert rows[:3] == ["|  | c0 | c1 |", "| A | 1 | 2 |", "| B | **11** | **12** |"]
        assert rows[5] == "| B | **22** | **24** |"
    else:
        assert rows[:2] == ["|  | A | B |", "| c0 | 1 | **11** |"]
        assert len(rows) == 2 * (1 + columns)


def test_figures_are_kept_as_data_and_read_back(tmp_path: Path) -> None:
    first = results({"A": [1.0, NEVER], "B": [3.0, 4.0]}, {"A": 10})
    path = keep(first, tmp_path)
    assert path.name == "made-up-smoke.json"
    back = kept(first.study, "smoke", tmp_path)
    assert back is not None and markdown(back, "x") == markdown(first, "x")
    # runs that are made later join those that are there, and replace their own
    keep(results({"B": [5.0], "C": [6.0]}, {}), tmp_path)
    joined = kept(first.study, "smoke", tmp_path)
    assert joined is not None and joined.rows == ["A", "B", "C"]
    assert joined.by_seed("B", "here", "time") == {0: 5.0, 1: 4.0}
    assert kept(first.study, "full", tmp_path) is None


def test_facts_of_a_study_stand_beside_what_methods_did() -> None:
    first = results({"A": [1.0, 2.0], "B": [3.0, 4.0]}, {})
    study = replace(first.study, shown_facts={"nearness": "how near", "why": "what decided"})
    facts: dict[str, list[dict[str, Any]]] = {
        "A": [{"rounds": 5, "nearness": 0.031}, {"rounds": 5, "nearness": 0.088}],
        "B": [{"rounds": 5, "why": {"cut": 1, "moved": 2.5}}, {"rounds": 5, "why": {"cut": 1, "moved": 3.0}}],
    }
    cells = {(row, "here"): {s: Finished({"time": 1.0}, f) for s, f in enumerate(each)} for row, each in facts.items()}
    text = markdown(Results(study, "smoke", cells), "a command")
    assert "|  | rounds | how near | what decided |" in text
    assert "| A | 5 | 0.03–0.09 | – |" in text and "| B | 5 | – | cut 1.0, moved 2.5–3.0 |" in text


@pytest.mark.parametrize(
    ("event", "found"),
    [
        ({"clusters": 2, "sizes": [60, 40], "beta": 20.0, "why": ""}, {"clusters": 2, "sizes": [60, 40], "beta": 20.0}),
        ({"clusters": {"1": [0, 3], "2": [1, 2, 4]}, "why": "drift"}, {"clusters": 2, "sizes": [3, 2], "why": "drift"}),
        ({"clusters": [[0], [1, 2]]}, {"clusters": 2, "sizes": [2, 1]}),
        ({"clusters": 4}, {"clusters": 4}),
    ],
)
def test_every_way_to_tell_clusters_is_kept_as_a_number_and_sizes(event: dict[str, Any], found: dict[str, Any]) -> None:
    assert arrangement({"time": 0.0, **event}) == found


@pytest.mark.parametrize(("method", "has"), [("ifca", False), ("fedavg", True)])
def test_a_method_without_a_global_model_has_no_figure_of_one(method: str, has: bool) -> None:
    """IFCA has a common model only before its devices choose: what was measured then is not its result."""
    run = espalier.simulate(method, {"fleet": {"devices": 6, "edges": 2}, "stop": {"rounds": 2}})
    assert run.query("SELECT count(*) FROM metrics WHERE name = 'acc_global'")[0][0] >= 1
    assert math.isnan(last(run, "acc_global")) != has
    assert last(run, "acc_device") > 0


def test_who_never_merges_has_no_global_model_among_the_sources_either() -> None:
    """OnlyEdge's cloud serves what it began with: no device could use that as a result."""
    setting = {"fleet": {"devices": 6, "edges": 2}, "stop": {"rounds": 2}, "evaluate": {"by_source": True}}
    alone, merged = (espalier.simulate(method, setting) for method in ("only_edge", "edge_cloud"))
    assert math.isnan(last(alone, "acc_device_global")) and last(alone, "acc_device_edge") > 0
    assert last(merged, "acc_device_global") > 0


def test_what_a_method_does_not_have_reaches_no_target() -> None:
    run = espalier.simulate("standalone", {"fleet": {"devices": 4, "edges": 2}, "stop": {"rounds": 1}})
    assert math.isnan(reached(run, 0.0, "acc_global")) and reached(run, 0.0, "acc_device") == 0.0


def test_a_study_of_which_one_row_was_run_has_its_words() -> None:
    facts = {"rounds": 3, "seconds": 1.0, "recovered": True, "alphas": []}
    for one in studies().values():
        run = Finished(dict.fromkeys(one.measures, 0.5), facts)
        for cell in one.cells("smoke"):
            assert isinstance(Results(one, "smoke", {(cell.row, cell.column): {0: run, 1: run}}).words(), list)
