"""CSAHFL's tables and figures as studies: what is built, what was published, and that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from espalier.methods.csahfl.study import targets
from espalier.study import tables
from espalier.study.base import SCALES, Cell, Scale, final_time, study
from tests.study.made import made

NAMES = (
    "csahfl/table1",
    "csahfl/table2",
    "csahfl/table3",
    "csahfl/fig3",
    "csahfl/fig4",
    "csahfl/semi_async",
    "csahfl/options",
)
STATIC = "Fashion-MNIST ENIID50% p_s=1"
MOBILE = "Fashion-MNIST ENIID50% p_s=0.5"


@pytest.mark.parametrize("name", NAMES)
def test_settings_can_be_built_at_every_scale(name: str) -> None:
    for scale in SCALES:
        cells = study(name).cells(scale)
        keys = [(c.row, c.column) for c in cells]
        assert len(keys) == len(set(keys)) > 3
        # who waits for another cell's time finds that cell
        assert all(c.until in keys for c in cells if c.until is not None)
        if scale == "full" and name != "csahfl/fig3":
            assert {(r, c) for r, columns in study(name).published.items() for c in columns} <= set(keys)


def test_the_full_scale_is_the_papers_setting() -> None:
    cells = {(c.row, c.column): c.experiment for c in study("csahfl/table1").cells("full")}
    assert len([row for row, _ in cells if row != "Trellis"]) == 9 * 8 + 9 * 6  # beside the paper's, a row of our own
    found = cells["CSAHFL", MOBILE]
    assert (found.fleet.devices, found.fleet.edges, found.stop.rounds, len(found.seeds)) == (200, 5, 50, 3)
    assert (found.training.batch_size, found.training.updates, found.training.lr) == (10, 10, 0.01)
    assert found.world.mobility.to_plain()["stay"] == 0.5
    method = found.methods[0].method
    assert (method.alpha, method.beta, method.edge_rounds) == (1.5, 20.0, 3)  # type: ignore[attr-defined]
    # delays as in the paper: they do not vary from round to round
    assert found.world.compute.kind != "noise" and found.training.momentum == 0.0
    # 150 cloud rounds without edges are 50 of 3 edge rounds
    assert cells["FedAVG", STATIC].stop.rounds == 150


@pytest.mark.parametrize("scale", ["small", "full"])
def test_clusters_are_cut_as_asked_for_and_by_number(scale: Scale) -> None:
    methods = {(c.row, c.column): c.experiment.methods[0].method for c in study("csahfl/fig4").cells(scale)}
    betas = [method for (_, column), method in methods.items() if column == "beta"]
    assert len(betas) == 9 and not any(method.rescue for method in betas)  # type: ignore[attr-defined]
    counts = [m.clusters for (_, column), m in methods.items() if column == "clusters"]  # type: ignore[attr-defined]
    assert counts == [1, 2, 5, 9, 20]


def test_what_the_paper_leaves_open_is_tried_beside_it() -> None:
    found = {c.row: c.experiment for c in study("csahfl/options").cells("small") if c.column.endswith("EIID p_s=1")}
    assert {row for row, e in found.items() if e.training.momentum == 0.5} == {
        "HierFedAVG, momentum 0.5", "CSAHFL, momentum 0.5",
    }  # fmt: skip
    # where nobody moves association and clustering act only if devices reach more than one edge, and notes say so
    reach = [found[f"{name}, every edge in reach"].methods[0].method for name in ("HiFlash", "FedUC")]
    assert [method.reach for method in reach] == ["all", "all"]  # type: ignore[attr-defined]
    assert any("HiFlash's association and FedUC's clustering do not act" in n for n in study("csahfl/table1").notes)


def test_published_figures_at_random_places() -> None:
    one, two, three = (study(f"csahfl/table{n}").published for n in (1, 2, 3))
    assert one["HiFlash"]["CIFAR10 ENIID30% p_s=1"]["accuracy"] == 49.37
    assert one["MACFL"]["SVHN EIID p_s=0.5"]["accuracy"] == 86.06
    assert two["FedUC"]["Fashion-MNIST ENIID30% p_s=1"] == {"first": 1283, "second": 3250}
    assert three["w/o SA"]["Fashion-MNIST ENIID30% p_s=0.5"] == {"accuracy": 81.64, "time": 6501}
    assert three["CSAHFL"]["Fashion-MNIST EIID p_s=1"] == {"accuracy": 92.14, "time": 1392}


def test_one_column_of_table1_and_table2_from_the_same_runs(tmp_path: Path) -> None:
    def only(cell: Cell) -> bool:
        return cell.column == STATIC

    first = made("csahfl/table1", tmp_path, only)
    assert len(first.rows) == 9  # and Trellis beside them
    assert all(0 < first.mean(row, STATIC, "accuracy") <= 100 for row in first.rows)
    # asynchronous methods stop when HierFedAVG does
    ends = {row: final_time(first.runs[row, STATIC][0]) for row in first.rows}
    assert ends["HiFlash"] == ends["FedUC"] == ends["FedAT"] == ends["HierFedAVG"]
    assert "CSAHFL" in tables.markdown(first, "espalier reproduce csahfl/table1")
    assert tables.ONE_SEED in tables.markdown(first, "espalier reproduce csahfl/table1")
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("run.sqlite")}
    second = made("csahfl/table2", tmp_path, only)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("run.sqlite")} == stamps
    assert targets(second.runs["CSAHFL", STATIC][0]) == (25, 35)
    reached = [second.mean(row, STATIC, "first") for row in second.rows]
    assert any(t == t for t in reached)


def test_ablations_under_mobility(tmp_path: Path) -> None:
    found = made("csahfl/table3", tmp_path, lambda c: c.column == MOBILE)
    assert found.rows == ["CSAHFL", "w/o C", "w/o SA", "w/o D", "served by clusters"]


def test_without_noise_nobody_is_late_at_any_alpha(tmp_path: Path) -> None:
    found = made("csahfl/semi_async", tmp_path, lambda c: c.row in ("alpha=0", "alpha=1.5", "w/o SA"))
    for row in ("alpha=0", "alpha=1.5"):
        assert found.mean(row, "noise 0", "late") == 0.0
        assert found.mean(row, "noise 0.3", "late") > 0.0
    # At the paper's alpha nothing is shortened either: the interval is longer than anybody needs.
    assert found.mean("alpha=1.5", "noise 0", "duration") >= found.mean("w/o SA", "noise 0", "duration")
    assert found.mean("alpha=0", "noise 0", "duration") < found.mean("w/o SA", "noise 0", "duration")


def test_sweeps(tmp_path: Path) -> None:
    found = made("csahfl/fig4", tmp_path, lambda c: c.column in ("E_max=5", "beta"))
    assert found.mean("beta=5", "beta", "clusters") > found.mean("beta=20", "beta", "clusters") >= 1
    assert all(found.mean(f"alpha={a}", "E_max=5", "accuracy") > 0 for a in (0.5, 1.5))
