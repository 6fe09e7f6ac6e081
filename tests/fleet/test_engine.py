"""Engines over a channel that loses, doubles and delays, killed at any moment: each update counts exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from espalier.core.errors import DataError
from espalier.core.messages import Arrived, Report, Train
from espalier.fleet.node.events import Call, Gone, JobDone
from tests.fleet.net import Net, manifest

ROUNDS = 4


def test_without_trouble(quick: Path) -> None:
    # 4 devices of 10 samples at 2 edges: each round adds 1/4 to each device's number
    net = Net(manifest(4, 2, ROUNDS), quick)
    net.run()
    assert net.kills == 0
    torch.testing.assert_close(net.model()[:4], torch.full((4,), ROUNDS / 4))
    assert not net.model()[4:].any()


@pytest.mark.parametrize(("method", "each"), [("fedavg", 1 / 4), ({"name": "hierfavg", "kappa2": 2}, 2 / 4)])
def test_other_shapes(quick: Path, method: object, each: float) -> None:
    # flat: the cloud orders devices itself. kappa2 = 2: an edge's two rounds add 1/2 + 1/2 to each of its two devices'
    # numbers, and the cloud's average of two edges halves that.
    net = Net(manifest(4, 2, ROUNDS, method), quick)
    net.run()
    torch.testing.assert_close(net.model()[:4], torch.full((4,), ROUNDS * each))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), trouble=st.sampled_from([0.1, 0.3]))
def test_every_update_counts_once_whatever_happens(quick: Path, seed: int, trouble: float) -> None:
    net = Net(manifest(4, 2, ROUNDS), quick / f"{seed}-{trouble}", seed, trouble)
    net.run()
    torch.testing.assert_close(net.model()[:4], torch.full((4,), ROUNDS / 4))
    # what nobody holds is forgotten
    assert all(len(engine.store) <= 12 for engine in net.engines.values())


def test_a_device_that_is_gone_is_not_waited_for(quick: Path) -> None:
    # Device 0 (edge 4, with device 2) dies before the first order reaches it. Edge 4 then merges device 2 alone:
    # its number grows by 1 at the edge. Samples registered: 10 at edge 4, 20 at edge 5, so per round the cloud adds
    # 1/3 for device 2 and 2/3 * 1/2 = 1/3 for each of devices 1 and 3.
    net = Net(manifest(4, 2, ROUNDS), quick)
    net.wire = [w for w in net.wire if w[0] != 0]
    net.give(4, Gone([0]))
    net.give(net.cloud, Gone([0]))
    net.wire = [w for w in net.wire if 0 not in w[:2]]
    net.boxes[4].pop(0, None)
    for _ in range(2000):
        net.wire = [w for w in net.wire if w[0] != 0]
        net.boxes[net.cloud].pop(0, None)
        if net.coordinator.finished or not net.step():
            break
    torch.testing.assert_close(net.model()[:4], torch.tensor([0.0, 1, 1, 1]) * ROUNDS / 3)


def test_a_device_without_memory_takes_part_again(quick: Path) -> None:
    # Device 1 comes back under a new incarnation while its edge waits for it: the round closes without it, the next
    # has it.
    net = Net(manifest(2, 1, ROUNDS), quick)
    while not any(host == 1 for host, _ in net.jobs):
        net.step()
    net.wire = [w for w in net.wire if w[0] != 1 and w[1] != 1]
    net.jobs = [(h, w) for h, w in net.jobs if h != 1]
    net.incarnations[1] += 1
    net.kill(1, forget=True)
    net.join(1, net.edge_of(1), stamp=2)
    net.run()
    found = net.model()[:2]
    # the first round was device 0's alone (adds 1), the three others add 1/2 each
    torch.testing.assert_close(found, torch.tensor([1 + 3 / 2, 3 / 2]))


def test_a_training_that_fails_does_not_stop_the_round(quick: Path) -> None:
    net = Net(manifest(2, 1, ROUNDS), quick)
    failed = False
    for _ in range(5000):
        if net.coordinator.finished:
            break
        if not failed and (mine := [w for h, w in net.jobs if h == 0 and isinstance(w.action, Train)]):
            net.jobs = [(h, w) for h, w in net.jobs if w is not mine[0]]
            net.give(0, JobDone(mine[0].id, DataError("the disk is wet"), 0.1))
            failed = True
            continue
        if not net.step():
            net.idle()
    assert net.coordinator.finished
    torch.testing.assert_close(net.model()[:2], torch.tensor([3 / 2, 1 + 3 / 2]))
    events = net.coordinator.recorder.connection.execute("SELECT node, data FROM events WHERE kind = 'failed'")
    assert [(n, "the disk is wet" in d) for n, d in events] == [(0, True)]


def test_a_message_in_anothers_name_is_refused(quick: Path) -> None:
    net = Net(manifest(2, 1, ROUNDS), quick)
    edge = net.engines[2]
    while not any(dest == 2 and origin == 1 for dest, origin, _ in net.wire):
        net.step()
    from tests.fleet.net import arrival

    letter = next(x for dest, origin, x in net.wire if dest == 2 and origin == 1)
    forged = arrival(letter, 0)
    effects = edge.take([type(forged)(0, forged.series, 1, forged.content, forged.parts)])
    assert len(effects.refused) == 1
    assert "nobody speaks for another" in effects.refused[0][1]


def test_a_message_without_sense_leaves_a_node_as_it_was(quick: Path) -> None:
    """Also when the node has taken something else in the same transaction, which is not lost."""
    net = Net(manifest(4, 2, ROUNDS), quick, hostile=True)
    engine = net.engines[4]  # the edge of devices 0 and 2
    while 4 not in engine.nodes or len(engine.nodes[4].state.tickets) < 2:
        net.step()
    tickets = {child: next(iter(out)) for child, out in engine.nodes[4].state.tickets.items()}
    model = engine.store.initial()

    def report(child: int, samples: Any) -> Call:
        found = Report(tickets[child], 4, child, 4, {"": model}, samples, 1, 0, 0.0)
        return Call(lambda: engine.begin(4, Arrived(found)))

    effects = engine.take([report(0, {"": 10}), report(2, None)])
    assert [origin for origin, _ in effects.refused] == [2]
    state = engine.nodes[4].state
    assert [a.report.sender for c in state.cohorts.values() for a in c.arrived] == [0]
    assert [list(c.waiting) for c in state.cohorts.values()] == [[2]] and all(c.open for c in state.cohorts.values())
    assert list(state.tickets) == [2]
