"""The sorted threshold clustering and its variance control."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ConfigError
from espalier.core.memory import Memory
from espalier.core.messages import ALL
from espalier.data import registry
from espalier.data.partition import partition
from espalier.data.partitions import partition_spec
from espalier.methods.cflhkd.bilevel import CLUSTER_MODELS, DELIVERIES
from espalier.methods.cflhkd.edge_clusters import EdgeClusters
from espalier.methods.cflhkd.fdc import (
    AffinityRule,
    Distance,
    affinity,
    assign,
    at_rest,
    cluster,
    control,
    cosines,
    halves,
    jensen_shannon_matrix,
    ranking,
    variance,
)
from tests.policies.fakes import FakeEnv, arrival, view

THREE = np.array([[1, 0.9, 0.1], [0.9, 1, 0.2], [0.1, 0.2, 1]])


def random_affinities(seed: int, n: int) -> np.ndarray:
    counts = np.random.default_rng(seed).dirichlet(np.full(5, 0.4), n) * 50
    return affinity(jensen_shannon_matrix(counts), 1.0)


def test_assignment_by_hand() -> None:
    # Order 1, 0, 2. By rows: device 0 is at sqrt(.1^2 + .1^2 + .1^2) = .173 from row 1: joins. The centroid is then
    # (.95, .95, .15); device 2 is at sqrt(.85^2 + .75^2 + .85^2) = 1.417: opens.
    assert np.linalg.norm(THREE[0] - THREE[1]) == pytest.approx(0.1732, abs=1e-4)
    assert np.linalg.norm(THREE[2] - (THREE[0] + THREE[1]) / 2) == pytest.approx(1.4168, abs=1e-4)
    for delta, found in ((0.7, [[0, 1], [2]]), (1.41, [[0, 1], [2]]), (1.42, [[0, 1, 2]])):
        assert assign(THREE, ranking(THREE), delta, 8, distance="rows").clusters == found
    # By members: device 0 is at |.9 - 1| = .1 from device 1; device 2 at sqrt(.85^2 + .75^2) = 1.134 from both.
    for delta, found in ((0.7, [[0, 1], [2]]), (1.13, [[0, 1], [2]]), (1.14, [[0, 1, 2]])):
        assert assign(THREE, ranking(THREE), delta, 8).clusters == found
    assert cluster(THREE, 0.7, 8).clusters == [[0, 1], [2]]


def test_thresholds_at_the_ends() -> None:
    assert assign(THREE, ranking(THREE), 1.5, 8).clusters == [[0, 1, 2]]
    assert sorted(assign(THREE, ranking(THREE), 0.05, 8).clusters) == [[0], [1], [2]]
    # No more than two clusters: device 2 comes last and joins the nearest of the two that device 1 and 0 opened.
    found = assign(THREE, ranking(THREE), 0.05, 2)
    assert (found.clusters, found.crowded) == ([[1, 2], [0]], 1)


@pytest.mark.parametrize("devices", [40, 100])
def test_the_threshold_decides_and_not_the_limit(devices: int) -> None:
    """Dirichlet labels and cosines that follow them: by rows nearly every device opens a cluster of its own."""
    rng = np.random.default_rng(0)
    mixes = rng.dirichlet(np.full(10, 0.5), devices)
    noise = rng.normal(0, 0.06, (devices, devices))
    cosine = np.clip(0.6 * cosines(mixes - mixes.mean(0)) + 0.2 + (noise + noise.T) / 2, -1, 1)
    np.fill_diagonal(cosine, 1.0)
    found = affinity(jensen_shannon_matrix(mixes), cosine)
    for delta in (0.7, 0.9):
        assert cluster(found, delta, 8).crowded <= 0.01 * devices
        assert 2 <= len(cluster(found, delta, devices).clusters) <= 12
    assert len(cluster(found, 0.7, devices, distance="rows").clusters) > 0.7 * devices
    assert cluster(found, 0.7, 8, distance="rows").crowded > 0.5 * devices
    # Clusters whose variance has outgrown its bound while they were filled are split.
    formed = cluster(found, 0.7, devices)
    given = assign(found, ranking(found), 0.7, devices).clusters
    assert formed.splits > 0 and max(variance(found, c) for c in given) > 0.7**2
    assert max(variance(found, c) for c in formed.clusters) <= 0.7**2


def test_a_larger_threshold_never_gives_more_clusters_on_digits() -> None:
    data = registry.load("digits")
    split = partition(data, partition_spec("dirichlet", {"alpha": 0.5}), n_devices=40, n_edges=4, seed=0)
    found = affinity(jensen_shannon_matrix(split.histogram), 1.0)
    sizes = [len(cluster(found, delta, 40).clusters) for delta in (0.2, 0.5, 0.8, 1.2, 2.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_existing_clusters_keep_their_places_and_empty_ones_are_reused() -> None:
    # Devices 0 and 2 are settled at places 0 and 2; device 1 is loose and joins device 0.
    assert assign(THREE, [1], 0.7, 3, [[0], [], [2]]).clusters == [[0, 1], [], [2]]
    # Nobody within .05: it opens the empty place rather than a fourth.
    assert assign(THREE, [1], 0.05, 3, [[0], [], [2]]).clusters == [[0], [1], [2]]
    # Two clusters are the most, and two exist: the empty place stays empty.
    assert assign(THREE, [1], 0.05, 2, [[0], [], [2]]).clusters == [[0, 1], [], [2]]


def test_variance_by_hand() -> None:
    # Rows 0 and 1 are .173 apart: each is .0866 from their mean, whose square is .0075.
    assert variance(THREE, [0, 1], "rows") == pytest.approx(0.0075)
    # Of devices 0 and 1 alone: (1, .9) and (.9, 1), each sqrt(.05^2 + .05^2) from their mean: .005.
    assert variance(THREE, [0, 1]) == pytest.approx(0.005)
    assert variance(THREE, [2]) == 0.0


def test_halves_are_the_two_groups() -> None:
    points = np.array([[0.0], [0.1], [0.2], [5.0], [5.1]])
    assert sorted(halves(points)) == [[0, 1, 2], [3, 4]]


def test_control_splits_only_what_is_too_wide() -> None:
    points = np.array([[0.0], [0.1], [5.0], [5.1], [9.0]])
    # Variance of {0, .1, 5, 5.1} is 6.25 > 1: split; {9} is left alone.
    found = control(points, [[0, 1, 2, 3], [4]], 1.0, 8, "rows")
    assert (found.clusters, found.splits) == ([[0, 1], [2, 3], [4]], 1)
    # No room for a third cluster.
    assert control(points, [[0, 1, 2, 3], [4]], 1.0, 2, "rows").clusters == [[0, 1, 2, 3], [4]]
    # Two narrow clusters are never merged, however near: nothing was split.
    assert control(points, [[0], [1]], 1.0, 8, "rows").clusters == [[0], [1]]


def test_a_half_may_join_its_neighbour() -> None:
    # {0, 5} has variance 6.25 > 1; its half {0} joins {.1}: common variance .0025.
    points = np.array([[0.0], [5.0], [0.1]])
    assert control(points, [[0, 1], [2]], 1.0, 8, "rows").clusters == [[0, 2], [1]]


def test_a_half_may_join_a_cluster_that_is_itself_too_wide() -> None:
    # Ten zeros and a five (variance 25/11 · 10/11 = 2.07 > .81); -1 and 1 (variance 1 > .81). The first is the wider:
    # its zeros join -1 and 1 (variance 2/12 = .167), which need no split any more.
    points = np.array([[0.0]] * 10 + [[5.0], [-1.0], [1.0]])
    found = control(points, [list(range(11)), [11, 12]], 0.9, 8, "rows")
    assert (found.clusters, found.splits) == ([[*range(10), 11, 12], [10]], 1)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000), st.integers(1, 12), st.floats(0.0, 2.0), st.integers(1, 6), st.integers(1, 5),
    st.sampled_from(get_args(Distance)),
)  # fmt: skip
def test_clusters_are_a_partition_within_bounds(
    seed: int, n: int, delta: float, most: int, least: int, distance: Distance
) -> None:
    found = random_affinities(seed, n)
    clusters = cluster(found, delta, most, least=least, distance=distance).clusters
    assert sorted(i for c in clusters for i in c) == list(range(n))
    assert min(least, most, n) <= len(clusters) <= most
    once = control(found, clusters, delta, most, distance)
    assert control(found, once.clusters, delta, most, distance).clusters == once.clusters
    if len(once.clusters) < most:
        assert all(variance(found, c, distance) <= delta**2 + 1e-9 for c in once.clusters)


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
    structure.learn(seen, [arrival(100, {ALL: own}, drifted=[2], histograms=turned[None])])
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
    structure.learn(view(env, {}, memory=memory), [arrival(100, {}, drifted=[1], histograms=RIGHT[None])])
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
    assert structure.follows_moves() and not EdgeClusters().follows_moves()


def test_servers_between_are_refused() -> None:
    env, memory = cloud({1: LEFT})
    env.parents[150] = 200
    with pytest.raises(ConfigError, match=r"fleet\.tiers"):
        EdgeClusters().arrange(view(env, {ALL: env.store.initial()}, memory=memory), {})
