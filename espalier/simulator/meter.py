"""The meter: evaluates the models in use, counts bytes and seconds, and writes them into the record.

Each distinct model is evaluated once on the whole test set, cell by cell; every edge's and device's figure
is then exact arithmetic on its own test distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import Address, host_of
from espalier.core.errors import ConfigError
from espalier.core.messages import ALL
from espalier.core.seeds import stream
from espalier.core.store import Ref
from espalier.core.tree import NOBODY
from espalier.record.agreement import adjusted_rand
from espalier.record.measures import lower_is_better
from espalier.simulator.metrics import Score, Scores, alike

if TYPE_CHECKING:
    from espalier.simulator.simulation import Simulation

Floats = NDArray[np.float64]

#: samples that a server holds to judge models by: drawn from all training samples, none of the test
PROXY = 500


class Meter:
    """Measures one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        hosts = simulation.fleet.shape.n_hosts
        self._seconds = {kind: np.zeros(hosts) for kind in ("train", "measure", "send", "receive")}
        self._bytes: dict[tuple[str, str, str], int] = {}
        self.scores = Scores(simulation)
        self.last: dict[str, float] = {}
        self.evaluations = 0

    # -- counting ----------------------------------------------------------------------------------------

    def carried(self, tier: str, direction: str, model: int, control: int) -> None:
        """Count bytes that a hop carried."""
        for kind, nbytes in (("model", model), ("ctrl", control)):
            if nbytes:
                key = (str(tier), direction, kind)
                self._bytes[key] = self._bytes.get(key, 0) + nbytes

    def spent(self, host: int, kind: str, seconds: float) -> None:
        """Count seconds that a host spent training, measuring, sending or receiving."""
        self._seconds[kind][host] += seconds

    # -- evaluating --------------------------------------------------------------------------------------

    def describe_fleet(self) -> None:
        """Write who is in the fleet."""
        sim = self.sim
        part = sim.fleet.partition
        counts = np.ascontiguousarray(part.histogram, dtype="<i4")
        columns = zip(part.edge.tolist(), part.sizes.tolist(), counts, strict=True)
        sim.recorder.devices((i, edge, samples, row.tobytes()) for i, (edge, samples, row) in enumerate(columns))
        sim.recorder.meta("fleet", {"devices": part.n_devices, "edges": part.n_edges, "cloud": sim.fleet.cloud})
        if part.n_devices <= 20_000:
            sim.recorder.meta("partition", part.describe())

    def measure(self, last: bool = False) -> None:
        """Evaluate everything in use and write it down."""
        sim = self.sim
        row: dict[str, float] = {}
        initial = sim.ledger.initial()
        roots = sim.served.get(sim.fleet.tree.root, {})
        # where the root has not merged, what it serves is only what it started with
        merged = sim.plan.clock == "root" or sim.rounds.closed.get(sim.fleet.tree.root, 0) > 0
        model = (roots.get(ALL) if roots else initial) if merged else None
        devices = self._device_models(initial)
        edges = self._edge_models(initial)
        self.scores.prepare(devices, edges, model)
        if model is not None:
            row |= {f"{k}_global": v for k, v in self.scores.overall(model).items()}
        if edges:
            row |= self._spread("edge", self.scores.at_edges(edges))
        row |= self._spread("device", self.scores.at_devices(devices))
        row["jobs_ordered"] = float(sim.ledger.ordered)
        row["jobs_computed"] = float(sim.ledger.computed)
        row["groups"] = float(len({int(r) for r in devices.values()}))
        row |= self._agreement(devices)
        for name, value in row.items():
            sim.recorder.metric(sim.now, sim.round, name, value)
        for (tier, direction, kind), nbytes in sorted(self._bytes.items()):
            sim.recorder.traffic(sim.now, sim.round, tier, direction, kind, nbytes)
        if last:
            for kind, seconds in self._seconds.items():
                sim.recorder.array(sim.now, sim.round, f"seconds_{kind}", seconds)
        sim.recorder.commit()
        self.last = row
        self.evaluations += 1

    def _agreement(self, devices: dict[tuple[int, int], Ref]) -> dict[str, float]:
        """Return how well the devices that share a model are those that share a labelling, if there are several."""
        views, looks = self.sim.views, self.sim.weather.looks()
        tables = [(look.planted, look.concept.permutation) for look in views.looks]
        truth = np.array([tables.index(t) for t in tables], dtype=np.int64)[looks]
        if len(np.unique(truth)) < 2:
            return {}
        used = np.zeros(len(looks), dtype=np.int64)
        for (place, group), members in alike(*self.places()):
            used[members] = int(devices[place, group])
        return {"ari": adjusted_rand(truth, used)}

    def _spread(self, scope: str, scores: dict[str, Floats]) -> dict[str, float]:
        sim = self.sim
        row: dict[str, float] = {}
        for name, values in scores.items():
            known = values[~np.isnan(values)]
            if len(known) == 0:
                continue
            sim.recorder.array(sim.now, sim.round, f"{name}_{scope}", values)
            row[f"{name}_{scope}"] = float(known.mean())
            row[f"{name}_{scope}_std"] = float(known.std())
            ordered, tenth = np.sort(known), max(1, len(known) // 10)
            tail = ordered[-tenth:] if lower_is_better(name) else ordered[:tenth]
            row[f"{name}_{scope}_worst"] = float(tail.mean())
        return row

    def _device_models(self, initial: Ref) -> dict[tuple[int, int], Ref]:
        """Return which model each kind of device (by its place and group) uses; see `places`."""
        sim, tree = self.sim, self.sim.fleet.tree
        places, groups = self.places()
        found: dict[tuple[int, int], Ref] = {}
        for (place, group), _ in alike(places, groups):
            served = sim.served.get(place) or sim.served.get(tree.root) or {}
            name = tree.group_names[group]
            model = served.get(name, served.get(ALL))
            found[place, group] = initial if model is None else model
        return found

    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for each device, the node that serves it and the number of its group, [N] each."""
        sim, fleet = self.sim, self.sim.fleet
        n = fleet.n_devices
        groups = fleet.tree.device_group.astype(np.int64)
        if sim.plan.serves == "device":
            return np.arange(n), groups
        if sim.plan.serves == "root":
            return np.full(n, fleet.tree.root), groups
        home = n + fleet.location
        return np.where(fleet.tree.device_parent == NOBODY, home, fleet.tree.device_parent), groups

    def _edge_models(self, initial: Ref) -> dict[int, Ref]:
        """Return the model in use at each edge, by number (where an edge has one for all)."""
        sim, fleet = self.sim, self.sim.fleet
        found: dict[int, Ref] = {}
        root = sim.served.get(fleet.tree.root, {})
        for edge in range(fleet.shape.n_edges):
            served = sim.served.get(fleet.edge_host(edge), {}) if sim.plan.serves == "edge" else root
            if not served and sim.plan.serves == "edge":
                served = root
            if ALL in served:
                found[edge] = served[ALL]
            elif not served and sim.plan.serves != "device":
                found[edge] = initial
        return found

    def judge(self, refs: Sequence[Ref], where: str, node: Address, what: str) -> list[float]:
        """Evaluate models on a node's own set, for a policy that needs to know."""
        sim = self.sim
        part, tree = sim.fleet.partition, sim.fleet.tree
        of: Literal["train", "test"] = "train"
        rows: dict[int | None, NDArray[np.int64]] = {}
        if where == "personal" and part.edge_tests is not None:
            # a server above edges has their sets together
            below = [e for e in range(part.n_edges) if node in tree.path(sim.fleet.edge_host(e))]
            of, rows = "test", self._personal(below)
        elif where in ("personal", "validation") and part.validation is not None:
            rows = self._held_out(tree.leaves(node) if where == "personal" else [host_of(node)])
        elif where == "proxy":
            drawn = stream(sim.seed, "data", "proxy").permutation(len(sim.task.dataset.cell_train))[:PROXY]
            rows = {None: np.sort(drawn)}
        elif where == "test":
            of, rows = "test", {None: np.arange(len(sim.task.dataset.cell_test))}
        else:
            raise ConfigError(
                f"Node {node} has no set {where!r}: choose a partition that holds one out "
                "(PHE-FL's layouts hold out personal sets, partition.val_fraction a device's own)."
            )
        scores: list[Score] = self.scores.on_rows(refs, rows, of)
        return [s.loss if what == "loss" else s.main for s in scores]

    def _personal(self, edges: Sequence[int]) -> dict[int | None, NDArray[np.int64]]:
        """Return the rows by which edges choose their models, by the look that their devices have."""
        sim, part = self.sim, self.sim.fleet.partition
        assert part.edge_tests is not None
        found: dict[int | None, list[NDArray[np.int64]]] = {}
        for (edge, look), _ in alike(part.edge.astype(np.int64), sim.weather.looks()):
            if edge in edges:
                found.setdefault(look, []).append(sim.views.tested(edge, part.edge_tests.personal[edge], look))
        return {look: np.unique(np.concatenate(rows)) for look, rows in found.items()}

    def _held_out(self, devices: Sequence[int]) -> dict[int | None, NDArray[np.int64]]:
        """Return the rows that devices hold out, by the look of their data."""
        sim = self.sim
        found: dict[int | None, list[NDArray[np.int64]]] = {}
        for device in devices:
            look = sim.weather.look(device)
            found.setdefault(look, []).append(sim.views.held_out(device, look))
        return {look: np.concatenate(rows) for look, rows in found.items()}

    # -- saving ------------------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "seconds": self._seconds,
            "bytes": [[*k, v] for k, v in self._bytes.items()],
            "evaluations": self.evaluations,
            "last": self.last,
        }

    def restore(self, plain: dict[str, Any]) -> None:
        """Become the meter that :meth:`save` described."""
        self._seconds = {k: v.copy() for k, v in plain["seconds"].items()}
        self._bytes = {(t, d, k): v for t, d, k, v in plain["bytes"]}
        self.evaluations, self.last = plain["evaluations"], plain["last"]
