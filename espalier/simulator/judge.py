"""Judges models on a node's own set, for policies that need to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address, host_of
from espalier.core.errors import ConfigError
from espalier.core.seeds import stream
from espalier.core.store import Ref
from espalier.simulator.conditions import Conditions
from espalier.simulator.dataviews import Views
from espalier.simulator.environment import Fleet
from espalier.simulator.metrics import Scores, alike

#: samples that a server holds to judge models by: drawn from all training samples, none of the test
PROXY_SAMPLES = 500

#: rows by the look that they are seen with (None: as they are)
Rows = dict[int | None, NDArray[np.int64]]


class SimulatedJudge:
    """Evaluates models on the sets of a simulation's nodes.

    Args:
        fleet: The tree and the partition.
        views: What devices' data look like.
        conditions: What they look like now.
        scores: Evaluates.
        n_train: How many training samples there are.
        n_test: How many test samples there are.
    """

    def __init__(
        self, fleet: Fleet, views: Views, conditions: Conditions, scores: Scores, n_train: int, n_test: int
    ) -> None:
        self._fleet, self._views, self._conditions, self._scores = fleet, views, conditions, scores
        self._n_train, self._n_test = n_train, n_test

    def __call__(self, refs: Sequence[Ref], where: str, node: Address, what: str) -> list[float]:
        """Return each model's accuracy (or main figure), or its ``loss``, on a node's set."""
        part, tree = self._fleet.partition, self._fleet.tree
        of: Literal["train", "test"] = "train"
        rows: Rows
        if where == "personal" and part.edge_tests is not None:
            # a server above edges has their sets together
            below = [e for e in range(part.n_edges) if node in tree.path(self._fleet.edge_host(e))]
            of, rows = "test", self._personal(below)
        elif where in ("personal", "validation") and part.validation is not None:
            rows = self._held_out(tree.leaves(node) if where == "personal" else [host_of(node)])
        elif where == "proxy":
            drawn = stream(self._fleet.seed, "data", "proxy").permutation(self._n_train)[:PROXY_SAMPLES]
            rows = {None: np.sort(drawn)}
        elif where == "test":
            of, rows = "test", {None: np.arange(self._n_test)}
        else:
            raise ConfigError(
                f"Node {node} has no set {where!r}: choose a partition that holds one out "
                "(PHE-FL's layouts hold out personal sets, partition.val_fraction a device's own)."
            )
        scores = self._scores.on_rows(refs, rows, of)
        return [s.loss if what == "loss" else s.main for s in scores]

    def _personal(self, edges: Sequence[int]) -> Rows:
        """Return the rows by which edges choose their models, by the look that their devices have."""
        part = self._fleet.partition
        assert part.edge_tests is not None
        found: dict[int | None, list[NDArray[np.int64]]] = {}
        for (edge, look), _ in alike(part.edge.astype(np.int64), self._conditions.looks):
            if edge in edges:
                found.setdefault(look, []).append(self._views.tested(edge, part.edge_tests.personal[edge], look))
        return {look: np.unique(np.concatenate(rows)) for look, rows in found.items()}

    def _held_out(self, devices: Sequence[int]) -> Rows:
        """Return the rows that devices hold out, by the look of their data."""
        found: dict[int | None, list[NDArray[np.int64]]] = {}
        for device in devices:
            look = self._conditions.look(device)
            found.setdefault(look, []).append(self._views.held_out(device, look))
        return {look: np.concatenate(rows) for look, rows in found.items()}
