"""What the operator of a node says, as the host wants it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from espalier.fleet.coordinator.manifest import Charter
from espalier.fleet.node.trainer import NodeTrainer


@dataclass(frozen=True)
class Settings:
    """One node's settings.

    Attributes:
        trainer: Makes the trainer once charter and address are known.
        directory: Where the node's state is kept; None keeps it in memory (a restart begins anew).
        listen: ``host:port`` for children and peers; None: nobody can link to this node.
        advertise: ``host:port`` under which others reach it, if not as it listens.
        parents: Where to go, first choice first: (name or None, ``host:port``). None for the cloud.
        wish: The number that the node would like.
        aggregates: Whether a device may run an aggregator.
        charter: The cloud's: what the fleet does.
        start_with: The cloud's: the run begins when so many devices are there.
        allow: The cloud's: a file with the names that may join.
        crl: The cloud's: the list of revoked certificates, looked at while it runs.
    """

    trainer: Callable[[Charter, int], NodeTrainer]
    directory: Path | None = None
    listen: str | None = None
    advertise: str | None = None
    parents: tuple[tuple[str | None, str], ...] = ()
    wish: int = -1
    aggregates: bool = False
    charter: Charter | None = None
    start_with: int = 1
    allow: Path | None = None
    crl: Path | None = None
