"""FL+HC: all devices train, the dendrogram is cut."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.method import make
from espalier.testing import check
from tests.methods.planted import planted, runner, traffic
from tests.methods.test_equivalences import final


@pytest.mark.parametrize(("metric", "again"), [("l1", 10), ("l2", 0), ("cosine", 0)])
def test_it_finds_planted_clusters(metric: str, again: int) -> None:
    run = planted({"name": "flhc", "after": 10, "every": again, "metric": metric}, seed=0, stop={"rounds": 21})
    frame = run.frame()
    assert frame["ari"].tolist()[:2] == [0.0, 0.0]
    assert (frame["ari"].iloc[2:] == 1.0).all()
    assert [e["round"] for e in run.events("arranged")] == ([10, 20] if again else [10])


def test_one_cluster_is_fedavg_with_a_round_more() -> None:
    # Everybody trains as much in the clustering as in a round and everything is averaged: with all in one cluster that
    # is one more round of FedAvg, bit for bit.
    flhc: dict[str, Any] = {"name": "flhc", "after": 2, "every": 0, "threshold": math.inf, "cluster_updates": 2}
    assert torch.equal(final(flhc, stop={"rounds": 3}), final("fedavg", stop={"rounds": 4}))
    # Before the clustering it is FedAvg itself.
    assert torch.equal(final({**flhc, "after": 3}, stop={"rounds": 3}), final("fedavg", stop={"rounds": 3}))


def test_the_clustering_costs_a_model_down_and_up_for_everybody() -> None:
    run = planted({"name": "flhc", "after": 1, "every": 0, "fraction": 0.5}, stop={"rounds": 2}, evaluate={"every": 1})
    size = run.meta("model_bytes")
    # Round 1: 8 of 16 devices; then all 16; round 2: half of each cluster of four or so, at least one of each.
    members = run.events("arranged")[0]["clusters"].values()
    second = sum(max(1, len(m) // 2) for m in members)
    for tier in ("dev-edge", "edge-cloud"):
        assert traffic(run, tier, "model", "up") == (8 + 16 + second) * size
        assert traffic(run, tier, "model", "down") == (8 + 16 + second) * size


@pytest.mark.parametrize("name", ["resume", "join_and_leave", "fixed_point"])
def test_conformance_while_clustering(name: str) -> None:
    check({"name": "flhc", "after": 1, "every": 1, "clusters": 3}, name)


def test_clusters_run_at_their_own_speed_and_meet_to_be_formed_anew() -> None:
    one = runner(
        {"name": "flhc", "after": 3, "every": 3},
        world={"compute": {"kind": "rate", "low": 0.5, "high": 8.0}},
        stop={"rounds": 9},
    )
    sim = one.simulation
    sim.start()
    apart, meetings = 0, []
    while sim.step():
        cloud: Any = sim.nodes[sim.fleet.tree.root]
        rounds = {k: c.round for k, c in cloud.state.cohorts.items() if k != "?"}
        apart = max(apart, max(rounds.values(), default=0) - min(rounds.values(), default=0))
        if "?" in cloud.state.cohorts and cloud.state.cohorts["?"].open:
            meetings.append(set(rounds.values()))
    assert 1 <= apart <= 3
    assert set(map(frozenset, meetings)) == {frozenset({3}), frozenset({6})}


def test_impossible_values_are_refused() -> None:
    for options in (
        {"after": 0, "every": 0},
        {"every": 7},
        {"clusters": 0},
        {"threshold": -1.0},
        {"cluster_updates": 0},
    ):
        with pytest.raises(ConfigError, match=next(iter(options))):
            make("flhc", **options)
