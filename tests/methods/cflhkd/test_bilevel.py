"""Eq. (12) to (16) and what cloud and edge tell each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.memory import Memory
from espalier.core.messages import ALL
from espalier.core.store import Ref
from espalier.methods.cflhkd.bilevel import (
    CLUSTER_MODELS,
    DELIVERIES,
    GLOBAL,
    GUIDING,
    CloudHandDown,
    CloudMerge,
    CloudPace,
    EdgeHandDown,
    EdgePace,
    Occupied,
    cluster_weights,
    cosine_distance,
    pull_strength,
    refined,
)
from espalier.methods.cflhkd.fdc import Sketch
from tests.policies.fakes import FakeEnv, arrival, order, view


def test_blend_weights_by_hand() -> None:
    # |D| = 1, 1; alpha = .8, .4; lam d^2 = 0, ln 2: .8 : .4 / 2 = .8 : .2.
    rho = cluster_weights([1, 1], [0.8, 0.4], [0.0, math.log(2)], 1.0)
    np.testing.assert_allclose(rho, [0.8, 0.2])
    # Without accuracies and distances, sizes alone: Eq. (11).
    np.testing.assert_allclose(cluster_weights([1, 3], [1, 1], [0, 0], 0.005), [0.25, 0.75])
    # An accuracy of 0 counts as .01: .01 : .99 of equal sizes.
    np.testing.assert_allclose(cluster_weights([1, 1], [0.0, 0.99], [0, 0], 0.1), [0.01, 0.99])


@given(st.lists(st.tuples(st.integers(1, 9999), st.floats(0, 1), st.floats(0, 1e7)), min_size=1, max_size=8))
def test_blend_weights_sum_to_one_at_any_distance(clusters: list[tuple[int, float, float]]) -> None:
    rho = cluster_weights(*zip(*clusters, strict=True), 0.005)
    assert rho.sum() == pytest.approx(1.0)
    assert (rho >= 0).all()


def test_pull_strength_by_hand() -> None:
    # w_e = (1, 0), w_g = (0, 1): cosine 0, divergence 1, lam_k = .1 / 2.
    assert cosine_distance(torch.tensor([1.0, 0]), torch.tensor([0.0, 1])) == pytest.approx(1.0)
    assert pull_strength(0.1, 1.0) == pytest.approx(0.05)
    assert pull_strength(0.1, 0.0) == 0.1
    assert cosine_distance(torch.zeros(2), torch.ones(2)) == 0.0


def test_refinement_by_hand() -> None:
    # 2 lam_k = .1: (1, 0) - .1 ((1, 0) - (0, 1)) = (.9, .1).
    store = FakeEnv().store
    own, common = store.put([1.0, 0.0]), store.put([0.0, 1.0])
    torch.testing.assert_close(store.table[refined(store, own, common, 0.1)], torch.tensor([0.9, 0.1]).double())
    # A pull of more than the whole way stops at the common model.
    torch.testing.assert_close(store.table[refined(store, own, common, 50.0)], torch.tensor([0.0, 1.0]).double())
    assert refined(store, own, common, 0.0) == own
    assert refined(store, own, own, 0.1) == own


def test_an_edge_keeps_its_model_and_is_pulled() -> None:
    env = FakeEnv()
    own, common = env.store.put([1.0, 0.0]), env.store.put([0.0, 1.0])
    edge = EdgeHandDown(lam0=0.1)
    assert edge.receive(view(env, {ALL: own}), order({})) == {ALL: own}
    pulled = edge.receive(view(env, {ALL: own}), order({GLOBAL: common}))
    torch.testing.assert_close(env.store.table[pulled[ALL]], torch.tensor([0.9, 0.1]).double())
    # A model sent as the cluster's own is taken over.
    assert edge.receive(view(env, {ALL: own}), order({ALL: common})) == {ALL: common}
    # An edge that lost its memory and gets nothing starts from the initial model.
    assert env.store.table[edge.receive(view(env, {}), order({}))[ALL]].tolist() == [0.0, 0.0]


def test_refinement_at_the_devices() -> None:
    env = FakeEnv()
    own, common = env.store.put([1.0, 0.0]), env.store.put([0.0, 1.0])
    edge, pace = EdgeHandDown(lam0=0.1, refine="client"), EdgePace(5)
    seen = view(env, {ALL: own})
    seen.order = order({GLOBAL: common}, updates=2, tell=True)
    assert edge.receive(seen, seen.order) == {ALL: own}
    # The loss gains lam_k ||w - w_g||^2 = mu/2 ||w - w_g||^2 with mu = 2 * .05, for one update.
    (work,) = pace.assign(seen, [7]).values()
    assert (work.updates, work.args) == (1, {"pull": pytest.approx(0.1)})
    assert edge.anchor(seen, 7) == common
    pace.learn(seen, [arrival(7, {ALL: own})])
    # The second round of the order is an ordinary one.
    (work,) = pace.assign(seen, [7]).values()
    assert (work.updates, work.args) == (5, {"tell": True})
    assert edge.anchor(seen, 7) is None


def test_what_an_edge_tells() -> None:
    env = FakeEnv(n1=30, n2=10)
    start, one, two = (env.store.put(v) for v in ([0.0, 0.0], [1.0, 0.0], [0.0, 2.0]))
    pace, edge = EdgePace(), EdgeHandDown(sketch=4)
    seen = view(env, {ALL: start}, order=order({}))
    pace.assign(seen, [1, 2])
    pace.learn(seen, [arrival(1, {ALL: one}, accuracy=0.8), arrival(2, {ALL: two}, accuracy=0.4)])
    assert edge.up(seen) == {}
    # (30 * .8 + 10 * .4) / 40 = .7; nothing of updates, nobody asked.
    assert edge.statistics(seen) == {"reports": 2, "accuracy": pytest.approx(0.7)}
    # Asked for sketches: both updates, folded as the cloud would fold them; then they are forgotten.
    seen.order = order({}, share=True, sketch=True)
    pace.assign(seen, [1])
    pace.learn(seen, [])
    assert edge.up(seen) == {ALL: start}
    told = edge.statistics(seen)
    fold = Sketch(2, 4, env.rng("sketch")).fold(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    assert told["sketched"] == [1, 2]
    np.testing.assert_array_equal(told["sketches"], fold)
    assert "sketches" not in edge.statistics(seen)


def test_a_drifted_device_brings_model_histogram_and_sketch_up_at_once() -> None:
    env = FakeEnv()
    start, one, two = (env.store.put(v) for v in ([0.0, 0.0], [1.0, 0.0], [0.0, 2.0]))
    pace, edge = EdgePace(), EdgeHandDown(sketch=4)
    seen = view(env, {ALL: start}, order=order({}))
    pace.assign(seen, [1, 2])
    pace.learn(seen, [arrival(1, {ALL: one}), arrival(2, {ALL: two}, histogram=np.array([0.0, 5.0]))])
    assert edge.up(seen) == {ALL: start}
    told = edge.statistics(seen)
    assert told["drifted"] == [2] and told["sketched"] == [2]
    np.testing.assert_array_equal(told["histograms"], [[0.0, 5.0]])
    assert edge.up(seen) == {}


def test_whole_models_are_sketched_when_asked() -> None:
    env = FakeEnv()
    start, one = env.store.put([1.0, 1.0]), env.store.put([3.0, 1.0])
    pace = EdgePace()
    seen = view(env, {ALL: start}, order=order({}, sketch=True))
    pace.assign(seen, [1])
    pace.learn(seen, [arrival(1, {ALL: one})])
    told = EdgeHandDown(sketch=3, weights=True).statistics(seen)
    fold = Sketch(2, 3, env.rng("sketch")).fold(torch.tensor([[3.0, 1.0]]))
    np.testing.assert_array_equal(told["sketches"], fold)


def guiding(deliveries: dict[int, Ref] | None = None) -> Memory:
    memory = Memory()
    memory.provide(GUIDING, True)
    memory.provide(DELIVERIES, deliveries or {})
    return memory


def test_the_schedule() -> None:
    pace = CloudPace(share_every=6, tell_every=2, sketch_every=3, extra=True)
    env = FakeEnv()
    said = [pace.assign(view(env, {}, clock=clock), [100])[100].args for clock in range(6)]
    tell, share = {"tell": True}, {"share": True, "tell": True, "sketch": True}
    assert said == [{}, tell, {"sketch": True}, tell, {}, share]
    assert pace.assign(view(env, {}, clock=6, memory=guiding()), [100])[100].updates == 2


def test_the_cloud_blends_when_it_is_time() -> None:
    env = FakeEnv(n100=1, n101=1)
    old, a, b = env.store.put([0.0, 0.0]), env.store.put([0.0, 0.0]), env.store.put([2.0, 0.0])
    merge = CloudMerge(share_every=2, lam=math.log(2) / 4)
    arrivals = [arrival(100, {ALL: a}, accuracy=0.8), arrival(101, {ALL: b}, accuracy=0.4)]
    memory = Memory()
    memory.state(merge).shared = True
    assert merge.merge(view(env, {ALL: old}, clock=0, memory=memory), arrivals) == {}
    assert memory.product(CLUSTER_MODELS) == {100: a, 101: b}
    seen = view(env, {ALL: old}, clock=1, memory=memory)
    # Squared distances to the previous common model: 0 and 4, so lam d^2 = 0 and ln 2: rho = .8, .2.
    found = merge.merge(seen, arrivals)
    torch.testing.assert_close(env.store.table[found[ALL]], torch.tensor([0.4, 0.0]).double())
    assert memory.product(GUIDING) is True
    assert seen.notes[0].kind == "weights"
    assert seen.notes[0].data["values"] == {"100": pytest.approx(0.8), "101": pytest.approx(0.2)}


def test_the_first_blend_measures_distances_to_the_mean_by_size() -> None:
    env = FakeEnv(n100=1, n101=3)
    start, a, b = env.store.put([9.0, 9.0]), env.store.put([0.0, 0.0]), env.store.put([4.0, 0.0])
    # The mean by size is 3: distances 9 and 1. rho ~ 1 e^(-.9), 3 e^(-.1).
    seen = view(env, {ALL: start})
    merge = CloudMerge(share_every=1, lam=0.1)
    found = merge.merge(seen, [arrival(100, {ALL: a}), arrival(101, {ALL: b})])
    want = 4 * 3 * math.exp(-0.1) / (math.exp(-0.9) + 3 * math.exp(-0.1))
    assert env.store.table[found[ALL]][0] == pytest.approx(want)


def test_equal_models_stay_as_they_are() -> None:
    env = FakeEnv()
    same = env.store.put([1.5, -2.0])
    found = CloudMerge(share_every=1).merge(view(env, {ALL: same}), [arrival(e, {ALL: same}) for e in (100, 101, 102)])
    torch.testing.assert_close(env.store.table[found[ALL]], env.store.table[same])


def test_what_an_edge_gets() -> None:
    env = FakeEnv()
    common, start = env.store.put([1.0, 0.0]), env.store.put([0.0, 1.0])
    down = CloudHandDown()
    assert down.send(view(env, {ALL: common}), 100) == {}
    assert down.send(view(env, {ALL: common}, memory=guiding()), 100) == {GLOBAL: common}
    assert down.send(view(env, {ALL: common}, memory=guiding({100: start})), 100) == {ALL: start}
    assert CloudHandDown(guides=False).send(view(env, {ALL: common}, memory=guiding()), 100) == {}


def test_only_edges_with_devices_work() -> None:
    env = FakeEnv()
    env.parents = {100: 200, 101: 200, 1: 101}
    assert Occupied().pick(view(env, {})) == [101]
    env.parents = {100: 200, 101: 200}
    assert Occupied().pick(view(env, {})) == [100, 101]
