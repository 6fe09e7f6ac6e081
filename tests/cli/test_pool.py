"""Runs side by side, in processes that do one after another."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from espalier.cli import pool
from espalier.cli.pool import RunStatus, run_all, run_requests
from espalier.experiment import Experiment
from espalier.record.run import Run
from espalier.testing.conformance import BASE


def small(methods: list[str], seeds: int, rounds: int = 2) -> Experiment:
    return Experiment.build({**BASE, "methods": methods, "seeds": list(range(seeds)), "stop": {"rounds": rounds}})


@pytest.fixture
def hired(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the processes that were started."""
    found: list[int] = []
    hire = pool._Side._hire

    def counted(side: pool._Side) -> pool._Worker:
        worker = hire(side)
        found.append(worker.process.pid)
        return worker

    monkeypatch.setattr(pool._Side, "_hire", counted)
    return found


def test_two_processes_do_many_runs_as_one_does(tmp_path: Path, hired: list[int]) -> None:
    experiment = small(["fedavg", "hierfavg"], 3)
    ends = run_all(run_requests(experiment, tmp_path / "two", None, 1), 2, lambda status: None)
    assert [end.state for end in ends] == ["finished"] * 6 and len(hired) == 2
    run_all(run_requests(experiment, tmp_path / "one", None, 1), 1, lambda status: None)
    assert len(hired) == 2
    for place in ("fedavg/seed-2", "hierfavg/seed-0"):
        mine, plain = (Run(tmp_path / side / place).frame() for side in ("two", "one"))
        assert mine.equals(plain)


def test_a_process_that_dies_costs_its_run_alone(tmp_path: Path, hired: list[int]) -> None:
    told: list[RunStatus] = []

    def tell(status: RunStatus) -> None:
        told.append(status)
        if len(told) == 1:
            os.kill(hired[0], signal.SIGKILL)

    ends = run_all(run_requests(small(["hierfavg"], 4, 60), tmp_path, None, 1), 2, tell)
    assert sorted(end.state for end in ends) == ["crash", "finished", "finished", "finished"]
    assert len(hired) == 3 and "its last checkpoint is whole" in next(e.text for e in ends if e.state == "crash")
