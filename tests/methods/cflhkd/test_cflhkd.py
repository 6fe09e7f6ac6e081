"""CFLHKD: clusters at edges, what travels when, devices that watch their labels, drift, ablations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.messages import ALL
from espalier.core.method import make
from espalier.core.store import Ref
from espalier.experiment import Experiment
from espalier.methods.cflhkd.measures import shocks
from espalier.methods.cflhkd.method import Watchful
from espalier.simulator.runner import Runner
from espalier.testing import BASE, check
from tests.methods.planted import planted, runner, traffic
from tests.policies.fakes import local_view, order

SOON: dict[str, Any] = {"name": "cflhkd", "delta": 0.4}
DRIFT = {"drift": {"kind": "label_switch", "at_round": 6, "fraction": 0.5}}


def test_it_finds_planted_clusters_and_keeps_them() -> None:
    run = planted(SOON, seed=0, stop={"rounds": 40})
    frame = run.frame()
    assert frame["ari"].iloc[-1] >= 0.9
    assert frame["acc_device"].iloc[-1] > 0.85
    # Each cluster lives at an edge of its own, and its devices report there.
    clusters = run.events("arranged")[-1]["clusters"]
    parents = {d: None for d in range(16)}
    for node, parent in run.query("SELECT node, parent FROM moves ORDER BY rowid"):
        parents[node] = parent
    assert all(parents[d] in (int(edge), None) for edge, inside in clusters.items() for d in inside)
    # The common model is recorded with the weights it was blended by.
    for event in run.events("weights"):
        assert sum(event["values"].values()) == pytest.approx(1.0)
    assert [e["round"] for e in run.events("weights")] == list(range(1, 41))


def test_without_the_rest_rule_a_second_clustering_undoes_the_first() -> None:
    seldom = {"share_every": 10, "cluster_every": 10, "delta": 0.9, "distance": "rows"}
    kept, torn = (planted({"name": "cflhkd", **seldom, **o}, stop={"rounds": 41}) for o in ({}, {"restless": 0.0}))
    assert torn.frame()["ari"].iloc[-1] < 0.9 <= kept.frame()["ari"].iloc[-1]


def test_models_travel_to_the_cloud_only_when_they_are_shared() -> None:
    method = {"name": "cflhkd", "share_every": 3, "clustering": "initial"}
    run = planted(method, stop={"rounds": 6}, fleet={"devices": 16, "edges": 6, "fraction": 0.5})
    size, clusters = run.meta("model_bytes"), len(run.events("arranged")[0]["clusters"])
    assert clusters == 4
    # Four edges get the first model and the blends of rounds 3 and 6, and send theirs up after both.
    assert traffic(run, "edge-cloud", "model") == clusters * (3 + 2) * size
    # Below, half of each cluster gets and sends a model in every round (of an odd number, over two rounds).
    assert traffic(run, "dev-edge", "model", "up") == 6 * 8 * size
    # 16 histograms of ten numbers at the beginning; per round and edge a count of reports and an accuracy.
    assert traffic(run, "edge-cloud", "ctrl", "up") == 4 * (16 * 10 + 4 * 6 * 2)


def test_sketches_stand_for_updates_on_the_way_to_the_cloud() -> None:
    method = {"name": "cflhkd", "share_every": 100, "tell_every": 100, "cluster_every": 2, "sketch": 50}
    run = planted(method, stop={"rounds": 2})
    edges = len(run.events("arranged")[0]["clusters"])
    # Histograms; two counts per edge; then for each device its number and 50 numbers.
    assert traffic(run, "edge-cloud", "ctrl", "up") == 4 * (16 * 10 + 2 * edges + 16 * 51)


def models_of(method: str | dict[str, Any]) -> tuple[dict[str, Any], Runner]:
    """Return the final models of a run in float64 in which everything takes no time."""
    table = {**BASE, "partition": {"kind": "dirichlet", "alpha": 0.5, "fraction": 0.4}, "world": "ideal"}
    table |= {"fleet": {"devices": 12, "edges": 3}, "training": {**BASE["training"], "precision": "float64"}}
    one = Runner(Experiment.build(table).only(method, 1), None)
    one.run()
    return one.final_models(), one


def test_the_paper_s_first_algorithm_is_only_edge_plus_an_average() -> None:
    # No pull, no penalty, nobody holds anything out, the given edges are the clusters, everything in every round.
    models, one = models_of({"name": "cflhkd", "clustering": "given", "lam0": 0.0, "lam2": 0.0})
    alone, _ = models_of("only_edge")
    for edge in ("edge-0", "edge-1", "edge-2"):
        assert torch.equal(models[edge], alone[edge])
    part = one.simulation.fleet.partition
    sizes = np.bincount(part.edge, part.sizes)
    mean = sum(float(n) * models[f"edge-{e}"] for e, n in enumerate(sizes)) / float(sizes.sum())
    torch.testing.assert_close(models["global"], mean, rtol=1e-12, atol=1e-13)


def test_what_is_measured_is_what_the_round_has_left() -> None:
    # lam0 = 1 pulls a cluster's model all the way: min(1, 2 · 1 / (1 + div)) = 1. The end is after the pull, so all
    # clusters serve the common model; without it they would serve what their devices made of it.
    models, _ = models_of({"name": "cflhkd", "clustering": "given", "lam0": 1.0})
    for edge in ("edge-0", "edge-1", "edge-2"):
        torch.testing.assert_close(models[edge], models["global"], rtol=0, atol=1e-12)


def test_a_pull_brings_clusters_nearer_to_each_other() -> None:
    def spread(**options: Any) -> float:
        models, _ = models_of({"name": "cflhkd", "clustering": "given", **options})
        return float(torch.stack([models[f"edge-{e}"] for e in range(3)]).var(0).sum())

    free = spread(lam0=0.0)
    assert spread(lam0=0.2) < spread(lam0=0.05) < free
    # The devices' own refinement is an epoch more: it is compared with a fainter one.
    assert spread(lam0=2.0, refine="client") < spread(lam0=0.02, refine="client")
    assert spread(lam0=0.2, refine="none") == free


def test_drifted_devices_tell_and_are_put_elsewhere() -> None:
    split = {"kind": "dirichlet", "alpha": 5.0, "min_samples": 30, "val_fraction": 0.1}
    changes: dict[str, Any] = {"partition": split, "world": DRIFT, "evaluate": {"every": 1}, "stop": {"rounds": 14}}
    run = planted({"name": "cflhkd", "cluster_every": 30, "delta": 0.3}, **changes)
    (drift,) = run.events("drift")
    noticed = [e for e in run.events("arranged") if e["why"] == "drift"]
    # Everybody works in every round here: in the first round after the drift all of them tell, and only they.
    assert [e["round"] for e in noticed] == [7]
    assert noticed[0]["drifted"] == drift["devices"]
    assert noticed[0]["moved"] > 0
    (shock,) = shocks(run)
    assert shock.round == 6 and shock.drop > 0.2 and shock.devices == len(drift["devices"])
    # Who is not watched for drift stays where it was.
    still = planted({"name": "cflhkd", "clustering": "initial"}, **changes)
    assert [e["why"] for e in still.events("arranged")] == ["start"]
    assert run.frame()["acc_device"].iloc[-1] > still.frame()["acc_device"].iloc[-1]


def test_only_drifted_devices_send_histograms() -> None:
    split = {"kind": "dirichlet", "alpha": 5.0, "min_samples": 30}
    changes: dict[str, Any] = {"partition": split, "stop": {"rounds": 9}}
    method = {"name": "cflhkd", "tell_every": 100}
    calm, stormy = planted(method, **changes), planted(method, world=DRIFT, **changes)
    drifted = len(stormy.events("drift")[0]["devices"])
    more = traffic(stormy, "dev-edge", "ctrl", "up") - traffic(calm, "dev-edge", "ctrl", "up")
    assert more == drifted * 4 * 10


def test_distillation_teaches_the_common_model() -> None:
    split = {"kind": "two_level", "edge_fraction": 0.3, "device_fraction": 0.3, "fraction": 0.7, "val_fraction": 0.1}
    changes: dict[str, Any] = {"partition": split, "stop": {"rounds": 8}, "evaluate": {"every": 8}}
    method = {"name": "cflhkd", "share_every": 8, "clustering": "given", "lam2": 0.0, "refine": "none"}
    plain, taught = planted(method, **changes), planted({**method, "distil": 5}, **changes)
    assert taught.frame()["acc_global"].iloc[-1] > plain.frame()["acc_global"].iloc[-1]
    # The devices' own models are as they were: the cloud learnt after them.
    assert taught.frame()["acc_device"].iloc[-1] == plain.frame()["acc_device"].iloc[-1]


def test_without_samples_of_its_own_the_cloud_cannot_distil() -> None:
    with pytest.raises(ConfigError, match=r"partition\.fraction"):
        planted({"name": "cflhkd", "distil": 1, "share_every": 1}, stop={"rounds": 2})


def test_without_edges_clusters_live_at_the_cloud() -> None:
    run = planted({**SOON, "bilevel": False}, seed=0)
    frame = run.frame()
    assert frame["ari"].iloc[-1] > 0.7
    # No common model, and every device's model pays both hops.
    assert "acc_global" not in frame or np.isnan(frame["acc_global"].iloc[-1])
    assert traffic(run, "edge-cloud", "model") == traffic(run, "dev-edge", "model")


def test_a_literal_edge_interval_trains_longer_between_merges() -> None:
    method = {"name": "cflhkd", "edge_interval": 3, "share_every": 6, "clustering": "given"}
    one = runner(method, stop={"rounds": 2})
    one.run()
    # Rounds of the run are three of the paper's: six epochs of local work, and the blend after two of them.
    assert one.simulation.plan.edge.pace.updates == 6
    rows = one.recorder.connection.execute("SELECT data FROM events WHERE kind = 'weights'").fetchall()
    assert len(rows) == 1


@pytest.mark.parametrize("options", [{"refine": "client"}, {"bilevel": False}])
@pytest.mark.parametrize("name", ["resume", "join_and_leave", "faults", "empty_edge", "fixed_point"])
def test_conformance_with_everything_in_every_round(options: dict[str, Any], name: str) -> None:
    check({"name": "cflhkd", **options}, name)


def test_impossible_values_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"fraction": 0.0}, {"share_every": 0}, {"lam0": -1.0}, {"gamma": 2.0}, {"drift": 2.0}, {"sketch": 0},
        {"temperature": 0.0}, {"restless": 2.0}, {"refine": "cloud"}, {"clustering": "never"},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(ConfigError, match=next(iter(options))):
            make("cflhkd", **options)


def test_servers_between_edges_and_cloud_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"fleet\.tiers"):
        planted({"name": "cflhkd"}, fleet={"devices": 8, "edges": 4, "tiers": [2]}, stop={"rounds": 1})


BEFORE, NEAR, AFTER = np.array([10.0, 10, 0, 0]), np.array([12.0, 8, 0, 0]), np.array([0.0, 0, 9, 9])


def test_it_speaks_only_when_its_labels_have_drifted_and_only_once() -> None:
    local, view, order_ = Watchful(threshold=0.3), local_view(), order({ALL: Ref(0)})
    assert local.question(view, order_) == "label_histogram"
    # What it told the cloud when it was asked is what it compares with.
    assert local.reply(view, order({}), {"histogram": BEFORE}) == {"histogram": BEFORE}
    local.answer(view, order_, {"histogram": NEAR})
    assert local.done(view, order_, {"": Ref(1)}).stats == {}
    local.answer(view, order_, {"histogram": AFTER})
    said = local.done(view, order_, {"": Ref(1)}).stats
    np.testing.assert_array_equal(said["histogram"], AFTER)
    local.answer(view, order_, {"histogram": AFTER})
    assert local.done(view, order_, {"": Ref(1)}).stats == {}


def test_slow_drift_adds_up_against_what_was_told_last() -> None:
    # Each step is small, but the comparison is with what the cloud knows: in the end it is told.
    local, view, order_ = Watchful(threshold=0.3), local_view(), order({ALL: Ref(0)})
    local.reply(view, order({}), {"histogram": np.array([10.0, 0])})
    told = []
    for step in range(1, 11):
        local.answer(view, order_, {"histogram": np.array([10.0 - step, step])})
        told.append("histogram" in local.done(view, order_, {"": Ref(1)}).stats)
    # JSD((1, 0), (1 - p, p)) is .27 at p = .45 and .311 at p = .5: step 5 is the first above .3. From (.5, .5) the
    # next is at p = 1, again .311.
    assert [i + 1 for i, t in enumerate(told) if t] == [5, 10]


def test_the_first_look_is_the_baseline_if_nobody_asked() -> None:
    local, view, order_ = Watchful(), local_view(), order({ALL: Ref(0)})
    local.answer(view, order_, {"histogram": AFTER})
    assert local.done(view, order_, {"": Ref(1)}).stats == {}


def test_it_scores_the_model_when_told_to() -> None:
    local, view, tell = Watchful(threshold=None), local_view(), order({ALL: Ref(0)}, tell=True)
    assert local.question(view, order({ALL: Ref(0)})) is None
    assert local.question(view, tell) == "checkup"
    local.answer(view, tell, {"histogram": BEFORE, "accuracy": 0.75})
    assert local.done(view, tell, {"": Ref(1)}).stats == {"accuracy": 0.75}


def test_a_pull_comes_with_the_order() -> None:
    anchored = order({ALL: Ref(0)}, pull=0.1)
    anchored = type(anchored)(**{**{f: getattr(anchored, f) for f in anchored.__slots__}, "anchor": Ref(5)})
    local = Watchful()
    assert local.question(local_view(), anchored) is None
    train = local.train(local_view(), anchored)
    assert (train.anchor, train.mu) == (Ref(5), pytest.approx(0.1))
    plain = local.train(local_view(), order({ALL: Ref(0)}))
    assert (plain.anchor, plain.mu) == (None, 0.0)
