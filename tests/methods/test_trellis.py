"""Trellis's plan, and the study that sets it beside the papers' methods."""

from __future__ import annotations

import math
from importlib import resources
from typing import Any

import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.memory import Memory
from espalier.core.messages import ALL, Order, Report
from espalier.core.method import Setting
from espalier.core.policies import Progress
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.experiment import Experiment
from espalier.methods.hierfavg import AfterMerge
from espalier.methods.trellis.method import Alert, LateWork, Trellis
from espalier.methods.trellis.study import HEADLINES, OURS, changed, variants
from espalier.policies.server_optimizers import Momentum
from espalier.record.run import Run
from espalier.simulator.runner import Runner
from espalier.study.base import study
from espalier.study.claims import read_claims
from espalier.testing import BASE
from tests.core.fakes import SmallFleet
from tests.methods.test_equivalences import final


def test_its_parts_stand_where_they_belong() -> None:
    plan = Trellis(kappa2=2, clock="edge").plan(Setting(n_devices=8, n_edges=2, n_classes=10, updates=5))
    assert isinstance(plan.root.merge, Momentum) and (plan.root.merge.beta, plan.root.merge.average) == (0.7, 0.0)
    assert plan.root.merge.ahead and isinstance(plan.edge.pace, Alert) and plan.edge.pace.alert == 1.5
    assert plan.root.merge.warm_up and isinstance(plan.edge.merge, LateWork)
    assert isinstance(plan.edge.hand_down, AfterMerge) and plan.serves == "root"
    assert plan.serve.prior == "validated"
    measured = Setting(n_devices=8, n_edges=2, n_classes=1, classifies=False)
    assert Trellis().plan(measured).serve.plain  # a regression has no label prior


class Edge:
    """Edge 20 over devices 0, 1 and 2, in the middle of an order of several rounds."""

    def __init__(self, alert: float = 2.0, updates: int = 5) -> None:
        self.pace, self.memory, self.fleet = Alert(1, alert=alert), Memory(), SmallFleet({0: 20, 1: 20, 2: 20})
        self.order = Order(0, 30, 20, {}, updates, 0, 0, 0.0)

    def close(self, *losses: float | None) -> bool:
        """Close a round in which these devices tell these losses; return whether the edge reports now."""
        arrivals = [
            Arrival(Report(0, 20, device, 20, {ALL: Ref(0)}, {ALL: 1}, 1, 0, 0.0, loss=loss), 0.0)
            for device, loss in enumerate(losses) if loss is not None
        ]  # fmt: skip
        view = View(0.0, 20, 0, 0, "", {}, self.order, self.memory, self.fleet)  # type: ignore[arg-type]
        self.pace.learn(view, arrivals)
        return self.pace.enough(Progress(self.order, 1, 0.0, 0.0, self.memory))


def test_an_edge_reports_at_once_when_most_losses_are_twice_what_is_usual() -> None:
    edge = Edge()
    assert not edge.close(1.0, 1.0, 1.0)  # nobody has told anything before
    assert not edge.close(2.5, 0.8, 0.5)  # one of three; usual are now 1 + 0.3 * 1.5 = 1.45, 0.94 and 0.85
    assert edge.close(3.0, 1.8, 1.75)  # two of three: 3 > 2.9 and 1.75 > 1.7, but 1.8 < 1.88
    assert not edge.close(3.0, 1.8, 1.75)  # a jump counts once: what is usual has begun anew
    assert not edge.close(6.1, 3.5, None)  # half of them is not most; the first one's usual is now 3 + 0.3 * 3.1 = 3.93
    assert not edge.close(None, None, 3.6)  # one alone is not most, though 3.6 > 3.5; then 1.75 + 0.3 * 1.85 = 2.305
    assert edge.close(7.9, None, 4.7)  # both: 7.9 > 7.86 and 4.7 > 4.61
    assert not edge.close(math.nan, math.nan, 10.0)  # losses that are not told say nothing


def test_the_swing_between_a_merge_and_an_order_s_end_is_no_drift() -> None:
    edge = Edge(alert=1.5)
    for _ in range(6):  # an order's first loss is twice its last, but less than 1.5 times the usual one
        assert not edge.close(2.0, 2.0, 2.0)
        assert not edge.close(1.5, 1.5, 1.5)
        assert not edge.close(1.0, 1.0, 1.0)
    assert edge.close(2.3, 2.3, 2.3)


def test_what_a_device_told_is_forgotten_when_it_leaves() -> None:
    edge = Edge()
    edge.close(1.0, 1.0)
    edge.pace.forget(edge.memory, 0)
    assert not edge.close(9.0, 9.0)  # of 1 nothing is known but 1, of 0 nothing: one alone is not most
    assert edge.close(19.0, 19.0)


