"""The meter: evaluates the models in use and writes figures, bytes and seconds into the record.

Each distinct model is evaluated once on the whole test set, cell by cell; every edge's and device's figure
is then exact arithmetic on its own test distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from espalier.core.messages import ALL, Train
from espalier.core.run_rounds import RunRounds
from espalier.core.runtime import Runtime
from espalier.core.serving import Source
from espalier.core.store import Ref
from espalier.core.tree import NOBODY
from espalier.data.partition import Partition
from espalier.record.measures import adjusted_rand, spread
from espalier.simulator.checkpoint import Saved
from espalier.simulator.dataviews import Views
from espalier.simulator.environment import SimulationContext
from espalier.simulator.jobs import Job
from espalier.simulator.ledger import Ledger
from espalier.simulator.metrics import DeviceModels, DevicePlaces, Scores, alike
from espalier.simulator.reduction import is_finite
from espalier.simulator.serving import ServedScores

#: a training step over a batch: forward, and backward to the inputs and to the weights
PASSES_PER_STEP = 3
#: the number of the local training after the run (``evaluate.by_source``): no training of the run has it
EXTRA_TRAINING = 1 << 31
#: a fleet of more devices is not trained once more at the end
MOST_TRAINED_DEVICES = 1_000
#: a partition of more devices is not described in the record
MOST_DESCRIBED_DEVICES = 20_000
_BLOCK = 1 << 16


class Meter(Saved):
    """Measures one simulation.

    Attributes:
        last: The figures of the last evaluation.
        evaluations: How many there were.
    """

    SAVED = ("evaluations", "last", "_judged")

    def __init__(
        self,
        context: SimulationContext,
        runtime: Runtime,
        rounds: RunRounds,
        ledger: Ledger,
        views: Views,
        scores: Scores,
        served: ServedScores | None = None,
        with_prior: ServedScores | None = None,
        share: float | None = None,
        batch_size: int = 1,
    ) -> None:
        """Take what it measures; ``served`` judges devices and edges, ``with_prior`` tells what priors would change.

        ``share`` is the most that judging devices' own models may take (None: as much as it takes), counted in passes
        over samples, ``batch_size`` of them in a training step.
        """
        self._fleet, self._conditions, self._usage = context.fleet, context.conditions, context.usage
        self._clock, self._recorder = context.clock, context.recorder
        self._runtime, self._rounds, self._ledger, self._views = runtime, rounds, ledger, views
        self.scores, self._served, self._with_prior = scores, served, with_prior
        self._serves, self._counts_root = runtime.plan.serves, runtime.plan.clock == "root"
        self.last: dict[str, float] = {}
        self.evaluations = 0
        self._share, self._batch_size = share, batch_size
        #: passes over samples that judging devices' own models has taken
        self._judged = 0
        #: whether every model that devices use has numbers that are not finite
        self.lost = False

    def describe_fleet(self) -> None:
        """Write who is in the fleet."""
        part, recorder = self._fleet.partition, self._recorder
        recorder.devices(_rows(part))
        recorder.meta("fleet", {"devices": part.n_devices, "edges": part.n_edges, "cloud": self._fleet.cloud})
        if part.n_devices <= MOST_DESCRIBED_DEVICES:
            recorder.meta("partition", part.describe())
            if part.names or part.edge_names:
                recorder.meta("names", {"devices": part.names, "edges": part.edge_names})

    def measure(self, *, last: bool = False) -> None:
        """Evaluate everything in use and write it down; the ``last`` evaluation of a run leaves nothing out."""
        recorder, now, round = self._recorder, self._clock.now, self._rounds.done
        row: dict[str, float] = {}
        initial, root = self._ledger.initial(), self._fleet.tree.root
        roots = self._runtime.served.get(root, {})
        model = (roots.get(ALL) if roots else initial) if self._merged() else None
        candidates, edges = self._candidates(initial), self._edge_models(initial)
        places, devices = candidates[0]
        judged = candidates if self._affordable(candidates, last) else []
        self.scores.prepare(judged, edges, model)
        for scores in filter(None, (self._served, self._with_prior)):
            scores.prepare()
        if model is not None:
            row |= {f"{k}_global": v for k, v in self.scores.overall(model).items()}
        found = {f"{name}_edge": values for name, values in self._at_edges(edges).items()} if edges else {}
        if judged:
            found |= {f"{name}_device": values for name, values in self._at_devices(judged).items()}
        for name, values in found.items():
            if summary := spread(name, values):
                recorder.array(now, round, name, values)
                row |= summary
        row |= self._under_priors(judged, edges)
        row["jobs_ordered"] = float(self._ledger.ordered)
        row["jobs_computed"] = float(self._ledger.computed)
        row["steps"] = float(self._usage.steps)
        row["groups"] = float(len({int(r) for r in devices.values()}))
        row |= self._agreement(places, devices)
        for name, value in row.items():
            recorder.metric(now, round, name, value)
        for (tier, direction, kind), nbytes in sorted(self._usage.bytes.items()):
            recorder.traffic(now, round, tier, direction, kind, nbytes)
        recorder.commit()
        self.last = row
        self.lost = bool(judged) and not any(is_finite(self._ledger.vector(ref)) for ref in set(devices.values()))
        self.evaluations += 1

    def _merged(self) -> bool:
        """Tell whether the root has merged: else what it serves is only what it started with."""
        return self._counts_root or self._rounds.closed.get(self._fleet.tree.root, 0) > 0

    def _affordable(self, candidates: list[DeviceModels], last: bool) -> bool:
        """Tell whether devices' models are judged now: as often as their share allows, with enough left for the end."""
        plan = self._runtime.plan
        if self._share is None or "own" not in plan.serve.sources(plan.serves):
            return True
        cost = self.scores.cost(candidates)
        trained = PASSES_PER_STEP * self._usage.steps * self._batch_size
        if not last and self._usage.steps and self._judged + 2 * cost > self._share / (1 - self._share) * trained:
            return False
        self._judged += cost
        return True

    def compare_sources(self, updates: int) -> None:
        """Write how devices do, on their own distributions, with each source's model, and with their own.

        Their own is the model that they use, trained once more on their data (in fleets of moderate size).
        """
        initial, main = self._ledger.initial(), self.scores.names[0]
        found: dict[Source, DeviceModels] = {}
        for source in self._sources():
            places = self._places(source)
            found[source] = places, self._device_models(places, initial)
        if self._fleet.n_devices <= MOST_TRAINED_DEVICES:
            found["own"] = self._trained(self._candidates(initial)[0], updates)
        for source, (places, models) in found.items():
            self.scores.prepare([(places, models)], {}, None)
            values = self.scores.at_devices(places, models)[main]
            self._recorder.metric(self._clock.now, self._rounds.done, f"{main}_device_{source}", float(values.mean()))
        self._recorder.commit()

    def _sources(self) -> list[Source]:
        """Return whose models there are beside devices' own: the root's, edges', clusters' at the root."""
        served = self._runtime.served
        root = served.get(self._fleet.tree.root, {})
        there: dict[Source, bool] = {
            "global": ALL in root and self._merged(),
            "edge": any(served.get(self._fleet.edge_host(edge)) for edge in range(self._fleet.n_edges)),
            "cluster": any(group != ALL for group in root),
        }
        return [source for source, is_there in there.items() if is_there]

    def _trained(self, used: DeviceModels, updates: int) -> DeviceModels:
        """Return each device's model after local training from the one that it uses."""
        places, models = used
        each: dict[tuple[int, int], Ref] = {}
        for (place, group), members in alike(*places):
            for device in members.tolist():
                work = Train(start=models[place, group], updates=updates, clock=self._rounds.done)
                each[device, 0] = self._ledger.submit(Job(device, EXTRA_TRAINING, work, self._conditions.look(device)))
        count = self._fleet.n_devices
        return (np.arange(count), np.zeros(count, dtype=np.int64)), each

    def account_for_time(self) -> None:
        """Write the seconds that each host has spent."""
        for kind, seconds in self._usage.seconds.items():
            self._recorder.array(self._clock.now, self._rounds.done, f"seconds_{kind}", seconds)
        self._recorder.commit()

    def _at_edges(self, edges: dict[int, Ref]) -> dict[str, NDArray[np.float64]]:
        if self._served is None:
            return self.scores.at_edges(edges)
        return self._served.at_edges(edges, self._conditions.looks)

    def _at_devices(self, candidates: list[DeviceModels]) -> dict[str, NDArray[np.float64]]:
        if self._served is None:
            return self.scores.at_devices(*candidates[0])
        return self._served.at_devices(candidates, self._conditions.looks)

    def _under_priors(self, candidates: list[DeviceModels], edges: dict[int, Ref]) -> dict[str, float]:
        """Return the mean accuracy of devices and edges that use their models with their label priors, if asked for."""
        if self._with_prior is None:
            return {}
        looks = self._conditions.looks
        found = {}
        if candidates:
            found["acc_device_prior"] = self._with_prior.at_devices(candidates[:1], looks)["acc"]
        if edges:
            found["acc_edge_prior"] = self._with_prior.at_edges(edges, looks)["acc"]
        return {name: float(np.nanmean(values)) for name, values in found.items() if not np.isnan(values).all()}

    def _agreement(self, places: DevicePlaces, devices: Mapping[tuple[int, int], Ref]) -> dict[str, float]:
        """Return how well the devices that share a model are those that share a labelling, if there are several."""
        looks = self._conditions.looks
        tables = [(look.planted, look.concept.permutation) for look in self._views.looks]
        truth = np.array([tables.index(t) for t in tables], dtype=np.int64)[looks]
        if len(np.unique(truth)) < 2:
            return {}
        used = np.zeros(len(looks), dtype=np.int64)
        for (place, group), members in alike(*places):
            used[members] = int(devices[place, group])
        return {"ari": adjusted_rand(truth, used)}

    def in_use(self) -> tuple[dict[int, Ref], list[Ref]]:
        """Return the model in use at each edge that has one for all, and each device's (of several, the first)."""
        initial = self._ledger.initial()
        places, models = self._candidates(initial)[0]
        devices = [models[place, group] for place, group in zip(*(p.tolist() for p in places), strict=True)]
        return self._edge_models(initial), devices

    def priors(self) -> dict[int, tuple[float, NDArray[np.float64]]]:
        """Return by what each device multiplies its model's outputs and what it adds, where it does."""
        return {} if self._served is None else self._served.used

    # -- which models are in use -----------------------------------------------------------------------------

    def _candidates(self, initial: Ref) -> list[DeviceModels]:
        """Return the models that devices use, one after another where they use several."""
        plan = self._runtime.plan
        found: list[DeviceModels] = []
        for source in plan.serve.sources(plan.serves):
            places = self._places(source)
            found.append((places, self._device_models(places, initial)))
        return found

    def _places(self, source: Source) -> DevicePlaces:
        """Return, for each device, the node whose model it uses and the number of the group."""
        fleet = self._fleet
        groups = fleet.tree.device_group.astype(np.int64)
        if source == "own":
            return np.arange(fleet.n_devices), groups
        if source == "global":
            groups = np.full_like(groups, fleet.tree.group_names.index(ALL) if ALL in fleet.tree.group_names else 0)
        if source != "edge":
            return np.full(fleet.n_devices, fleet.tree.root), groups
        home: NDArray[np.int64] = fleet.n_devices + fleet.location
        return np.where(fleet.tree.device_parent == NOBODY, home, fleet.tree.device_parent), groups

    def _device_models(self, places: DevicePlaces, initial: Ref) -> dict[tuple[int, int], Ref]:
        """Return which model each kind of device (by its place and group) uses."""
        tree, all_served = self._fleet.tree, self._runtime.served
        found: dict[tuple[int, int], Ref] = {}
        for (place, group), _ in alike(*places):
            served = all_served.get(place) or all_served.get(tree.root) or {}
            model = served.get(tree.group_names[group], served.get(ALL))
            found[place, group] = initial if model is None else model
        return found

    def _edge_models(self, initial: Ref) -> dict[int, Ref]:
        """Return the model in use at each edge, by number (where an edge has one for all).

        Where devices use their edge's model, an edge without devices is left out: nobody uses what it had last.
        """
        found: dict[int, Ref] = {}
        tree = self._fleet.tree
        root = self._runtime.served.get(tree.root, {})
        for edge in range(self._fleet.n_edges):
            host = self._fleet.edge_host(edge)
            if self._serves == "edge" and not tree.has_children(host):
                continue
            at_edge = self._runtime.served.get(host, {}) if self._serves == "edge" else {}
            served = at_edge or root
            if ALL in served:
                found[edge] = served[ALL]
            elif not served and self._serves != "device":
                found[edge] = initial
        return found


