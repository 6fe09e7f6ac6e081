"""Trellis's plan, and the study that sets it beside the papers' methods."""

from __future__ import annotations

from importlib import resources

import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.method import Setting
from espalier.methods.csahfl.semi_async import SemiAsync
from espalier.methods.hierfavg import AfterMerge
from espalier.methods.trellis.method import LateWork, Trellis
from espalier.methods.trellis.study import HEADLINES, OURS, changed, variants
from espalier.policies.server_optimizers import Momentum
from espalier.study.base import study
from espalier.study.claims import read_claims
from tests.methods.test_equivalences import final


def test_its_parts_stand_where_they_belong() -> None:
    plan = Trellis(kappa2=2, clock="edge").plan(Setting(n_devices=8, n_edges=2, n_classes=10, updates=5))
    assert isinstance(plan.root.merge, Momentum) and (plan.root.merge.beta, plan.root.merge.average) == (0.7, 0.5)
    assert plan.root.merge.ahead and isinstance(plan.edge.pace, SemiAsync)
    assert plan.root.merge.warm_up and isinstance(plan.edge.merge, LateWork)
    assert isinstance(plan.edge.hand_down, AfterMerge) and plan.serves == "root"
    assert plan.serve.prior == "validated"
    measured = Setting(n_devices=8, n_edges=2, n_classes=1, classifies=False)
    assert Trellis().plan(measured).serve.plain  # a regression has no label prior


@pytest.mark.parametrize("wrong", [{"average": 1.0}, {"beta": -0.1}, {"alpha": -1.0}, {"kappa2": 0}])
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
        assert (("w/o late work" if known.late else "w/o momentum"), column) in at
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
    cloud = {"kind": "momentum", "beta": 0.7, "average": 0.5, "look_ahead": True, "warm_up": True}
    assert rows["Trellis"]["root"]["merge"] == cloud
    assert rows["w/o averaging"]["root"]["merge"] == {**cloud, "average": 0.0}
    assert rows["w/o momentum"]["root"]["merge"]["beta"] == 0.0
    assert "edge" not in rows["Trellis"]


@pytest.mark.parametrize("grower", ["easf", "d2d"])
def test_a_tree_that_it_grows_is_that_of_the_method_it_names(grower: str) -> None:
    merge = {"kind": "momentum", "beta": 0.7, "average": 0.5, "look_ahead": True, "warm_up": True}
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