def test_nobody_looks_at_losses_for_nothing() -> None:
    never, one_round = Edge(alert=0.0), Edge(updates=1)
    assert not any(never.close(loss, loss) for loss in (1.0, 9.0))
    assert all(one_round.close(loss, loss) for loss in (1.0, 9.0))
    assert not one_round.memory.state(one_round.pace).losses


def test_a_drift_is_noticed_and_answered_at_once() -> None:
    def run(alert: float, drift: dict[str, Any]) -> tuple[set[int], int]:
        table = {
            **BASE, "fleet": {"devices": 12, "edges": 2}, "stop": {"rounds": 15}, "world": {"drift": drift},
            "partition": {"kind": "dirichlet", "alpha": 5.0, "fraction": 0.8},
            "training": {"batch_size": 10, "updates": 2, "lr": 0.1},
        }  # fmt: skip
        method = {"name": "trellis", "kappa2": 4, "clock": "edge", "alert": alert}
        runner = Runner(Experiment.build(table).only(method, 0), None)
        runner.run()
        merges = runner.simulation.rounds.closed[runner.simulation.fleet.tree.root]
        return {e["round"] for e in Run(connection=runner.recorder.connection).events("noticed")}, merges

    permuted = {"kind": "permute_labels", "at_round": 13}
    # the cloud has merged after edge rounds 4, 8 and 12; with the alert also before round 15, not only after 16
    assert run(2.0, {"kind": "none"}) == (set(), 3)
    assert run(0.0, permuted) == (set(), 3)
    noticed, merges = run(2.0, permuted)
    assert noticed and noticed <= {13, 14} and merges == 4


@pytest.mark.parametrize("wrong", [{"beta": 1.0}, {"beta": -0.1}, {"alpha": -1.0}, {"alert": -1.0}, {"kappa2": 0}])
def test_impossible_values_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Trellis(**wrong)  # type: ignore[arg-type]


def test_a_table_takes_the_values_of_another_in_depth() -> None:
    assert changed({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "e": {"f": 5}}) == {
        "a": {"b": 1, "c": 4}, "d": 3, "e": {"f": 5},
    }  # fmt: skip


@pytest.mark.parametrize("scale", ["smoke", "small", "full"])
def test_every_paper_s_methods_stand_beside_trellis(scale: str) -> None:
    cells = study("espalier/everywhere").cells(scale)  # type: ignore[arg-type]
    at = {(cell.row, cell.column) for cell in cells}
    assert len(at) == len(cells)
    for column, known in HEADLINES.items():
        assert {(OURS, column), (known.tree, column)} <= at
        assert {(f"w/o {part}", column) for part in known.without} <= at
    for cell in cells:
        assert cell.experiment.evaluate.prior
        assert cell.until is None or cell.until in at
    for claim in read_claims(resources.files("espalier.methods.trellis") / "claims.toml"):
        there = (
            at
            if claim.study == "espalier/everywhere"
            else {(c.row, c.column) for c in study(claim.study).cells("full")}
        )
        assert all((row, column) in there for row in (OURS, *claim.than) for column in claim.columns), claim.name


def test_on_a_grown_tree_its_parts_join_the_method_that_grows_it() -> None:
    rows = variants(HEADLINES["EASF"], {"name": "easf"})
    assert rows["Trellis"]["name"] == "easf"
    cloud = {"kind": "momentum", "beta": 0.7, "look_ahead": True, "warm_up": True}
    assert rows["Trellis"]["root"]["merge"] == cloud
    assert rows["w/o momentum"]["root"]["merge"] == {**cloud, "beta": 0.0}
    assert "edge" not in rows["Trellis"]


@pytest.mark.parametrize("grower", ["easf", "d2d"])
def test_a_tree_that_it_grows_is_that_of_the_method_it_names(grower: str) -> None:
    merge = {"kind": "momentum", "beta": 0.7, "look_ahead": True, "warm_up": True}
    world = {"links": {"kind": "graph", "degree": 4}} if grower == "easf" else {}
    changes = {"fleet": {"devices": 8, "edges": 1}, "stop": {"rounds": 3}, "world": world}
    ours = final({"name": "trellis", "tree": grower}, **changes)
    assert torch.equal(ours, final({"name": grower, "root": {"merge": merge}}, **changes))
    assert not torch.equal(ours, final({"name": grower}, **changes))


def test_the_root_of_a_tree_that_devices_make_follows_the_root_s_rules() -> None:
    # the root's head is made before it is the root: without the root's rules momentum would never act
    changes = {"fleet": {"devices": 8, "edges": 1}, "stop": {"rounds": 3}}
    plain = final({"name": "syn"}, **changes)
    moved = final({"name": "syn", "root": {"merge": {"kind": "momentum", "beta": 0.9}}}, **changes)
    assert not torch.equal(plain, moved)
