"""The server's rounds, merge and hand-down, worked by hand."""

from __future__ import annotations

import pytest

from espalier.core.address import role
from espalier.core.memory import Memory
from espalier.core.messages import ALL, Report
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.methods.d2d.member import GLOBAL_ROUND, Cluster, GlobalRound
from espalier.methods.d2d.method import Heads, ServerDown, ServerMerge, ServerPace
from tests.core.fakes import SmallFleet

CLOUD = 20
ONE, TWO, THREE = role(0, 1), role(2, 1), role(4, 1)


class Near(SmallFleet):
    """A fleet whose head 0 is 2 s from the server, the others 1 s."""

    def model_time(self, src: int, dst: int, now: float) -> float:
        assert dst == CLOUD
        return 2.0 if src == ONE else 1.0


def setting() -> tuple[Near, View]:
    """Clusters {0, 1}, {2, 3}, {4}; device i has i + 1 samples; the global model is 100."""
    fleet = Near({0: ONE, 1: ONE, 2: TWO, 3: TWO, 4: THREE, ONE: CLOUD, TWO: CLOUD, THREE: CLOUD, 5: CLOUD})
    old = fleet.store.number(100.0)
    clusters = [Cluster(ONE, [0, 1], 3, {0: 1.0, 1: 2.0}), Cluster(TWO, [2, 3], 1), Cluster(THREE, [4], 0)]
    memory = Memory()
    memory.provide(GLOBAL_ROUND, GlobalRound(clusters, samples={d: d + 1 for d in range(5)}, t_g=120.0))
    return fleet, View(0.0, CLOUD, 0, 0, "", {ALL: old}, None, memory, fleet)


def arrival(fleet: SmallFleet, head: int, value: float) -> Arrival:
    model = fleet.store.number(value)
    return Arrival(Report(1, CLOUD, head, CLOUD, {ALL: model}, {ALL: 1}, 1, 0, 0.0), 0.0)


def test_heads_with_rounds_work() -> None:
    _, view = setting()
    assert Heads().pick(view) == sorted([ONE, TWO])
    view.memory = Memory()
    assert Heads().pick(view) == []


def test_heads_are_told_their_rounds_their_time_and_the_model_they_have() -> None:
    _, view = setting()
    work = ServerPace().assign(view, [ONE, TWO])
    assert (work[ONE].updates, work[TWO].updates) == (3, 1)
    assert work[ONE].budget == 120.0
    assert work[ONE].args == {"base": view.models[ALL], "due": {0: 1.0, 1: 2.0}}
    assert work[TWO].args == {"base": view.models[ALL]}
    assert ServerDown().send(view, ONE) == {}
    assert ServerDown().send(view, 5) == {ALL: view.models[ALL]}


def test_a_global_round_lasts_t_g_and_the_way_there_and_back() -> None:
    _, view = setting()
    work = ServerPace().assign(view, [ONE, TWO])
    assert ServerPace().deadline(view, work) == pytest.approx(120.0 + 2 * 2.0)
    assert ServerPace(t_cg=30.0).deadline(view, work) == pytest.approx(150.0)
    assert ServerPace().deadline(view, {}) == pytest.approx(120.0)
    assert ServerPace(handling=0.5).deadline(view, work) == pytest.approx(120.0 + 2 * 2.0 + 0.5), "on a real fleet"


def test_clusters_are_averaged_by_their_samples() -> None:
    # |D_c| = 3, 7, 5: the third cluster has no round and no feature, it counts with the global model 100:
    # (3 · 10 + 7 · 20 + 5 · 100) / 15 = 670 / 15.
    fleet, view = setting()
    merged = ServerMerge().merge(view, [arrival(fleet, ONE, 10.0), arrival(fleet, TWO, 20.0)])
    assert fleet.store.numbers[merged[ALL]] == pytest.approx(670 / 15)


def test_a_cluster_without_a_round_counts_with_its_members_features() -> None:
    # Cluster {2, 3} has not reported either: features 1, 2, 3, 4, 5 of devices 0 … 4.
    # (3 · 10 + 3 · 3 + 4 · 4 + 5 · 5) / 15 = 80 / 15.
    fleet, view = setting()
    view.product(GLOBAL_ROUND).features = {d: fleet.store.number(d + 1.0) for d in range(5)}
    merged = ServerMerge().merge(view, [arrival(fleet, ONE, 10.0)])
    assert fleet.store.numbers[merged[ALL]] == pytest.approx(80 / 15)
    assert view.product(GLOBAL_ROUND).features == {}  # nothing holds them any longer


def test_without_clusters_nothing_changes() -> None:
    _, view = setting()
    view.product(GLOBAL_ROUND).clusters = []
    assert ServerMerge().merge(view, []) == {}
    assert isinstance(view.models[ALL], Ref)
