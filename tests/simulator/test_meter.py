"""A run that diverges ends, says so in one sentence, and can be saved and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import espalier
from espalier.cli.main import main
from espalier.simulator.meter import Divergence

BASE: dict[str, Any] = {
    "fleet": {"devices": 6, "edges": 2},
    "training": {"lr": 1e6},
    "stop": {"rounds": 9},
    "record": {"checkpoint_rounds": 1},
}


@pytest.mark.parametrize("method", ["hierfavg", "fedavg", "fedat"])
def test_a_run_that_diverges_ends_with_a_sentence(method: str, tmp_path: Path) -> None:
    for directory in (None, tmp_path / "run"):
        run = espalier.simulate(method, BASE, directory=directory)
        why = run.status["stalled"]
        assert why.startswith("The training has diverged: since round 0 all ") and "training.lr (it is 1e+06)" in why
        assert run.rounds < 9
        assert [e["why"] for e in run.events("stalled")] == [why]
        rows = run.query("SELECT time, round, count(*) FROM metrics WHERE name = 'acc_device' GROUP BY time, round")
        assert {count for *_, count in rows} == {1}
    assert (tmp_path / "run" / "models" / "global.safetensors").exists()


def test_the_command_line_says_so_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(
        'methods = ["hierfavg"]\nfleet = { devices = 6, edges = 2 }\ntraining = { lr = 1e6 }\nstop = { rounds = 9 }\n'
    )
    folder = tmp_path / "out"
    first = CliRunner().invoke(main, ["run", str(tmp_path / "one.toml"), "-o", str(folder)])
    assert first.exit_code == 5, first.output
    assert "it ended early. The training has diverged" in " ".join(first.output.split())
    again = CliRunner().invoke(main, ["resume", str(folder)])
    assert again.exit_code == 0, again.output
    table = CliRunner().invoke(main, ["report", str(folder), "--format", "md"])
    assert "ended early. The training has diverged" in " ".join(table.output.split())


def test_some_updates_that_are_never_finite_are_no_divergence() -> None:
    # 8 devices: it takes 4 rejected updates in a row without a usable one
    found = Divergence()
    found.rejected(1)
    assert not found.noticed(3, 8, 1)
    for round in (2, 3, 4):
        found.rejected(round)
        assert not found.noticed(2 + round, 8, round)
    found.rejected(9)
    assert "since round 1 all 4 updates" in found.noticed(7, 8, 5)


def test_devices_on_their_own_diverge_too(tmp_path: Path) -> None:
    run = espalier.simulate("standalone", BASE, directory=tmp_path / "run")
    assert run.status["diverged"] and "in round 1 no model in use has finite numbers" in run.status["stalled"]
    assert run.rounds == 1
