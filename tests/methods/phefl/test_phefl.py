"""PHE-FL on real digits: what it equals at its ends, what it records, what travels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from espalier import simulate
from espalier.core.errors import ConfigError
from espalier.experiment import Experiment
from espalier.methods.phefl.method import PheFl
from espalier.methods.phefl.study import alphas, curve
from espalier.record.run import Run
from espalier.simulator.runner import Runner

TABLE: dict[str, Any] = {
    "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [16]}},
    "partition": {"kind": "phefl", "layout": "D2"},
    "fleet": {"devices": 20, "edges": 10},
    "training": {"batch_size": 10, "updates": 2, "lr": 0.1, "precision": "float64"},
    "world": "phefl",
    "stop": {"rounds": 3},
}


def runner(method: str | dict[str, Any], **changes: Any) -> Runner:
    found = Runner(Experiment.build({**TABLE, **changes}).only(method, 0), None)
    found.run()
    return found


def served(found: Runner, edge: int) -> Tensor:
    sim = found.simulation
    return sim.ledger.vector(sim.served[sim.fleet.edge_host(edge)][""])


def test_share_of_the_samples_is_edge_cloud() -> None:
    # Dirichlet: edges of different sizes, so that |D_k|/|D| differs from edge to edge.
    changes = {"partition": {"kind": "dirichlet", "alpha": 0.5, "fraction": 0.4}, "fleet": {"devices": 12, "edges": 3}}
    plain = runner("edge_cloud", **changes).final_models()["global"]
    personal = runner({"name": "phefl", "by": "share"}, **changes)
    for edge in range(3):
        torch.testing.assert_close(served(personal, edge), plain, rtol=1e-12, atol=1e-13)


def test_share_is_the_plain_average_through_servers_too() -> None:
    changes = {
        "partition": {"kind": "dirichlet", "alpha": 0.5, "fraction": 0.6},
        "fleet": {"devices": 12, "edges": 6, "tiers": [3, 2]},
    }
    plain = runner("edge_cloud", **changes).final_models()["global"]
    personal = runner({"name": "phefl", "by": "share"}, **changes)
    for edge in range(6):
        torch.testing.assert_close(served(personal, edge), plain, rtol=1e-12, atol=1e-13)


def test_alpha_one_is_only_edge_to_the_bit() -> None:
    personal, alone = runner({"name": "phefl", "alpha": 1.0}), runner("only_edge")
    for edge in range(10):
        assert torch.equal(served(personal, edge), served(alone, edge))


def test_edge_every_trains_longer_between_averages_and_cloud_every_averages_more_often() -> None:
    often = runner({"name": "phefl", "edge_every": 3}, stop={"rounds": 1})
    longer = runner("phefl", training={**TABLE["training"], "updates": 6}, stop={"rounds": 1})
    for edge in range(10):
        assert torch.equal(served(often, edge), served(longer, edge))
    # three averages at the edge, then one personalisation: with alpha = 1 that is OnlyEdge's third round
    rare = runner({"name": "phefl", "cloud_every": 3, "alpha": 1.0}, stop={"rounds": 1})
    alone = runner("only_edge", stop={"rounds": 3})
    assert torch.equal(served(rare, 4), served(alone, 4))


def test_rounds_end_with_the_personal_models() -> None:
    found = runner("phefl")
    run = Run(connection=found.recorder.connection)
    assert len(curve(run)) == 3
    table = alphas(run)
    assert table.index.tolist() == [1, 2, 3] and table.columns.tolist() == list(range(10))
    own, rest = alphas(run, "own").to_numpy(), alphas(run, "others").to_numpy()
    known = own + rest > 0
    assert np.allclose(table.to_numpy()[known], (own / np.maximum(own + rest, 1e-12))[known])
    by_edge = np.array([values for _, _, values in run.arrays("acc_edge")])
    assert by_edge.shape == (4, 10)
    assert np.isclose(100 * by_edge[1:].mean(axis=1), curve(run)).all()


def test_each_edge_gets_one_model_per_round() -> None:
    found = runner("phefl")
    size = found.simulation.task.spec.model_bytes
    rows = found.recorder.connection.execute(
        "SELECT direction, bytes FROM traffic WHERE tier = 'edge-cloud' AND kind = 'model' AND round = 3"
    ).fetchall()
    # GM^0 and the others' models after rounds 1, 2, 3 go down; three edge models go up; ten edges.
    assert dict(rows) == {"down": 4 * 10 * size, "up": 3 * 10 * size}


def test_one_label_per_edge_keeps_edges_apart_and_all_labels_bring_them_together() -> None:
    # With one label per edge the others know nothing of it: alpha goes to 1. With all labels at every edge
    # the others are as good as the own model: alpha stays near 1/2.
    apart = simulate("phefl", {**TABLE, "partition": {"kind": "phefl", "layout": "D1"}})
    together = simulate(
        "phefl", {**TABLE, "partition": {"kind": "phefl", "layout": "D4"}, "fleet": {"devices": 100, "edges": 10}}
    )
    assert alphas(apart).iloc[-1].mean() > 0.95
    assert abs(alphas(together).iloc[-1].mean() - 0.5) < 0.1
    assert curve(apart)[-1] == 100


@pytest.mark.parametrize("options", [{"by": "loss"}, {"layers": "head_body"}, {"layers": "head_body", "by": "loss"}])
def test_other_ways_to_choose_learn_too(options: dict[str, Any]) -> None:
    run = simulate({"name": "phefl", **options}, {**TABLE, "stop": {"rounds": 8}})
    values = alphas(run).to_numpy()
    assert ((values >= 0) & (values <= 1)).all()
    assert curve(run)[-1] > curve(run)[0] + 10
    if "layers" in options:
        assert not np.allclose(values, alphas(run, "head").to_numpy())


@pytest.mark.parametrize("tiers", ["edge", "all"])
def test_servers_between_edges_and_cloud(tiers: str) -> None:
    fleet = {"devices": 20, "edges": 10, "tiers": [4, 2]}
    run = simulate({"name": "phefl", "tiers": tiers}, {**TABLE, "fleet": fleet, "stop": {"rounds": 6}})
    assert len(curve(run)) == 6 and curve(run)[-1] > curve(run)[0] + 10
    choosers = {e["node"] for e in run.events("alpha")}
    assert len(choosers) == (10 if tiers == "edge" else 10 + 4 + 2)


def test_without_any_set_of_its_own_an_edge_cannot_choose() -> None:
    with pytest.raises(ConfigError, match="personal"):
        runner("phefl", partition={"kind": "iid", "fraction": 0.4})


@pytest.mark.parametrize("options", [{"edge_every": 0}, {"cloud_every": 0}, {"fraction": 0.0}, {"alpha": -0.1}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PheFl(**options)
