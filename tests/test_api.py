"""The Python face: what `compare` takes, what it refuses, and what is left when a run fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import espalier
from espalier import Experiment, compare, simulate
from espalier.core.errors import ComparisonError, ConfigError
from espalier.report.groups import compare as grouped
from espalier.report.reading import read_all, readings_of

TINY: dict[str, Any] = {"fleet": {"devices": 4, "edges": 2}, "stop": {"rounds": 1}}


def test_one_method_need_not_be_in_a_list() -> None:
    (run,) = espalier.compare("fedavg", TINY)
    assert run.label == "FedAvg"


@pytest.mark.parametrize("seeds", ["01", 3, [], [0.5], [True], ["0"]])
def test_seeds_are_whole_numbers(seeds: Any) -> None:
    with pytest.raises(ConfigError, match=r"whole numbers, such as \[0, 1, 2\]"):
        espalier.compare(["fedavg"], TINY, seeds=seeds)


def test_finished_runs_are_kept_when_one_method_fails() -> None:
    # PHE-FL needs sets of the edges' own, which this partition does not hold out
    with pytest.raises(ComparisonError, match=r"1 of 2 runs failed.*PHE-FL, seed 0") as caught:
        espalier.compare(["phefl", "fedavg"], TINY)
    assert [run.label for run in caught.value.runs] == ["FedAvg"]


def test_an_unknown_kind_is_told_in_plain_words() -> None:
    with pytest.raises(ConfigError, match=r"root.merge.kind = 'nedian': unknown; known kinds: .*Did you mean 'median'"):
        espalier.simulate({"name": "fedavg", "root": {"merge": {"kind": "nedian"}}}, TINY)


def test_a_comparison_gives_every_method_the_time_of_the_first(tmp_path: Path) -> None:
    base = {"fleet": {"devices": 6, "edges": 2}, "stop": {"rounds": 3, "budget": "time"}}
    for directory in (None, tmp_path):
        runs = compare(["fedavg", "csahfl", "standalone"], base, seeds=[0, 1], directory=directory)
        times = {(r.label, r.seed): r.frame()["time"].iloc[-1] for r in runs}
        for seed in (0, 1):
            assert times["FedAvg", seed] == times["CSAHFL", seed] == times["Standalone", seed] > 0
        assert times["FedAvg", 0] != times["FedAvg", 1]
        assert len({r.rounds for r in runs}) > 1


def test_every_run_knows_the_whole_plan_and_a_report_goes_by_it(tmp_path: Path) -> None:
    """Colours are the plan's: neither names nor what has begun changes them."""
    runs = compare(["hierfavg", "csahfl"], TINY, directory=tmp_path)
    assert [r.meta("planned") for r in runs] == [["HierFAVG", "CSAHFL"]] * 2
    places = [{g.label: g.number for g in grouped(readings_of(some)).groups} for some in (runs, runs[1:], runs[::-1])]
    assert places == [{"HierFAVG": 0, "CSAHFL": 1}, {"CSAHFL": 1}, {"HierFAVG": 0, "CSAHFL": 1}]
    assert [g.label for g in grouped(read_all([tmp_path])).groups] == ["HierFAVG", "CSAHFL"]
    assert simulate("fedavg", TINY).meta("planned") == []


def test_rounds_that_are_asked_for_are_what_every_method_does() -> None:
    base = {"fleet": {"devices": 6, "edges": 2}, "stop": {"rounds": 2}}
    assert [r.rounds for r in compare(["fedavg", "csahfl"], base)] == [2, 2]
    assert Experiment.build({}).stop.budget == "time"
    assert Experiment.build({"stop": {"seconds": 9}}).stop.budget == "rounds"
    with pytest.raises(ConfigError, match=r"stop.budget = 'time': must be 'rounds' where no rounds are given"):
        Experiment.build({"stop": {"seconds": 9, "budget": "time"}})


def test_an_experiment_without_a_world_costs_time_and_an_ideal_one_none() -> None:
    base = {"fleet": {"devices": 6, "edges": 2}, "stop": {"rounds": 1}}
    seconds = [simulate(method, base).frame()["time"].iloc[-1] for method in ("fedavg", "hierfavg")]
    assert seconds[0] > seconds[1] > 0  # devices that talk to the cloud themselves share their edge's link
    assert simulate("fedavg", {**base, "world": "ideal"}).seconds == 0
    runs = compare(["fedavg", "hierfavg"], {**base, "world": "ideal", "stop": {"rounds": 2, "budget": "time"}})
    assert [r.rounds for r in runs] == [2, 2]
