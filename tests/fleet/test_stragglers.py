"""A device that takes orders and never reports does not stop a synchronous method."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from espalier.core.messages import Measure, Report
from tests.fleet.net import Net, manifest

ROUNDS = 4


def report(order: int) -> Report:
    """A report of device 0 to the edge."""
    return Report(order, 2, 0, 2, {}, {}, 1, 0, 0.0)


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


def slow(net: Net, devices: set[int], seconds: float) -> None:
    """Run with devices whose every training takes so long."""
    held: list[tuple[float, Any]] = []
    over: list[Any] = []
    for _ in range(20_000):
        if net.coordinator.finished:
            return
        fresh = [job for job in net.jobs if job[0] in devices and job not in over]
        held += [(net.now + seconds, job) for job in fresh]
        over += [job for when, job in held if when <= net.now]
        net.jobs = [job for job in net.jobs if job not in fresh] + [job for when, job in held if when <= net.now]
        held = [(when, job) for when, job in held if when > net.now]
        ends = min((when for when, _ in held), default=math.inf)
        if net.wire or net.jobs or net.resend():
            net.step()
        elif ends < min((timer.due for _, timer in net.timers), default=math.inf):
            net.now = ends
        elif not net.step():
            net.idle()
    raise AssertionError(f"not over: round {net.coordinator.round}")


@pytest.mark.parametrize("devices", [4, 9])
def test_one_that_is_fast_does_not_run_away_with_the_run(quick: Path, devices: int) -> None:
    # It reported at once, 60 s later the first round was closed without the others, whose training takes five minutes,
    # and it went through all the rounds alone.
    net = Net(manifest(devices, 1, ROUNDS), quick)
    slow(net, set(range(1, devices)), 300.0)
    torch.testing.assert_close(net.model()[:devices], torch.full((devices,), ROUNDS / devices))
    assert net.events("overdue") == []


def test_who_has_never_reported_is_not_waited_for_for_ever(quick: Path) -> None:
    # Half of them hang from the beginning: that costs ten times the least deadline, once.
    net = Net(manifest(4, 1, ROUNDS), quick)
    slow(net, {2, 3}, 1e6)
    assert [(e["children"], e["seconds"]) for e in net.events("overdue")] == [([2, 3], 600.0)]
    assert net.now < 1000


def test_an_answer_to_no_order_does_not_forget_when_orders_went_out(quick: Path) -> None:
    # A child's lie of a later order made its real answer one of which nobody knew how long it had taken.
    net = Net(manifest(2, 1, 40), quick)
    edge = net.engines[2].stragglers
    net.now, edge._sent[0, 7] = 100.0, 90.0
    assert edge.reported(report(order=1 << 61)) == 100.0
    assert edge.reported(report(order=7)) == 10.0


#: methods whose rounds are the edges' own: the cloud orders edges round by round, or once for ever
OF_EDGES = [{"name": "hierfavg", "clock": "edge"}, {"name": "phefl", "alpha": 0.5}, "cflhkd", "only_edge"]


def mute(net: Net, edge: int, steps: int = 20_000) -> None:
    """Run with an edge that does its work and never says that it has closed a round."""
    net.engines[edge].conduct.close = lambda node, progress: None  # type: ignore[method-assign]
    for _ in range(steps):
        if net.coordinator.finished:
            return
        if net.now > 1 and not net.wire and not net.jobs:
            net.now += 1.0
        if not net.step() or net.rng.random() < 0.02:
            net.idle()
    raise AssertionError(f"not over: round {net.coordinator.round}")


@pytest.mark.parametrize("method", OF_EDGES)
def test_an_edge_that_closes_no_round_does_not_keep_the_run_going(quick: Path, method: object) -> None:
    net = Net(manifest(6, 3, ROUNDS, method), quick)
    mute(net, 7)
    assert net.coordinator.round >= ROUNDS
    assert [e["children"] for e in net.events("overdue")] == [[7]]
    assert [e["parent"] for e in net.events("late")] == [net.cloud], "it was told"
    assert net.coordinator.bulletin.late == {7: 1}
    assert 120 <= net.now < 600


@pytest.mark.parametrize("method", OF_EDGES)
def test_the_run_goes_on_with_the_cloud_where_an_edge_hangs(quick: Path, method: object) -> None:
    # the cloud's own round ends without it: the run's does, too, and nobody does a round more than asked for
    net = Net(manifest(6, 3, ROUNDS, method), quick)
    hung = {1, 4}
    for _ in range(4000):
        net.jobs = [job for job in net.jobs if job[0] not in hung]
        if net.coordinator.finished:
            break
        if not net.step() or net.rng.random() < 0.02:
            net.idle()
    assert net.coordinator.finished
    assert net.coordinator.bulletin.late[7] == 1
    assert method == "only_edge" or net.coordinator.round == ROUNDS


def test_a_survey_that_nobody_answers_any_more_is_over(quick: Path) -> None:
    # It does all its work, and never tells its labels. The first survey went on without it; the next, of it alone, was
    # never over. It is asked no second time before it has answered.
    net = Net(manifest(4, 2, ROUNDS, "cflhkd"), quick)
    for _ in range(4000):
        net.jobs = [job for job in net.jobs if job[0] != 1 or not isinstance(job[1].action, Measure)]
        if net.coordinator.finished:
            break
        if not net.step() or net.rng.random() < 0.02:
            net.idle()
    assert net.coordinator.round == ROUNDS
    assert [e["children"] for e in net.events("overdue") if e["node"] == net.cloud] == [[1]]


def test_an_edge_that_is_slow_and_reports_stays_in(quick: Path) -> None:
    # a hundred seconds a round, where the others need none
    net = Net(manifest(6, 3, ROUNDS, {"name": "hierfavg", "clock": "edge"}), quick)
    slow(net, {1, 4}, 100.0)
    assert (net.coordinator.round, net.events("overdue")) == (ROUNDS, [])
    assert net.coordinator.rounds.closed[7] >= ROUNDS


def test_an_edge_that_has_caught_up_counts_again(quick: Path) -> None:
    net = Net(manifest(6, 3, 400, "only_edge"), quick)
    rounds = net.coordinator.rounds
    while rounds.closed.get(6, 0) < 3 or rounds.closed.get(8, 0) < 3:
        net.step()
    rounds.leave_out({7})
    assert rounds.done >= 3
    net.coordinator.close(7, 1)
    assert rounds.left_out == {7}, "it is still behind"
    net.coordinator.close(7, rounds.done + 1)
    assert rounds.left_out == set()


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
