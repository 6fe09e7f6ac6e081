"""`espalier reproduce`: parts of a study, and what lies in the directory already."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from espalier.cli.main import main

COLUMN = "--column"
#: a user's file with a method
MINE = """
from dataclasses import dataclass
from typing import ClassVar

from espalier import Method


@dataclass(frozen=True)
class Mine(Method, kind="mine_beside"):
    title: ClassVar[str] = "My own"
    citation: ClassVar[str] = "a test"
"""


def call(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["reproduce", *args])
    return done.exit_code, done.output


def test_unknown_columns_and_seeds_are_refused() -> None:
    code, said = call("easf/table1", COLUMN, "12 device")
    assert code == 2
    assert "Did you mean '12 devices'?" in said
    code, said = call("easf/table1", "--seed", "7")
    assert code == 2
    assert "not [7]" in said


def test_a_row_is_run_with_the_one_whose_time_it_ends_by(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    part = ("benchmark/methods", COLUMN, "digits, star", "--row", "FedAT", "-o", str(out), "-q")
    assert call(*part)[0] == 0
    assert {path.parts[-3] for path in out.glob("*/*/seed-0/run.toml")} == {"fedat", "fedavg"}
    code, said = call("benchmark/methods", "--row", "FedAv")
    assert code == 2 and "Did you mean 'FedAvg'?" in said
    code, said = call("benchmark/methods", COLUMN, "digits, star", "--row", "HiFlash")
    assert code == 2 and "no run of these rows in these columns" in said


def test_a_picture_beside_the_published_figures(tmp_path: Path) -> None:
    part = ("phefl/table5", COLUMN, "mnist D1 imbalanced", "-o", str(tmp_path / "runs"), "-q")
    for kind, begins in (("png", b"\x89PNG"), ("svg", b"<svg"), ("pdf", b"%PDF")):
        path = tmp_path / "figures" / f"table5.{kind}"
        assert call(*part, "--figure", str(path))[0] == 0
        assert path.read_bytes().startswith(begins)


def test_a_part_is_run_and_a_run_of_another_setting_is_not_taken_for_it(tmp_path: Path) -> None:
    out, page = tmp_path / "runs", tmp_path / "page.md"
    args = ("easf/table5", "--seed", "0", COLUMN, "12 devices", "-o", str(out), "-q")
    assert call(*args, "--markdown", str(page))[0] == 0
    assert "`espalier reproduce easf/table5 --scale smoke --seed 0 --column '12 devices'`" in page.read_text("utf-8")
    described = next(out.glob("*/syn/seed-0/run.toml"))
    text = described.read_text("utf-8")
    described.write_text(text.replace("batch_size = 16", "batch_size = 8"), encoding="utf-8")
    assert described.read_text("utf-8") != text
    code, said = call(*args)
    assert code == 7
    assert "a run of another setting" in said


def test_without_a_name_studies_and_claims_are_listed() -> None:
    code, said = call()
    assert code == 0 and "csahfl/table1" in said
    # every study has its scales, their states and costs beside it
    lines = said.splitlines()[:-1]
    scales = [line.split(maxsplit=1) for line in lines if line.startswith(" ")]
    assert len(scales) == 2 * (len(lines) - len(scales)) and {scale for scale, _ in scales} == {"small", "full"}
    assert all("run" in what and ("core" in what or "not known" in what or "runs of" in what) for _, what in scales)
    code, said = call("--claims")
    assert code == 0 and "not tested" in said


def test_figures_of_finished_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table II is read off Table I's runs; what has not been run is left out."""
    # some machines count a process's seconds too coarsely for runs this short
    monkeypatch.setattr("espalier.simulator.runner.time.process_time", map(float, itertools.count()).__next__)
    runs, data = tmp_path / "runs", tmp_path / "data"
    table1 = ("easf/table1", "--seed", "0", COLUMN, "12 devices", "-o", str(runs), "-q")
    assert call(*table1, "--keep", str(data))[0] == 0
    names = ("table1", "table2", "table5", "fig5", "fig6")
    assert {path.name for path in data.glob("*")} == {f"easf-{name}-smoke.json" for name in names}
    (data / "easf-table2-smoke.json").unlink()
    assert call("easf/table2", "-o", str(runs), "-q", "--finished", "--keep", str(data))[0] == 0
    found = json.loads((data / "easf-table2-smoke.json").read_text("utf-8"))["runs"]
    assert {run["seed"] for run in found} == {0} and {run["column"] for run in found} == {"12 devices"}
    assert all(run["facts"]["cpu_seconds"] > 0 and "espalier" in run["facts"]["versions"] for run in found)
    described = next(runs.glob("*/syn/seed-0/run.toml"))
    described.write_text(described.read_text("utf-8").replace("batch_size = 16", "batch_size = 8"), encoding="utf-8")
    assert call("easf/table2", "-o", str(runs), "-q", "--finished", "--keep", str(data))[0] == 7


def test_outside_a_checkout_figures_that_are_not_there_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = call()
    assert code == 0 and "csahfl/table1" in said and "results pages" in said
    code, said = call("--claims")
    assert code == 2 and "call it in a checkout" in said


def test_a_method_of_ones_own_stands_beside_the_rows_of_a_table(tmp_path: Path) -> None:
    mine, out, page = tmp_path / "mine.py", tmp_path / "runs", tmp_path / "page.md"
    mine.write_text(MINE, encoding="utf-8")
    column = ("phefl/table5", COLUMN, "mnist D1 imbalanced")
    part = (*column, "-o", str(out), "--plugin", str(mine), "--row", "EdgeCloud", "--row", "My own", "--row", "prox")
    mu = '{ name = "fedprox", mu = 0.1, label = "prox" }'
    code, said = call(*part, "--with", "mine_beside", "--with", mu, "--on", "EdgeCloud", "--markdown", str(page), "-q")
    assert code == 0, said
    assert {p.parts[-3] for p in out.glob("*/*/seed-0/run.toml")} == {"edgecloud", "my-own", "prox"}
    assert {line.split("|")[1].strip() for line in page.read_text("utf-8").splitlines() if line.startswith("| ")} >= {
        "My own",
        "prox",
    }
    code, said = call(*column, "--with", "fedprox", "--on", "EdgeClod")
    assert code == 2 and "Did you mean 'EdgeCloud'?" in said
    code, said = call("easf/table1", "--with", "trellis")
    assert code == 2 and "has a row 'Trellis' already" in said
    code, said = call(*column, "--with", "{ name = ")
    assert code == 2 and "is not valid TOML" in said
