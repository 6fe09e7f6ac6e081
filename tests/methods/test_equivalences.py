"""Methods that must be the same method where their settings meet: float64, full participation, one seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from espalier.experiment import Experiment
from espalier.simulator.runner import Runner
from espalier.testing import BASE


def final(method: str | dict[str, Any], which: str = "global", **changes: Any) -> Tensor:
    table = {
        **BASE,
        "partition": {"kind": "dirichlet", "alpha": 0.5, "fraction": 0.4},
        "fleet": {"devices": 12, "edges": 3},
        "training": {**BASE["training"], "precision": "float64"},
        **changes,
    }
    runner = Runner(Experiment.build(table).only(method, 1), None)
    runner.run()
    found = runner.final_models()[which]
    assert isinstance(found, Tensor)
    return found


def test_fedprox_without_a_pull_is_fedavg_to_the_bit() -> None:
    assert torch.equal(final("fedavg"), final({"name": "fedprox", "mu": 0.0}))


def test_a_pull_changes_the_model() -> None:
    assert not torch.equal(final("fedavg"), final({"name": "fedprox", "mu": 0.1}))


def test_trellis_without_its_parts_is_hierfavg_to_the_bit() -> None:
    bare = {"name": "trellis", "beta": 0.0, "semi_async": False, "prior": "none"}
    world = {"compute": {"kind": "uniform", "low": 0.5, "high": 2.0}}
    assert torch.equal(final(bare, world=world), final("hierfavg", world=world))
    for part in ({"beta": 0.5}, {"semi_async": True}):
        assert not torch.equal(final({**bare, **part}, world=world), final("hierfavg", world=world)), part


def test_an_alert_changes_nothing_where_nothing_is_noticed() -> None:
    world = {"compute": {"kind": "uniform", "low": 0.5, "high": 2.0}}
    quiet = {"name": "trellis", "alert": 0.0}
    assert torch.equal(final("trellis", world=world), final(quiet, world=world))  # orders of one round
    assert torch.equal(final({"name": "trellis", "kappa2": 3}), final({**quiet, "kappa2": 3}))


@pytest.mark.parametrize("method", ["hierfavg", "edge_cloud"])
def test_one_edge_round_per_cloud_round_is_fedavg(method: str) -> None:
    # A mean of means adds the same numbers in another order: equal but for the last bits of float64.
    torch.testing.assert_close(final(method), final("fedavg"), rtol=1e-12, atol=1e-13)


def test_edge_cloud_is_hierfavg_to_the_bit() -> None:
    assert torch.equal(final("edge_cloud"), final("hierfavg"))


def test_only_edge_with_one_edge_is_fedavg() -> None:
    fleet = {"devices": 8, "edges": 1}
    one = final("only_edge", "edge-0", fleet=fleet)
    torch.testing.assert_close(one, final("fedavg", fleet=fleet), rtol=1e-12, atol=1e-13)


def test_deeper_trees_give_the_same_average() -> None:
    deep = final("hierfavg", fleet={"devices": 12, "edges": 6, "tiers": [3, 2]})
    flat = final("fedavg", fleet={"devices": 12, "edges": 6})
    torch.testing.assert_close(deep, flat, rtol=1e-12, atol=1e-13)


def test_standalone_with_one_device_is_plain_training() -> None:
    fleet = {"devices": 1, "edges": 1}
    changes = {"fleet": fleet, "partition": {"kind": "iid", "fraction": 0.2}}
    table = {**BASE, **changes, "training": {**BASE["training"], "precision": "float64"}}
    runner = Runner(Experiment.build(table).only("standalone", 1), None)
    runner.run()
    own = runner.simulation.ledger.vector(runner.simulation.served[0][""])
    assert torch.equal(own, final("fedavg", **changes))
    traffic = runner.recorder.connection.execute("SELECT sum(bytes) FROM traffic").fetchone()[0]
    assert not traffic


def test_servers_that_have_nothing_to_do_hold_up_no_round() -> None:
    # OnlyEdge's rounds are the edges': servers between them and the cloud never close one.
    fleet = {"devices": 12, "edges": 4}
    assert torch.equal(
        final("only_edge", "edge-1", fleet={**fleet, "tiers": [2]}), final("only_edge", "edge-1", fleet=fleet)
    )
