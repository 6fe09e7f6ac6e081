"""Dynamic clustering over places, and the structure that puts clusters at edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from espalier.core.errors import ConfigError
from espalier.core.memory import Memory
from espalier.core.messages import ALL
from espalier.methods.cflhkd.affinity_clusters import AffinityRule, at_rest
from espalier.methods.cflhkd.bilevel import CLUSTER_MODELS, DELIVERIES
from espalier.methods.cflhkd.edge_clusters import EdgeClusters
from tests.policies.fakes import FakeEnv, arrival, view

LEFT, RIGHT = np.array([9.0, 1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0, 9.0])


def test_devices_that_have_not_trained_agree_with_everybody() -> None:
    found = AffinityRule().affinities([1, 2, 3], {1: LEFT, 2: LEFT, 3: LEFT}, {1: [1.0, 0.0], 2: [-1.0, 0.0]})
    # Same labels: .5 * 1 + .5 cos, with cos(1, 2) = -1 and cos(., 3) := 1.
    np.testing.assert_allclose(found, [[1, 0, 1], [0, 1, 1], [1, 1, 1]])
    assert AffinityRule().affinities([], {}, {}).shape == (0, 0)


def test_forming_and_mending() -> None:
    rule, devices = AffinityRule(delta=0.3), [1, 2, 3, 4]
    table = rule.affinities(devices, {1: LEFT, 2: LEFT, 3: RIGHT, 4: RIGHT}, {})
    formed, found = rule.form(devices, table, {3: "b"}, ["a", "b", "c"])
    assert (found.crowded, found.splits, found.cut) == (0, 0, False)
    assert formed == {1: "a", 2: "a", 3: "b", 4: "b"}
    # Device 2 turns right: only it moves.
    table = rule.affinities(devices, {1: LEFT, 2: RIGHT, 3: RIGHT, 4: RIGHT}, {})
    assert rule.mend(devices, table, formed, ["a", "b", "c"], {2}) == {2: "b"}
    # Labels of a third kind open a third place, where there is one.
    table = rule.affinities(devices, {1: LEFT, 2: np.array([0, 9.0, 9, 0]), 3: RIGHT, 4: RIGHT}, {})
    assert rule.mend(devices, table, formed, ["a", "b", "c"], {2}) == {2: "c"}
    assert rule.form([], np.ones((0, 0)), {}, ["a"])[0] == {}


def test_rest_by_hand() -> None:
    # Cluster a: mean norm 2; b: 1. Device 9 is nowhere.
    norms = {1: 1.0, 2: 3.0, 3: 1.0, 9: 0.0}
    assert at_rest({1: "a", 2: "a", 3: "b"}, norms, 1.5) == {"b"}
    assert at_rest({1: "a", 2: "a", 3: "b"}, norms, 0.0) == set()


def cloud(histograms: dict[int, Any], edges: int = 3) -> tuple[FakeEnv, Memory]:
    env = FakeEnv(devices=histograms)
    env.parents = dict.fromkeys(range(100, 100 + edges), 200) | dict.fromkeys(histograms, 100)
    memory = Memory()
    memory.state(EdgeClusters()).histograms.update(histograms)
    return env, memory


def settle(env: FakeEnv, parents: Any) -> None:
    env.parents.update(parents)


def test_clusters_form_at_edges_and_get_models() -> None:
    env, memory = cloud({1: LEFT, 2: LEFT, 3: RIGHT, 4: RIGHT})
    first = env.store.initial()
    structure = EdgeClusters(initial=2, every=30)
    assert structure.survey(view(env, {ALL: first}, memory=memory)) is None
    found = structure.arrange(view(env, {ALL: first}, memory=memory), {})
    assert found is not None
    # Both clusters were at edge 100; the first keeps it (ties go to the first), the other moves to the next.
    assert found.parents == {3: 101, 4: 101}
    assert found.note["clusters"] == {"100": [1, 2], "101": [3, 4]}
    assert memory.product(DELIVERIES) == {100: first, 101: first}
    settle(env, found.parents)
    # Nothing to do in the next round, and nothing to deliver.
    assert structure.arrange(view(env, {ALL: first}, clock=1, memory=memory), {}) is None
    assert memory.product(DELIVERIES) == {}


def test_only_drifted_devices_move_and_a_new_cluster_inherits() -> None:
    env, memory = cloud({1: LEFT, 2: LEFT, 3: RIGHT, 4: RIGHT})
    first = env.store.initial()
    structure = EdgeClusters(initial=2, delta=0.3, every=30)
    found = structure.arrange(view(env, {ALL: first}, memory=memory), {})
    assert found is not None
    settle(env, found.parents)
    own = env.store.put([5.0, 5.0])
    memory.product(CLUSTER_MODELS)[100] = own
    turned = np.array([0.0, 9.0, 9.0, 0.0])
    seen = view(env, {ALL: first}, clock=1, memory=memory)
    structure.observe(seen, [arrival(100, {ALL: own}, drifted=[2], histograms=turned[None])])
    found = structure.arrange(view(env, {ALL: first}, clock=2, memory=memory), {})
    assert found is not None
    assert (found.parents, found.note["why"], found.note["drifted"], found.note["moved"]) == ({2: 102}, "drift", [2], 1)
    # The new cluster at edge 102 starts from the model that its device had.
    assert memory.product(DELIVERIES) == {102: own}


def test_a_scheduled_clustering_leaves_clusters_at_rest_alone() -> None:
    env, memory = cloud({1: LEFT, 2: LEFT, 3: LEFT, 4: LEFT})
    first = env.store.initial()
    structure = EdgeClusters(initial=2, every=5)
    state = memory.state(structure)
    state.place = {1: 100, 2: 100, 3: 101, 4: 101}
    settle(env, state.place)
    # Cluster 101 pulls in two directions; cluster 100 does too, but only faintly.
    state.sketches = {1: [0.1, 0], 2: [-0.1, 0], 3: [1.0, 0], 4: [-1.0, 0]}
    found = structure.arrange(view(env, {ALL: first}, clock=5, memory=memory), {})
    assert found is not None
    assert found.note["why"] == "schedule"
    assert found.note["clusters"] == {"100": [1, 2], "101": [3], "102": [4]}
    # As printed, everybody is clustered anew: by direction alone, however faint, 1 goes with 3 and 2 with 4.
    anew = EdgeClusters(initial=2, every=5, restless=0.0)
    state.place = {1: 100, 2: 100, 3: 101, 4: 101}
    found = anew.arrange(view(env, {ALL: first}, clock=5, memory=memory), {})
    assert found is not None
    assert found.note["clusters"] == {"100": [1, 3], "101": [2, 4]}


def test_without_dynamics_nobody_moves() -> None:
    env, memory = cloud({1: LEFT, 2: RIGHT})
    first = env.store.initial()
    structure = EdgeClusters(initial=2, every=0)
    found = structure.arrange(view(env, {ALL: first}, memory=memory), {})
    assert found is not None
    settle(env, found.parents)
    structure.observe(view(env, {}, memory=memory), [arrival(100, {}, drifted=[1], histograms=RIGHT[None])])
    assert structure.arrange(view(env, {ALL: first}, clock=30, memory=memory), {}) is None


def test_devices_return_to_their_cluster_and_edges_to_their_model() -> None:
    env, memory = cloud({1: LEFT, 2: LEFT, 3: RIGHT})
    first = env.store.initial()
    structure = EdgeClusters(initial=2, every=30)
    found = structure.arrange(view(env, {ALL: first}, memory=memory), {})
    assert found is not None
    settle(env, found.parents)
    # A device comes back somewhere else: it is sent home.
    env.parents[3] = 100
    found = structure.arrange(view(env, {ALL: first}, clock=1, memory=memory), {})
    assert found is not None and found.parents == {3: 101}
    # Its edge is away: it stays where it was taken in; when the edge is back it gets its model again.
    own = env.store.put([7.0, 7.0])
    memory.product(CLUSTER_MODELS)[101] = own
    del env.parents[101]
    assert structure.arrange(view(env, {ALL: first}, clock=2, memory=memory), {}) is None
    env.parents[101] = 200
    found = structure.arrange(view(env, {ALL: first}, clock=3, memory=memory), {})
    assert found is not None and found.parents == {3: 101}
    assert memory.product(DELIVERIES) == {101: own}


def test_newcomers_are_asked_and_placed() -> None:
    env, memory = cloud({1: LEFT, 2: LEFT, 3: RIGHT})
    first = env.store.initial()
    structure = EdgeClusters(initial=2, every=30)
    found = structure.arrange(view(env, {ALL: first}, memory=memory), {})
    assert found is not None
    settle(env, found.parents)
    env.known = [1, 2, 3, 8]
    env.parents[8] = 100
    survey = structure.survey(view(env, {ALL: first}, clock=1, memory=memory))
    assert survey is not None and list(survey.devices or ()) == [8]
    answers = {8: arrival(8, {}, histogram=RIGHT)}
    found = structure.arrange(view(env, {ALL: first}, clock=1, memory=memory), answers)
    assert found is not None and found.parents == {8: 101} and found.note["why"] == "newcomers"


def test_given_edges_are_the_clusters() -> None:
    env, memory = cloud({1: LEFT, 2: RIGHT})
    env.parents[2] = 101
    first = env.store.initial()
    structure = EdgeClusters(given=True)
    assert structure.survey(view(env, {ALL: first}, memory=memory)) is None
    assert structure.arrange(view(env, {ALL: first}, memory=memory), {}) is None
    assert memory.product(DELIVERIES) == {100: first, 101: first}
    assert structure.follows() and not EdgeClusters().follows()


def test_servers_between_are_refused() -> None:
    env, memory = cloud({1: LEFT})
    env.parents[150] = 200
    with pytest.raises(ConfigError, match=r"fleet\.tiers"):
        EdgeClusters().arrange(view(env, {ALL: env.store.initial()}, memory=memory), {})