class Divergence(Saved):
    """Counts updates and those that were rejected, from one evaluation to the next.

    A few devices whose updates are never finite are no divergence: it takes as many rejected updates, with none between
    them that could be used, as half of the devices that are there.
    """

    SAVED = ("_rejected", "_computed", "_round", "_in_vain")

    def __init__(self) -> None:
        self._rejected: set[int] = set()
        #: trainings computed until the last evaluation, and rounds of the run until the last one with a usable update
        self._computed, self._round = 0, 0
        #: updates rejected since then
        self._in_vain = 0

    def rejected(self, ref: int) -> None:
        """An update has numbers that are not finite."""
        self._rejected.add(ref)

    def noticed(self, computed: int, present: int, round: int) -> str:
        """Look at what happened since the last evaluation; return why the run cannot go on ("": it can).

        Args:
            computed: Trainings computed so far.
            present: Devices that are there.
            round: Rounds of the run so far.
        """
        fresh, self._computed = computed - self._computed, computed
        rejected, self._rejected = len(self._rejected), set()
        if rejected < fresh:
            self._in_vain, self._round = 0, round
        elif fresh:
            self._in_vain += fresh
        if not fresh or self._in_vain < max(1, present / 2):
            return ""
        return (
            f"The training has diverged: since round {self._round} all {self._in_vain:,} updates had numbers that are "
            "not finite and were rejected, so no model moves any more."
        )


def _rows(part: Partition) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield each device's number, edge, samples and histogram; there may be millions, so block by block."""
    width = 4 * part.histogram.shape[1]
    for first in range(0, part.n_devices, _BLOCK):
        cut = slice(first, first + _BLOCK)
        # cut out of one string of bytes, which is faster than a row of an array each
        rows = np.ascontiguousarray(part.histogram[cut], dtype="<i4").tobytes()
        columns = zip(part.edge[cut].tolist(), part.sizes[cut].tolist(), strict=True)
        for place, (edge, samples) in enumerate(columns):
            yield first + place, edge, samples, rows[place * width : (place + 1) * width]
