from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from espalier.cli.main import main


def test_report_as_a_page(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["report", str(runs)])
    assert result.exit_code == 0 and result.output == "report: report.html\n"
    assert (tmp_path / "report.html").stat().st_size > 1_000_000


@pytest.mark.parametrize(
    ("kind", "start"), [("md", "CSAHFL leads with"), ("latex", r"\begin{tabular}"), ("csv", "setting,rank,method")]
)
def test_report_as_a_table(runs: Path, tmp_path: Path, kind: str, start: str) -> None:
    result = CliRunner().invoke(main, ["report", str(runs), "--format", kind])
    assert result.exit_code == 0 and result.output.startswith(start) and "CSAHFL" in result.output
    out = tmp_path / "tables" / "table.txt"
    again = CliRunner().invoke(main, ["report", str(runs / "a"), str(runs / "b"), "--format", kind, "-o", str(out)])
    assert again.exit_code == 0 and again.output == "" and out.read_text().startswith(start)
    assert "Flat" not in out.read_text()


def test_a_report_of_some_methods_and_seeds(runs: Path) -> None:
    command = ["report", str(runs), "--format", "csv", "--budget", "bytes", "--measure", "acc_global"]
    result = CliRunner().invoke(main, [*command, "-m", "HierFAVG", "-s", "1"])
    rows = [line.split(",") for line in result.output.splitlines()[1:]]
    assert {row[2] for row in rows} == {"HierFAVG"} and rows[0][3:5] == ["acc_global", "bytes"] and rows[0][10] == "1"
    wrong = CliRunner().invoke(main, [*command, "-m", "HierFavg"])
    assert wrong.exit_code == 2 and "--method HierFavg: no run has it; there are CSAHFL, Flat <i>" in wrong.output


@pytest.mark.parametrize("option", [["--measure", "acc_global"], ["--budget", "bytes"]])
def test_what_only_tables_take_is_refused_for_a_page(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["report", str(runs), *option])
    assert done.exit_code == 2 and "--format md" in done.output and not list(tmp_path.iterdir())


def test_mistakes_end_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for command in (["report", str(tmp_path)], ["watch", str(tmp_path / "file")]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 7 and result.output.startswith("espalier: ") and len(result.output.splitlines()) == 1
    assert CliRunner().invoke(main, ["report"]).exit_code == 2


def test_a_measure_that_no_run_has_is_refused(runs: Path) -> None:
    done = CliRunner().invoke(main, ["report", str(runs), "--format", "csv", "--measure", "acc_globl"])
    assert done.exit_code == 2 and "measure = 'acc_globl': the runs have acc_device, acc_global" in done.output
    assert "Did you mean 'acc_global'" in done.output
