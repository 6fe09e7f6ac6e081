"""A report that nobody can read is refused when its reader finds out, and its sender is named, not who came last."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from espalier.core.messages import Report, Train
from espalier.fleet.links import wire
from espalier.fleet.links.framing import Letter
from espalier.fleet.membership import Member
from tests.fleet.net import Net, OneMore, manifest
from tests.fleet.test_authority import CLOUD, ROGUE, Places, Rogue

LINKS = [0.1, 0.1, 0.1, 0.1]
UNREADABLE: list[dict[str, Any]] = [
    {}, {"histogram": "x"}, {"links": [1.0], "seconds": "x"},
    # these ended the cloud's process for good, as if its operator had configured such a world
    {"links": LINKS, "seconds": -1.0}, {"links": LINKS, "seconds": math.nan}, {"links": [-1.0] * 4, "seconds": 0.1},
]  # fmt: skip


def spoilt(letter: Letter, stats: dict[str, Any]) -> Letter | None:
    """Put other statistics into an answer to a survey."""
    said = wire.unpack(letter.content)
    if not isinstance(said, Report) or not said.stats:
        return None
    content = wire.pack(replace(said, stats=stats), Places())
    return Letter(letter.dest, letter.series, letter.number, content, letter.parts)


def play(net: Net, stats: dict[str, Any], liars: set[int]) -> None:
    done: list[Letter] = []
    for _ in range(3000):
        for place, (dest, origin, letter) in enumerate(net.wire):
            if dest == CLOUD and origin in liars and letter not in done and (other := spoilt(letter, stats)):
                net.wire[place] = (dest, origin, other)
                done.append(other)
        if net.coordinator.finished:
            break
        if not net.step():
            net.idle()
    assert done
    assert net.coordinator.finished


@pytest.mark.parametrize("stats", UNREADABLE, ids=str)
def test_statistics_that_nobody_can_read(quick: Path, stats: dict[str, Any]) -> None:
    # The cloud ended with KeyError when the survey's deadline came, or blamed whoever had answered last.
    net = Rogue(quick, "d2d")
    play(net, stats, {ROGUE})
    assert {origin for _, origin, _ in net.refused} == {ROGUE}
    assert any("What node 0 sent makes no sense" in why for _, _, why in net.refused)


def test_of_several_liars_no_innocent_is_blamed(quick: Path) -> None:
    net = Rogue(quick, "d2d")
    play(net, {}, {ROGUE, 3})
    assert {origin for _, origin, _ in net.refused} == {ROGUE, 3}


@pytest.mark.parametrize("seed", range(4))
def test_two_liars_of_one_round_do_not_cost_the_others_theirs(quick: Path, seed: int) -> None:
    # Whose reports could not be read was tried by leaving out one: with two, all that the others had trained was lost,
    # and nobody was blamed, in every round.
    net = Net(manifest(5, 1, 3, "fednova"), quick, seed, hostile=True)
    for _ in range(2000):
        for place, (dest, origin, letter) in enumerate(net.wire):
            if origin in (1, 3) and (other := spoilt(letter, {"normalised steps": "x"})):
                net.wire[place] = (dest, origin, other)
        if net.coordinator.finished:
            break
        if not net.step():
            net.idle()
    assert net.coordinator.round == 3
    assert {origin for _, origin, _ in net.refused} == {1, 3}
    trained = net.model()[:5] > 0
    assert trained.tolist() == [True, False, True, False, True]


def test_who_says_that_it_takes_thirty_years_is_not_believed(quick: Path) -> None:
    # A global round of D2D lasts as long as its clusters say that they need: this one lasted 4e9 s.
    net = Rogue(quick, "d2d")
    play(net, {"links": LINKS, "seconds": 1e9}, {ROGUE})
    assert net.now < 1000
    assert net.refused == []


class Sluggish(Rogue):
    """A fleet of which one device greets as one that needs 1e9 s for a mini-batch."""

    def member(self, host: int, via: int | None = None, stamp: int = 1) -> Member:
        seconds = 1e9 if host == ROGUE else 0.01
        return replace(super().member(host, via, stamp), seconds_per_batch=seconds, model_seconds=0.01)


def test_a_greeting_does_not_set_the_others_interval(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # CSAHFL waits as long as devices say that they need; this one never trains: its edge's round lasted 1.25e9 s, and
    # the cloud went on without that edge and all its devices.
    def told(*_: Any) -> dict[str, Any]:
        return {"histogram": np.ones(3, dtype=np.float32), "signature": np.eye(5, 3, dtype=np.float32)}

    monkeypatch.setattr(OneMore, "measure", told)
    net = Sluggish(quick, "csahfl")
    for _ in range(3000):
        net.jobs = [(host, work) for host, work in net.jobs if host != ROGUE or not isinstance(work.action, Train)]
        if net.coordinator.finished:
            break
        if not net.step():
            net.idle()
    assert net.coordinator.finished
    assert max(e["seconds"] for e in net.events("interval")) < 100


def test_times_that_are_told_are_held_to_what_half_of_them_are(quick: Path) -> None:
    directory = Rogue(quick).engines[CLOUD].directory

    def believed(*told: float) -> list[float]:
        return directory.credible(np.array(told)).tolist()

    assert believed(1.0, 2.0, 59.0) == [1.0, 2.0, 59.0], "nobody below the least deadline is doubted"
    assert believed(1.0, 2.0, 1e9) == [1.0, 2.0, 60.0]
    assert believed(10.0, 1e9) == [10.0, 100.0]
    assert believed(10.0, 20.0, 300.0, math.inf) == [10.0, 20.0, 200.0, math.inf]
    assert believed(math.inf) == [math.inf]
    assert believed() == []
