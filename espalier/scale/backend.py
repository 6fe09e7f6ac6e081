"""The Ray backend: where a run's jobs are computed, as a setting."""

from __future__ import annotations

from dataclasses import dataclass

from espalier.core.errors import ConfigError
from espalier.scale.cluster import parse
from espalier.scale.computer import RayComputer
from espalier.simulator.dataviews import Views
from espalier.simulator.task import Task


@dataclass(frozen=True)
class Ray:
    """Train on a Ray cluster.

    Results do not depend on it: a run may begin without it and go on with it, on any number of workers.

    Attributes:
        address: ``HOST:PORT`` of a cluster that this machine is a node of; None starts Ray on this machine.
        workers: Processes that train, one CPU each; None takes every CPU that the cluster has, also those that
            come later.
    """

    address: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be, before anything is begun."""
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; a positive number is accepted.")
        if self.address is not None:
            parse(self.address)

    def computer(self, task: Task, seed: int, views: Views) -> RayComputer:
        """Return what computes the jobs of one run."""
        return RayComputer(task, seed, views, address=self.address, workers=self.workers)
