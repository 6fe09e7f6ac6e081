"""A report that nobody can read is refused when its reader finds out, and its sender is named, not who came last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from espalier.core.messages import Report
from espalier.fleet.links import wire
from espalier.fleet.links.framing import Letter
from tests.fleet.net import Net
from tests.fleet.test_authority import CLOUD, ROGUE, Places, Rogue

UNREADABLE: list[dict[str, Any]] = [{}, {"histogram": "x"}, {"links": [1.0], "seconds": "x"}]


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
