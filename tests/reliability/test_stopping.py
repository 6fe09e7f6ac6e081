"""Ctrl-C and SIGTERM: the write is finished, the way to go on is printed, the exit code is 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from espalier.cli.main import main
from espalier.core.errors import RunError
from espalier.record.run import Run
from tests.reliability.kills import contents

EXPERIMENT = """
name = "stopping"
seeds = [0, 1]
methods = ["hierfavg"]
task = { dataset = "digits", model = "mlp", model_options = { hidden = [16] } }
fleet = { devices = 12, edges = 3 }
training = { lr = 0.1 }
world = { compute = { kind = "rate", low = 1.0, high = 8.0 } }
stop = { rounds = 60 }
record = { checkpoint_rounds = 25 }
"""
ENDLESS = """
import pathlib, time
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)

    def forward(self, x):
        pathlib.Path("begun").touch()
        time.sleep(600)
        return super().forward(x.flatten(1))
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stopping") / "experiment.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture(scope="module")
def whole(file: Path) -> dict[str, dict[str, object]]:
    """What the runs leave when nobody stops them."""
    out = file.parent / "whole"
    assert espalier("run", file, "--out", out).exit_code == 0
    return {path.parent.name: contents(path.parent) for path in out.rglob("run.sqlite")}


def espalier(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from espalier.cli.main import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for_rounds(out: Path, rounds: int, process: subprocess.Popen[str]) -> None:
    """Wait until some run is on its way."""
    until = time.monotonic() + 90
    while time.monotonic() < until:
        for path in out.rglob("run.sqlite"):
            try:
                if Run(path.parent).rounds >= rounds:
                    return
            except RunError:  # the database is being made
                pass
        assert process.poll() is None, f"it ended early: {process.communicate()[1]}"
        time.sleep(0.02)
    raise AssertionError("the run does not get on")


@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_stop_and_go_on(
    file: Path, tmp_path: Path, whole: dict[str, dict[str, object]], number: signal.Signals, jobs: int
) -> None:
    out = tmp_path / "out"
    process = start("run", file, "--out", out, "--jobs", jobs)
    wait_for_rounds(out, 3, process)
    os.killpg(process.pid, number)  # as a terminal does: every process of the group gets it
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert f"Go on with: espalier resume {out}" in told
    assert "Traceback" not in told
    assert not list(out.rglob("*.tmp"))

    again = espalier("run", file, "--out", out)
    assert again.exit_code == 7
    assert f"espalier resume {out} (or add --resume)" in again.output

    gone_on = espalier("resume", out) if jobs == 1 else espalier("run", file, "--out", out, "--resume")
    assert gone_on.exit_code == 0, gone_on.output
    # Both runs end as if nothing had happened, the one that had not begun included.
    for seed, expected in whole.items():
        assert contents(out / "hierfavg" / seed) == expected
    assert "Every run below" in espalier("resume", out).output


@pytest.mark.parametrize("jobs", [1, 2])
def test_second_ctrl_c_ends_at_once(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    """The first one waits for the event in hand, of ten minutes; the second does not, and says what is lost."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    monkeypatch.chdir(tmp_path)
    process = start(
        "run",
        file,
        "--out",
        "out",
        "--jobs",
        jobs,
        "--set",
        'task.model="endless:Net"',
        "--set",
        "task.model_options={}",
    )
    until = time.monotonic() + 90
    while not (tmp_path / "begun").exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "what came after the last checkpoint is lost. Go on with: espalier resume out" in told
    assert "saved" not in told and "Traceback" not in told


def test_plan_of_another_experiment_is_refused(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert espalier("run", file, "--out", out, "--seed", 0, "--set", "stop.rounds=1").exit_code == 0
    other = espalier("run", file, "--out", out, "--seed", 0, "--set", "stop.rounds=2", "--resume")
    assert other.exit_code == 7
    assert "another experiment: it differs in stop.rounds" in other.output


def test_foreign_directory_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    refused = espalier("run", file, "--out", tmp_path)
    assert refused.exit_code == 7
    assert "is not empty" in refused.output
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_mistake_leaves_no_directory(file: Path, tmp_path: Path) -> None:
    refused = espalier("run", file, "--out", tmp_path / "out", "--set", 'task.model="nothing"')
    assert refused.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_resume_of_nothing(tmp_path: Path) -> None:
    refused = espalier("resume", tmp_path)
    assert refused.exit_code == 7
    assert "There is no run" in refused.output
