"""Older and newer nodes in one fleet: both ends of a link speak the newest version that both know."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier.fleet.links.wire import VERSIONS, WireVersions
from espalier.record.run import Run
from tests.fleet import counting

OLDER = WireVersions(VERSIONS.oldest, VERSIONS.oldest)
NEWER = WireVersions(VERSIONS.newest, VERSIONS.newest + 1)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [((6, 7), (6, 7), 7), ((6, 7), (6, 6), 6), ((6, 7), (7, 8), 7), ((6, 7), (8, 9), None), ((6, 6), (7, 7), None)],
)
def test_the_newest_common_version(one: tuple[int, int], other: tuple[int, int], common: int | None) -> None:
    assert WireVersions(*one).common(WireVersions(*other)) == common


@given(*[st.integers(1, 9)] * 4)
def test_both_ends_find_the_same_version_and_speak_it(a: int, b: int, c: int, d: int) -> None:
    one, other = WireVersions(min(a, b), max(a, b)), WireVersions(min(c, d), max(c, d))
    common = one.common(other)
    assert common == other.common(one)
    spoken = set(range(one.oldest, one.newest + 1)) & set(range(other.oldest, other.newest + 1))
    assert common == max(spoken, default=None)


def test_a_rolling_upgrade_in_the_middle_of_a_run_loses_nothing(tmp_path: Path) -> None:
    # device 0 is older than all others, device 1 newer; the rest is upgraded one by one, as a service manager does it
    rounds, devices = 12, 4
    made = counting.experiment(devices, 2, rounds)
    with counting.fleet(made, tmp_path, patience=30.0) as nodes:
        nodes.start("cloud", "edge-0", "edge-1")
        for number, versions in enumerate((OLDER, NEWER, VERSIONS, VERSIONS)):
            nodes.launch(f"device-{number}", versions=versions)
        for turn, name in enumerate(("edge-0", "device-2", "cloud", "edge-1"), 1):
            nodes.until("cloud", lambda s, least=2 * turn: s.get("round", -1) >= least)  # type: ignore[misc]
            nodes.kill(name, signal.SIGHUP)
            assert nodes.processes[name].exitcode == 0
            nodes.launch(name, versions=WireVersions(VERSIONS.oldest, VERSIONS.newest + 1))
        nodes.wait(60)
    found = counting.counts(tmp_path / "cloud", devices, counting.weights_of(made))
    torch.testing.assert_close(found, torch.full((devices,), rounds / devices, dtype=torch.float64), atol=1e-5, rtol=0)
    times = counting.merged(Run(tmp_path / "cloud"))
    assert (sum(times.values()), set(times.values())) == (rounds * devices, {1})


def test_a_node_with_which_nobody_shares_a_version_is_told_so(tmp_path: Path) -> None:
    with counting.fleet(counting.experiment(1, 1, 1), tmp_path) as nodes:
        nodes.start("cloud")
        nodes.launch("edge-0", versions=WireVersions(8, 9))
        nodes.processes["edge-0"].join(30)
        assert nodes.processes["edge-0"].exitcode == 2
    log = (tmp_path / "edge-0" / "node.log").read_text()
    assert f"it speaks versions 8 to 9 of the protocol, this node {VERSIONS}: upgrade the older one" in log
