"""The protocol on graphs small enough to follow by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from espalier.core.address import host_of, role
from tests.methods.easf.dsf.fleet import agent, clusters, graph, parent_of, root, rounds, run, start, working, wrong

#: two stars, hubs 0 and 4, that meet at 3 - 5
STARS = [(0, 1), (0, 2), (0, 3), (3, 5), (4, 5), (4, 6), (4, 7)]


def event(time: float, host: int, what: str) -> dict[str, Any]:
    return {"time": time, "host": host, "event": what}


def churn(*events: dict[str, Any]) -> dict[str, Any]:
    return {"churn": {"kind": "scheduled", "events": list(events)}, "notice": 2.0}


class TestBuilding:
    def test_a_path_is_one_cluster(self, tmp_path: Path) -> None:
        # 1 and 2 tie for the largest probability, 1 leads; 3 is two hops away. Eq. 1: sums 6, 4, 4, 6 of 10 ms: 1.
        sim = start(devices=4, links=graph(tmp_path, (0, 1), (1, 2), (2, 3)))
        assert clusters(sim) == {1: [0, 1, 2, 3]}
        assert sim.fleet.tree.root == role(1, 2) and not wrong(sim)

    def test_the_vote_may_pick_another_than_the_first(self, tmp_path: Path) -> None:
        # 0 and 1 have 1/9 + 1/6 + 1/6, the largest probability: 0 is elected. But its links are slow: its sum of delays
        # is 3 · 50 ms, that of 1 is 50 + 1 + 1, of 2 and 3 50 + 1 + 2.
        links = graph(tmp_path, (0, 1, 0.05), (0, 2, 0.05), (0, 3, 0.05), (1, 2, 0.001), (1, 3, 0.001))
        sim = start(devices=4, links=links)
        assert agent(sim, 1).memberships.views[0].initiator == 0
        assert clusters(sim) == {1: [0, 1, 2, 3]}

    def test_two_stars_are_two_clusters(self, tmp_path: Path) -> None:
        # hubs: (1 + 1 + 1/2)/3 = .833; 3 and 5: (1/3 + 1/2)/2 = .417; leaves 1/3
        sim = start(devices=8, links=graph(tmp_path, *STARS))
        assert clusters(sim) == {0: [0, 1, 2, 3], 4: [4, 5, 6, 7]}
        assert root(sim) == 0 and not wrong(sim)  # equal sums: the smaller number

    def test_nobody_within_the_hop_limit_the_nearest_all_the_same(self, tmp_path: Path) -> None:
        # a star with a tail 3-4-5-6-7: 6 leads the tail's end unless it may not; then 5, 6, 7 are 3, 4, 5 hops from 0
        links = graph(tmp_path, (0, 1), (0, 2), (0, 3), (3, 4), (4, 5), (5, 6), (6, 7))
        world = {"capability": {"kind": "listed", "devices": [0]}}
        sim = start(devices=8, links=links, world=world)
        assert clusters(sim) == {0: list(range(8))} and not wrong(sim)

    def test_who_may_not_aggregate_does_not_lead(self, tmp_path: Path) -> None:
        world = {"capability": {"kind": "listed", "devices": [1, 5]}}
        sim = start(devices=8, links=graph(tmp_path, *STARS), world=world)
        assert set(clusters(sim)) <= {1, 5} and root(sim) in (1, 5) and not wrong(sim)

    def test_who_may_not_aggregate_gathers_and_votes_all_the_same(self, tmp_path: Path) -> None:
        # Two-hop probabilities .333, .611, .333, .611, .333: 1 ties with 3 and is the first central node of all, though
        # it may not aggregate. Sums of delays: 0 and 2 .10 (2-3 goes over 1), 3 .09, 4 .12: by Eq. 1, 3 leads.
        links = graph(tmp_path, (0, 1), (1, 2), (2, 3, 0.03), (3, 4), (1, 3, 0.02))
        world = {"capability": {"kind": "listed", "devices": [0, 2, 3, 4]}}
        sim = start(devices=5, links=links, world=world)
        assert agent(sim, 3).memberships.views[0].initiator == 1
        assert clusters(sim) == {3: [0, 1, 2, 3, 4]} and not wrong(sim)

    def test_a_device_alone_is_a_tree(self) -> None:
        sim = start(devices=1)
        assert clusters(sim) == {0: [0]} and root(sim) == 0 and rounds(sim) > 0

    def test_many_clusters_get_another_level(self) -> None:
        sim = start({"name": "syn", "width": 2}, devices=60)
        assert len(clusters(sim)) > 2
        depth = {len(list(sim.fleet.tree.path(d))) for d in working(sim)}
        assert depth == {4} or depth == {5}  # device, cluster, one or two more levels, root
        assert not wrong(sim)


class TestExchange:
    #: hub 0 with 1, 2, 3, 8; hub 4 with 5; they meet at 3 - 5
    LINKS = ((0, 1), (0, 2), (0, 3), (0, 8), (3, 5), (4, 5), (4, 6), (4, 7))

    def test_a_node_moves_where_it_helps(self, tmp_path: Path) -> None:
        # {0, 1, 2, 3, 8} has mean .58, {4, 5, 6, 7} mean .4; all together (2.9 + 1.6)/9 = .5. The first has 5 > 4 and
        # lists 3 (without it .5). The other gains most by it: (1.6 + .9)/5 = .5.
        accuracies = {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.9, 8: 0.5, 4: 0.4, 5: 0.4, 6: 0.4, 7: 0.4}
        sim = start("easf", devices=9, links=graph(tmp_path, *self.LINKS), accuracies=accuracies)
        assert parent_of(sim, 3) == parent_of(sim, 5) and parent_of(sim, 1) == parent_of(sim, 0)
        assert not wrong(sim)

    def test_without_regard_to_accuracy_nobody_moves(self, tmp_path: Path) -> None:
        sim = start("syn", devices=9, links=graph(tmp_path, *self.LINKS))
        assert clusters(sim) == {0: [0, 1, 2, 3, 8], 4: [4, 5, 6, 7]}

    def test_a_forced_node_really_moves(self, tmp_path: Path) -> None:
        # All have the same accuracy: nobody's leaving helps anyone. But 8 > 1.2 · 3 lists its farthest, and 3 is far
        # too small (3 < 8/1.2): it takes the nearest of those. Seven leaves at 0; 4 with 5 and 6.
        links = graph(tmp_path, *[(0, i) for i in (1, 2, 3, 7, 8, 9, 10)], (3, 5), (4, 5), (4, 6))
        sim = start("easf", devices=11, links=links, accuracies=dict.fromkeys(range(11), 0.5))
        sizes = sorted(len(c) for c in clusters(sim).values())
        assert sizes[0] > 3 and sum(sizes) == 11 and not wrong(sim)


class TestDepartures:
    @pytest.mark.parametrize("how", ["leave", "die"])
    def test_a_leaf(self, tmp_path: Path, how: str) -> None:
        sim = start(devices=8, links=graph(tmp_path, *STARS), world=churn(event(12.0, 6, how)), until=11.9)
        before = clusters(sim)
        run(sim, 12.1 if how == "leave" else 14.1)
        assert clusters(sim) == {c: [m for m in members if m != 6] for c, members in before.items()}
        assert 6 not in agent(sim, 4).memberships.led[0].members

    @pytest.mark.parametrize("how", ["leave", "die"])
    def test_a_central_node_is_succeeded_by_the_least_sum_of_delays(self, tmp_path: Path, how: str) -> None:
        # 4's cluster is 4, 5, 6, 7; without 4 the graph must hold: 6 and 7 also reach 5, 7 by a slow link.
        links = graph(tmp_path, *STARS, (5, 6), (5, 7, 0.015))
        sim = start(devices=8, links=links, world=churn(event(12.0, 4, how)), until=11.9)
        assert 4 in clusters(sim)
        kept = clusters(sim)[0]
        run(sim, 12.9 if how == "leave" else 14.9)
        assert clusters(sim) == {0: kept, 5: [5, 6, 7]}  # sums: 5: 25 ms, 6: 35, 7: 40
        assert root(sim) == 0 and not wrong(sim)

    @pytest.mark.parametrize("how", ["leave", "die"])
    def test_the_root(self, tmp_path: Path, how: str) -> None:
        links = graph(tmp_path, *STARS, (1, 2), (2, 3))
        sim = start(devices=8, links=links, world=churn(event(12.0, 0, how)), until=11.9)
        assert root(sim) == 0
        done = rounds(sim)
        run(sim, 13.9 if how == "leave" else 15.9)
        assert root(sim) != 0 and not wrong(sim)
        assert rounds(sim) >= done  # it goes on from the round that it knows
        run(sim, 40.0)
        assert rounds(sim) > done + 5

    def test_a_cluster_without_anyone_who_may_lead_dissolves(self, tmp_path: Path) -> None:
        links = graph(tmp_path, *STARS, (5, 6), (5, 7))
        world = {**churn(event(12.0, 4, "leave")), "capability": {"kind": "listed", "devices": [0, 4]}}
        sim = start(devices=8, links=links, world=world, until=20.0)
        assert clusters(sim) == {0: [0, 1, 2, 3, 5, 6, 7]} and not wrong(sim)

    def test_everybody_but_one_goes(self, tmp_path: Path) -> None:
        gone = [event(12.0 + d / 100, d, "leave" if d % 2 else "die") for d in range(8) if d != 6]
        sim = start(devices=8, links=graph(tmp_path, *STARS), world=churn(*gone), until=40.0)
        assert clusters(sim) == {6: [6]} and root(sim) == 6
        assert rounds(sim) > 0

    def test_back_before_anyone_noticed(self, tmp_path: Path) -> None:
        world = churn(event(12.0, 0, "die"), event(12.5, 0, "join"))
        sim = start(devices=8, links=graph(tmp_path, *STARS, (1, 2), (2, 3)), world=world, until=20.0)
        assert working(sim) == list(range(8)) and not wrong(sim)


class TestNewcomers:
    LINKS = (*STARS, (8, 3), (8, 5))

    def test_joins_by_algorithm_2(self, tmp_path: Path) -> None:
        # means: {0..3} .7, {4..7} .3, all .5. A newcomer of .1 brings the first to (2.8 + .1)/5 = .58 (gain .12), the
        # second to .26 (loss .04). 8 adjoins both.
        accuracies = {**dict.fromkeys(range(4), 0.7), **dict.fromkeys(range(4, 8), 0.3), 8: 0.1}
        method = {"name": "easf", "sweeps": 0}
        sim = start(
            method, devices=9, links=graph(tmp_path, *self.LINKS), accuracies=accuracies,
            world=churn(event(12.0, 8, "join")), until=13.0,
        )  # fmt: skip
        assert parent_of(sim, 8) == parent_of(sim, 3) and not wrong(sim)

    def test_asks_every_central_node_within_the_hop_limit(self, tmp_path: Path) -> None:
        # As above, but 8 adjoins only 6, of the second cluster. By the link 6-0 the first cluster's central node is two
        # hops away, though no neighbour of 8 is in that cluster.
        accuracies = {**dict.fromkeys(range(4), 0.7), **dict.fromkeys(range(4, 8), 0.3), 8: 0.1}
        sim = start(
            {"name": "easf", "sweeps": 0}, devices=9, links=graph(tmp_path, *STARS, (6, 0, 0.02), (8, 6)),
            accuracies=accuracies, world=churn(event(12.0, 8, "join")), until=13.0,
        )  # fmt: skip
        assert parent_of(sim, 6) != parent_of(sim, 3)
        assert parent_of(sim, 8) == parent_of(sim, 3) and not wrong(sim)

    def test_joins_the_nearest_where_accuracy_is_of_no_account(self, tmp_path: Path) -> None:
        links = graph(tmp_path, *STARS, (8, 3, 0.03), (8, 5, 0.01))
        sim = start(devices=9, links=links, world=churn(event(12.0, 8, "join")), until=13.0)
        assert parent_of(sim, 8) == parent_of(sim, 5) and not wrong(sim)

    def test_the_same_pairs_stay_as_they_were(self, tmp_path: Path) -> None:
        sim = start(devices=9, links=graph(tmp_path, *self.LINKS), world=churn(event(12.0, 8, "join")), until=11.9)
        before = {d: sim.fleet.tree.parent(d) for d in range(8)}
        run(sim, 20.0)
        assert {d: sim.fleet.tree.parent(d) for d in range(8)} == before


class TestLocalKnowledge:
    def test_agents_watch_only_whom_they_deal_with(self, tmp_path: Path) -> None:
        sim = start(devices=8, links=graph(tmp_path, *STARS))
        leaf = sim.runtime.node(6)
        assert [h for h in range(8) if leaf.watches(h)] == [4, 5, 6, 7]  # its cluster
        assert [h for h in range(8) if sim.runtime.node(4).watches(h)] == [0, 4, 5, 6, 7]  # its cluster and the root's

    def test_messages_are_few_and_recorded(self) -> None:
        sim = start(devices=60)
        run(sim, 10.0)
        degree = {d: len(sim.fleet.places.neighbours(d)) for d in range(60)}
        for device in range(60):
            # hello, probabilities, beacons twice, adverts of the few central nodes around, and what a central node says
            cluster = (
                len(agent(sim, device).memberships.led[0].members) if 0 in agent(sim, device).memberships.led else 0
            )
            assert agent(sim, device).own.messages <= 12 * degree[device] + 20 * cluster + 40
        sim.recorder.commit()
        joined = sim.recorder.connection.execute("SELECT node, data FROM events WHERE kind = 'joined'").fetchall()
        assert {host_of(node) for node, _ in joined} == set(range(60))
        assert all('"messages":' in data for _, data in joined)
