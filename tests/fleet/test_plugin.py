"""`espalier fleet up --plugin`: a method in a file of the user's own, at every node of a fleet of processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from espalier.record.run import Run

METHOD = """
from dataclasses import dataclass
from typing import ClassVar

from espalier import Merge, Method


@dataclass(frozen=True)
class Half(Merge, kind="half_of_my_merge"):
    def merge(self, view, arrivals):
        merged = super().merge(view, arrivals)
        return {g: view.store.combine([(0.5, r), (0.5, view.models[g])]) for g, r in merged.items()}


@dataclass(frozen=True)
class Mine(Method, kind="my_fleet_method"):
    title: ClassVar[str] = "My fleet method"
    citation: ClassVar[str] = "a test"

    def merge(self):
        return Half()
"""
EXPERIMENT = """
name = "mine"
methods = ["my_fleet_method"]
task = { dataset = "digits", model = "logistic" }
partition = { kind = "iid", samples_per_device = 40 }
fleet = { devices = 2, edges = 1 }
stop = { rounds = 2 }
"""


@pytest.mark.parametrize("plugin", [True, False])
def test_every_node_knows_a_method_of_the_users_own(tmp_path: Path, plugin: bool) -> None:
    (tmp_path / "mine.py").write_text(METHOD, encoding="utf-8")
    (tmp_path / "mine.toml").write_text(EXPERIMENT, encoding="utf-8")
    command = [sys.executable, "-m", "espalier", "fleet", "up", "mine.toml", "-o", "out", "-q"]
    told = subprocess.run(
        [*command, *(["--plugin", "mine.py"] if plugin else [])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if plugin:
        assert told.returncode == 0, told.stderr
        run = Run(tmp_path / "out" / "cloud")
        assert run.rounds == 2 and run.status["state"] == "finished" and run.label == "My fleet method"
    else:
        assert told.returncode == 2 and "my_fleet_method" in told.stderr and not (tmp_path / "out").exists()
