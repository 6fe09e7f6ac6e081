"""Batches, workers and partial sums without Ray: every bit as from one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from espalier.simulator import portions
from espalier.simulator.jobs import SummingCompute
from espalier.testing.conformance import BASE
from tests.scale.near import Near, rows, run

CASES: dict[str, dict[str, Any]] = {
    "hierfavg": {"method": "hierfavg"},
    "many in one sum": {"method": "fedavg", "fleet": {"devices": 90, "edges": 3}, "stop": {"rounds": 2}},
    "asynchronous": {"method": "fedat"},
    "late updates": {"method": "csahfl", "stop": {"rounds": 2}},
    "several models": {"method": "ifca"},
    "pulled to an anchor": {"method": {"name": "fedprox", "mu": 0.1}},
    "vectors wanted": {"method": {"name": "hierfavg", "edge": {"merge": {"kind": "median"}}}},
    "false models": {
        "method": "hierfavg",
        "world": {"preset": "ideal", "attackers": {"kind": "sign_flip", "fraction": 0.2}},
    },
    "false labels": {
        "method": "hierfavg",
        "world": {"preset": "ideal", "attackers": {"kind": "label_flip", "fraction": 0.2}},
    },
    "drift": {"method": "hierfavg", "world": {"preset": "ideal", "drift": {"kind": "rotate_prior", "period": 1}}},
    "noisy updates": {"method": {"name": "hierfavg", "local": {"kind": "private", "clip": 1.0, "noise": 0.5}}},
    "corrections": {"method": "scaffold"},
    "features of other models": {"method": "moon"},
    "a mixture of two models": {"method": "apfl"},
    "prototypes": {"method": "fedproto"},
    "memories kept": {"method": "standalone", "training": {"momentum": 0.9, "batch_size": 10}, "stop": {"rounds": 2}},
    "adam": {"method": "hierfavg", "training": {"optimizer": "adam", "lr": 0.01, "batch_size": 10}},
    "a loss of the user's own": {"method": "hierfavg", "task": {"loss": "tests.training.test_losses:squared_hinge"}},
    "trial trainings": {"method": "easf", "stop": {"rounds": 1}},
    "noisy samples": {
        "method": "hierfavg",
        "world": {"preset": "ideal", "drift": {"kind": "gradual", "feature": "noise", "end": 2.0, "fraction": 0.5}},
        "stop": {"rounds": 3},
    },
    "edges' own test sets": {
        "method": "phefl",
        "partition": {"kind": "phefl", "layout": "D2"},
        "fleet": {"devices": 20, "edges": 10},
        "stop": {"rounds": 2},
    },
    "metrics of the whole": {
        "method": "hierfavg",
        "task": {**BASE["task"], "metrics": ["auc", "ece", "tests.training.test_metrics:right_share"]},
    },
    "float64": {"method": "hierfavg", "training": {"precision": "float64", "batch_size": 10}},
}


@pytest.fixture(autouse=True)
def _everything_is_worth_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "WORTH_SENDING", 0)


@pytest.mark.parametrize("join", [False, True], ids=["parts come back", "parts are joined"])
@pytest.mark.parametrize("case", CASES)
def test_every_row_is_as_from_one_process(case: str, join: bool) -> None:
    options = dict(CASES[case])
    near = Near(join=join)
    away, here = run(near, **options), run(None, **options)
    assert rows(away) == rows(here)
    for name, vector in here.final_models().items():
        assert torch.equal(away.final_models()[name], vector)
    assert isinstance(away.task.computers[0], SummingCompute)
    assert near.portions["_counts"]
    assert bool(near.portions["_tried"]) == (case == "trial trainings")
    assert bool(near.portions["_outputs"]) == (case == "metrics of the whole")


def test_models_stay_away_where_sums_are_enough_and_come_back_where_they_are_wanted() -> None:
    sums, vectors = Near(), Near()
    run(sums, "hierfavg", fleet={"devices": 24, "edges": 3})
    run(vectors, {"name": "hierfavg", "edge": {"merge": {"kind": "median"}}}, fleet={"devices": 24, "edges": 3})
    # of the three edges' eight jobs each, two edges' stay whole; the third's are dealt to both workers; four rounds
    assert sums.handed == 16 * 4
    assert vectors.handed == 0


def test_a_sum_of_several_batches_comes_back_as_one_model() -> None:
    parts, joined = Near(workers=3), Near(workers=3, join=True)
    for near in (parts, joined):
        run(near, "hierfavg", fleet={"devices": 40, "edges": 2}, stop={"rounds": 1})
    # two edges' twenty jobs each are seven batches' work: one model per edge and edge round is all that is needed
    rounds = joined.handed // 40
    assert joined.back == 2 * rounds < parts.back


@pytest.mark.parametrize("join", [False, True])
def test_models_that_are_not_finite_are_left_out_and_told_in_the_same_order(join: bool) -> None:
    options: dict[str, Any] = {
        "fleet": {"devices": 40, "edges": 2},
        "world": {"compute": {"kind": "rate", "low": 1.0, "high": 8.0}},
        "training": {"lr": 3e38, "batch_size": 10},
        "stop": {"rounds": 1},
    }
    near = Near(join=join)
    away, here = run(near, "hierfavg", **options), run(None, "hierfavg", **options)
    rejected = [row for row in rows(here)["events"] if "rejected" in row]
    assert rejected and near.handed
    assert rows(away) == rows(here)
