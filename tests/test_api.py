"""The Python face: what `compare` takes, what it refuses, and what is left when a run fails."""

from __future__ import annotations

from typing import Any

import pytest

import espalier
from espalier.core.errors import ComparisonError, ConfigError

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
