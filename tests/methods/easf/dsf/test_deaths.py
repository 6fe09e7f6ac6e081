"""Whoever dies, the root included, at whatever moment: the training goes on. (benchmarks/dsf.py plays 200 scripts.)"""

from __future__ import annotations

import pytest

from tests.methods.easf.dsf.deaths import DeathsOutcome, play


@pytest.mark.parametrize("number", range(1000, 1020))
def test_easf_survives_random_scripts(number: int) -> None:
    outcome = play(number, "easf")
    assert not outcome.wrong
    assert outcome.pause < 20.0


@pytest.mark.parametrize(("method", "number"), [("syn", 7), ("hfl_easf", 8), ("kma_raf", 5), ("kma_raf", 13)])
def test_so_do_the_others(method: str, number: int) -> None:
    assert not play(number, method).wrong


def test_a_script_is_played_the_same_way_twice() -> None:
    first, second = play(3, "easf"), play(3, "easf")
    assert isinstance(first, DeathsOutcome) and first == second
    assert first.victims
