"""A run small enough to be interrupted many times within a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from espalier.data import registry
from espalier.experiment import Experiment
from espalier.simulator.runner import Runner
from espalier.testing.conformance import BASE

DIGITS = registry.load("digits")


def experiment(method: str | dict[str, Any] = "hierfavg", **changes: Any) -> Experiment:
    """Return a small experiment of one method; it saves itself once per round."""
    record = {"checkpoint_rounds": 1, "checkpoint_seconds": 1000.0}
    return Experiment.build({**BASE, "methods": [method], "record": record, **changes})


def runner(directory: Path | None, method: str | dict[str, Any] = "hierfavg", **changes: Any) -> Runner:
    """Return a runner of a small experiment."""
    return Runner(experiment(method, **changes), directory, dataset=DIGITS)


def stop_after(one: Runner, rounds: int) -> None:
    """Run until so many rounds are over, then stop as Ctrl-C does."""

    def progress(sim: Any) -> None:
        one.stop = sim.round >= rounds

    one.run(progress)
