"""A device that takes orders and never reports does not stop a synchronous method."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.fleet.net import Net, manifest

ROUNDS = 4


def silent(net: Net, device: int, steps: int = 4000) -> bool:
    """Run with a device that never gets anything done; tell whether the run ended."""
    for _ in range(steps):
        net.jobs = [(host, work) for host, work in net.jobs if host != device]
        if net.coordinator.finished:
            return True
        if not net.step():
            net.idle()
    return False


def test_a_round_goes_on_without_who_never_reports(quick: Path) -> None:
    # Edge 4 has devices 0 and 2: it merges device 2 alone, 1 per round. It stands for the 20 samples that are
    # registered below it, half of all, so device 2's number grows by 1/2 a round, those of devices 1 and 3 by 1/4.
    net = Net(manifest(4, 2, ROUNDS), quick)
    assert silent(net, 0)
    expected = torch.tensor([0.0, ROUNDS / 4, ROUNDS / 2, ROUNDS / 4])
    torch.testing.assert_close(net.model()[:4], expected)
    [overdue] = net.events("overdue")
    assert (overdue["node"], overdue["children"]) == (4, [0]), "once: it keeps its order until it reports"
    assert [e["parent"] for e in net.events("late")] == [4], "it was told"
    assert 60 <= net.now < 600


def test_an_edge_that_restarts_still_knows_how_long_the_others_took(quick: Path) -> None:
    # It forgot, so its round had no limit, and the cloud's went on without the edge and all its devices.
    net = Net(manifest(4, 2, ROUNDS), quick)
    while not any(e.nodes[4].state.cohorts and any(c.arrived for c in e.nodes[4].state.cohorts.values())
                  for e in [net.engines[4]] if 4 in e.nodes):  # fmt: skip
        net.jobs = [(host, work) for host, work in net.jobs if host != 0]
        net.step()
    net.kill(4)
    assert silent(net, 0)
    torch.testing.assert_close(net.model()[:4], torch.tensor([0.0, ROUNDS / 4, ROUNDS / 2, ROUNDS / 4]))


def test_one_of_two_does_not_set_the_deadline(quick: Path) -> None:
    # Three quarters of two children's times are the faster one's. Before, they lay between the two: 0.75 of the way to
    # 59 s are 44.5 s, the deadline rose to 445 s, and with every report right before it by as much again.
    net = Net(manifest(2, 1, 40), quick)
    edge = net.engines[2].stragglers
    edge._took[2] = {0: 59.0, 1: 1.0}
    assert edge._limit(2) == 60.0
    edge._took[2] = {0: 59.0, 1: 59.0}
    assert edge._limit(2) == 590.0, "both are slow"


def test_without_a_deadline_it_is_waited_for(quick: Path) -> None:
    net = Net(manifest(4, 2, ROUNDS, round_deadline=None), quick)
    assert not silent(net, 0, 1500)
    assert net.coordinator.round == 0


@pytest.mark.parametrize("method", ["fedavg", {"name": "hierfavg", "edge": {"merge": {"kind": "secure"}}}])
def test_other_methods_go_on_too(quick: Path, method: object) -> None:
    net = Net(manifest(6, 1, ROUNDS, method), quick)
    assert silent(net, 0)
    assert net.coordinator.round == ROUNDS
    assert float(net.model()[0]) == 0.0
    assert float(net.model()[1]) > 0.0


def test_who_is_slow_once_takes_part_again(quick: Path) -> None:
    net = Net(manifest(4, 2, ROUNDS), quick)
    kept = []
    while net.coordinator.round < 1:
        kept += [(host, work) for host, work in net.jobs if host == 0]
        net.jobs = [(host, work) for host, work in net.jobs if host != 0]
        if not net.step():
            net.idle()
    net.jobs += kept
    net.run()
    assert 0.0 < float(net.model()[0]) < ROUNDS / 4
    assert "late" in {e["why"] for e in net.events("dropped")}
