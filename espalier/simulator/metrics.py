"""Scores of models: evaluate each distinct model once, then do arithmetic on test distributions.

A model is evaluated on the cells (classes) of those who use it alone: a device that knows two of ten classes
is tested on these two. What the figures are says `espalier.training.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from espalier.core.seeds import stream
from espalier.core.store import Ref
from espalier.data.partition import Partition
from espalier.simulator.conditions import Conditions
from espalier.simulator.dataviews import Part, Views
from espalier.simulator.ledger import Ledger
from espalier.simulator.portions import Portions, Samples
from espalier.simulator.task import Task
from espalier.training.metrics import WholeMetric, figure_names, figures, measured, pair_areas
from espalier.training.tally import Evaluation

#: for each device, the node that serves it and the number of its group, [N] each
DevicePlaces = tuple[NDArray[np.int64], NDArray[np.int64]]
#: where devices find models, and which model each place has for each group
DeviceModels = tuple[DevicePlaces, Mapping[tuple[int, int], Ref]]
Floats = NDArray[np.float64]
Cells = NDArray[np.bool_]
#: models whose outputs are held at once for their AUC
MOST_RANKED = 8
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Score:
    """The main figure of a model on some rows, and its mean loss."""

    main: float
    loss: float


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A model's evaluation on the test rows of some cells; ``rows`` are their numbers.

    A device's own model may have been judged on rows that were drawn for this ``device``, and serves nobody else.
    """

    evaluation: Evaluation
    cells: Cells
    rows: NDArray[np.int64]
    device: int | None = None


@dataclass(eq=False)
class Need:
    """On which cells a model is to be evaluated, and which device's alone it is (None: of several, or not of one)."""

    cells: Cells
    device: int | None = None


class Scores:
    """Evaluations of one simulation's models on the test set, by model and look of the features.

    With ``outputs``, what models say of every row is kept. ``most`` is on how many rows of its own test distribution a
    model that one device alone uses is judged (None: on all).
    """

    def __init__(
        self,
        task: Task,
        partition: Partition,
        views: Views,
        ledger: Ledger,
        conditions: Conditions,
        *,
        outputs: bool = False,
        portions: Portions | None = None,
        most: int | None = None,
    ) -> None:
        self._outputs, self._portions, self._most = outputs, portions or Portions(task, views), most
        self._drawn: dict[tuple[int, bytes], NDArray[np.int64]] = {}
        self._task, self._partition, self._views, self._ledger = task, partition, views, ledger
        self._conditions = conditions
        self.kind = task.dataset.kind
        self._found: dict[tuple[int, int], Evaluated] = {}
        #: looks under which test features are the same share one evaluation: look -> the first such look
        self._same_features: dict[int, int] = {}
        self.names = figure_names(self.kind, task.metric_names)
        self._summed = task.metric_names

    def prepare(self, candidates: Sequence[DeviceModels], edges: Mapping[int, Ref], common: Ref | None) -> None:
        """Evaluate the models that devices (each may use several), edges and all together use."""
        needs = self._needs(candidates, edges, common)
        self._found = {k: v for k, v in self._found.items() if k in needs}
        # Models that are tested on the same rows are evaluated together.
        missing: dict[tuple[int, bytes], list[int]] = {}
        own: dict[int, list[tuple[int, Need]]] = {}
        unknown = self._unknown(needs)
        for (ref, look), need in unknown:
            if need.device is None:
                missing.setdefault((look, need.cells.tobytes()), []).append(ref)
            else:
                own.setdefault(look, []).append((ref, need))
        self._ledger.flush([Ref(r) for r in sorted({ref for (ref, _), _ in unknown})])
        labels = self._task.dataset.cell_test
        ranked = "auc" in self._task.counted
        for (look, code), refs in missing.items():
            self._evaluate(look, np.frombuffer(code, dtype=np.bool_), refs)
        for look, wanted in own.items():
            rows = np.stack([self._rows_of(need.device or 0, look) for _, need in wanted])
            vectors, pool = [self._ledger.vector(Ref(r)) for r, _ in wanted], self._views.samples("test", look, False)
            found = self._task.evaluator.run(vectors, pool, rows, labels[rows], outputs=ranked)
            for place, (ref, need) in enumerate(wanted):
                one = self._ranked(found[place], labels[rows[place]]) if ranked else found[place]
                self._found[ref, look] = Evaluated(one, need.cells, rows[place], need.device)

    def _evaluate(self, look: int, cells: Cells, refs: Sequence[int]) -> None:
        """Evaluate models on the rows of some cells."""
        labels, ranked = self._task.dataset.cell_test, "auc" in self._task.counted
        rows = np.flatnonzero(cells[labels])
        size = MOST_RANKED if ranked else len(refs)
        for some in (refs[at : at + size] for at in range(0, len(refs), size)):
            found = self._portions.evaluations(
                [self._ledger.vector(Ref(r)) for r in some], ("test", look, False), rows, labels[rows],
                each=self.kind == "classification" and self.by_rows, outputs=self._outputs or ranked,
            )  # fmt: skip
            for ref, one in zip(some, found, strict=True):
                told = self._ranked(one, labels[rows]) if ranked else one
                self._found[ref, look] = Evaluated(told, cells, rows)

    def _rows_of(self, device: int, look: int) -> NDArray[np.int64]:
        """Return the test rows that a device's own model is judged on: the same all along, and for every method."""
        mix = self._views.mix(look, self._partition.test_mix[[device]])[0]
        key = device, mix.tobytes()
        if key not in self._drawn:
            rng = stream(self._views.seed, "judged", device)
            self._drawn[key] = stratified(mix, self._task.dataset.cell_test, self._most or 1, rng)
        return self._drawn[key]

    def _ranked(self, evaluation: Evaluation, labels: NDArray[np.int64]) -> Evaluation:
        """Return an evaluation with what its AUC is made of, without outputs that nobody else needs."""
        areas = pair_areas(torch.from_numpy(evaluation.outputs), torch.from_numpy(labels))
        return replace(evaluation, areas=areas, outputs=evaluation.outputs if self._outputs else evaluation.outputs[:0])

    def cost(self, candidates: Sequence[DeviceModels]) -> int:
        """Return how many passes over test rows the models that devices use would take now."""
        rows = np.bincount(self._task.dataset.cell_test, minlength=self._partition.test_mix.shape[1])
        wanted = [need for _, need in self._unknown(self._needs(candidates, {}, None))]
        return sum(int(rows[need.cells].sum()) if need.device is None else self._most or 0 for need in wanted)

    def _unknown(self, needs: Mapping[tuple[int, int], Need]) -> list[tuple[tuple[int, int], Need]]:
        """Return what of it has not been evaluated, in the order of models and looks."""
        found: list[tuple[tuple[int, int], Need]] = []
        for key, need in sorted(needs.items(), key=lambda item: item[0]):
            known = self._found.get(key)
            if known is None or known.device not in (None, need.device) or (need.cells & ~known.cells).any():
                found.append((key, need))
        return found

    def _needs(
        self, candidates: Sequence[DeviceModels], edges: Mapping[int, Ref], common: Ref | None
    ) -> dict[tuple[int, int], Need]:
        """Return what each model is to be evaluated on, by model and look."""
        first: dict[tuple[float, float, float], int] = {}
        self._same_features = {}
        for number in np.unique(self._conditions.looks).tolist():
            self._same_features[number] = first.setdefault(self._views.features(number), number)
        part = self._partition
        labels, n_cells = self._task.dataset.cell_test, part.test_mix.shape[1]
        rows = np.bincount(labels, minlength=n_cells)
        needs: dict[tuple[int, int], Need] = {}

        def wants(ref: Ref, look: int, device: int | None = None) -> Cells:
            """Return the cells that a model is wanted on; it is a device's own if nobody else wants it."""
            none = np.zeros(n_cells, dtype=np.bool_)
            need = needs.setdefault((int(ref), self._same_features[look]), Need(none, device))
            if need.device != device:
                need.device = None
            return need.cells

        looks = self._conditions.looks
        if common is not None:
            wants(common, self._commonest())[:] = True
        for ref, look, rows_of in self._own_rows(candidates, edges) if self.kind == "classification" else ():
            wants(ref, look)[labels[rows_of]] = True

        def tested(ref: Ref | None, look: int, members: NDArray[np.int64], own: bool = False) -> None:
            device = int(members[0]) if own and len(members) == 1 else None
            if ref is not None and not (cells := wants(ref, look, device)).all():
                cells |= (self._views.mix(look, part.test_mix[members]) > 0).any(0)

        for places, devices in candidates:
            for (place, group, look), members in alike(*places, looks):
                if len(others := self.with_tests(members)[1]):
                    tested(devices[place, group], look, others, own=self._most is not None and not self._outputs)
        if not self.by_rows:
            for (edge, look), members in alike(part.edge.astype(np.int64), looks):
                tested(edges.get(edge), look, members)
        # the test set has none of the classes: the model is tested on all of it, as there is nothing better
        for need in needs.values():
            need.cells |= not need.cells[labels].any()
            if self._most is not None and rows[need.cells].sum() <= self._most:
                need.device = None
        return needs

    def _own_rows(
        self, candidates: Sequence[DeviceModels], edges: Mapping[int, Ref]
    ) -> Iterator[tuple[Ref, int, NDArray[np.int64]]]:
        """Yield the models that are judged row by row: on which test rows, under which look."""
        looks = self._conditions.looks
        for (edge, look), _ in alike(self._partition.edge.astype(np.int64), looks) if self.by_rows else ():
            if edge in edges:
                yield edges[edge], look, self.edge_rows(edge, look)
        for places, models in candidates if self._partition.device_tests is not None else ():
            for (place, group, look), members in alike(*places, looks):
                for device in self.with_tests(members)[0].tolist():
                    yield models[place, group], look, self.device_rows(device, look)

    @property
    def by_rows(self) -> bool:
        """Whether edges, or devices, have test rows of their own."""
        return self._partition.edge_tests is not None or self._partition.device_tests is not None

    def with_tests(self, devices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which devices have test rows of their own, and which have none."""
        tests = self._partition.device_tests
        if tests is None:
            return devices[:0], devices
        has = tests.sizes[devices] > 0
        return devices[has], devices[~has]

    def device_rows(self, device: int, look: int) -> NDArray[np.int64]:
        """Return a device's own test rows under a look (none if the data have none of it)."""
        tests = self._partition.device_tests
        return np.zeros(0, dtype=np.int64) if tests is None else self._views.tested(device, tests[device], look)

    def edge_rows(self, edge: int, look: int) -> NDArray[np.int64]:
        """Return the rows of an edge's own test set, or else its devices', under a look (none if there are none)."""
        part = self._partition
        if part.edge_tests is not None:
            return self._views.tested(part.n_devices + edge, part.edge_tests.evaluation[edge], look)
        own, _ = self.with_tests(np.flatnonzero(part.edge == edge))
        return np.concatenate([np.zeros(0, np.int64), *(self.device_rows(device, look) for device in own.tolist())])

    def _commonest(self) -> int:
        numbers, counts = np.unique(self._conditions.looks, return_counts=True)
        return int(numbers[counts.argmax()])

    def found(self, ref: Ref, look: int) -> Evaluated:
        """Return a model's evaluation under a look, with its rows."""
        return self._found[int(ref), self._same_features[look]]

    def _evaluation(self, ref: Ref, look: int) -> Evaluation:
        return self.found(ref, look).evaluation

    def overall(self, ref: Ref) -> dict[str, float]:
        """Return a model's figures, and the task's own metrics, on the whole test set (under the commonest look)."""
        look = self._commonest()
        evaluation = self._evaluation(ref, look)
        mix = self._views.mix(look, evaluation.count[None].astype(np.float32))
        found = {k: float(v[0]) for k, v in self._mixed(evaluation, mix, look).items()}
        return found | self._whole(self._task.metrics, ref, look, np.arange(len(self._task.dataset.cell_test)))

    def _whole(
        self, metrics: Mapping[str, WholeMetric], ref: Ref, look: int, rows: NDArray[np.int64]
    ) -> dict[str, float]:
        """Return metrics of a model's outputs for test rows under a look."""
        if not metrics:
            return {}
        samples: Samples = ("test", look, True)
        outputs = self._portions.outputs(self._ledger.vector(ref), samples, rows)
        return measured(metrics, outputs, self._views.samples(*samples).gather(torch.from_numpy(rows))[1])

    def at_devices(self, places: DevicePlaces, models: Mapping[tuple[int, int], Ref]) -> dict[str, Floats]:
        """Return every device's figures on its own test distribution, [N] each."""
        looks = self._conditions.looks
        out: dict[str, Floats] = {}
        for (place, group, look), everybody in alike(*places, looks):
            own, members = self.with_tests(everybody)
            for device in own.tolist():
                for name, value in self._on_own(models[place, group], self.device_rows(device, look), look).items():
                    out.setdefault(name, np.full(len(looks), np.nan))[device] = value
            if not len(members):
                continue
            evaluation = self._evaluation(models[place, group], look)
            # block by block: of millions of devices, distributions in double precision would be gigabytes
            for block in np.split(members, range(_BLOCK, len(members), _BLOCK)):
                mix = self._views.mix(look, self._partition.test_mix[block])
                for name, values in self._mixed(evaluation, mix, look).items():
                    out.setdefault(name, np.full(len(looks), np.nan))[block] = values
        return out

    def at_edges(self, models: Mapping[int, Ref]) -> dict[str, Floats]:
        """Return every edge's figures on its own test set or distribution, [E] each."""
        part = self._partition
        out: dict[str, Floats] = {}
        samples = np.bincount(part.edge, weights=part.sizes, minlength=part.n_edges)
        for (edge, look), members in alike(part.edge.astype(np.int64), self._conditions.looks):
            if edge not in models:
                continue
            # an edge whose devices see the world differently is tested on their mixture
            weight = part.sizes[members].sum() / samples[edge]
            if self.by_rows:
                row = self._on_own(models[edge], self.edge_rows(edge, look), look)
            else:
                mix = (part.test_mix[members] * part.sizes[members, None]).sum(0, keepdims=True)
                mix = self._views.mix(look, (mix / mix.sum()).astype(np.float32))
                mixed = self._mixed(self._evaluation(models[edge], look), mix, look)
                row = {name: float(values[0]) for name, values in mixed.items()}
            for name, value in row.items():
                found = out.setdefault(name, np.full(part.n_edges, np.nan))
                found[edge] = np.nan_to_num(found[edge]) + weight * value
        return out

    def _on_own(self, ref: Ref, rows: NDArray[np.int64], look: int) -> dict[str, float]:
        """Return a model's figures on somebody's own test rows under a look."""
        if len(rows) == 0:
            return {self.names[0]: math.nan, "loss": math.nan}
        if self.kind != "classification" or self._summed:
            vector, seen = self._ledger.vector(ref), self._seen("test", rows, look)
            evaluation = self._portions.evaluations([vector], ("test", look, True), rows, seen)[0]
            found = self._mixed(evaluation, evaluation.count[None].astype(np.float32), None, counted=False)
            row = {name: float(values[0]) for name, values in found.items()}
        else:
            known, table = self.found(ref, look), self._views.permutation(look)
            at, truth = np.searchsorted(known.rows, rows), self._task.dataset.cell_test[rows]
            right = known.evaluation.answers[at] == (truth if table is None else table[truth])
            loss = float(known.evaluation.losses[at].mean(dtype=np.float64)) if table is None else math.nan
            row = {self.names[0]: float(right.mean()), "loss": loss}
        bundled = {name: self._task.metrics[name] for name in sorted(self._task.counted)}
        return {**row, **self._whole(bundled, ref, look, rows)}

    def on_rows(self, refs: Sequence[Ref], rows: Mapping[int | None, NDArray[np.int64]], part: Part) -> list[Score]:
        """Evaluate models on rows of the training or test samples, by the look they are seen with (None: as they are).

        The figures are means over all rows; NaN if there is none.
        """
        vectors = [self._ledger.vector(r) for r in refs] if len(refs) == 1 else list(self._ledger.vectors(refs))
        sets = {look: found for look, found in rows.items() if len(found)}
        total = sum(len(found) for found in sets.values())
        scores = [Score(0.0, 0.0) if total else Score(math.nan, math.nan)] * len(refs)
        for look, found in sets.items():
            cells = self._seen(part, found, look)
            for place, evaluation in enumerate(self._portions.evaluations(vectors, (part, look, True), found, cells)):
                row = self._mixed(evaluation, evaluation.count[None].astype(np.float32), None)
                share, old = len(found) / total, scores[place]
                main, loss = float(row[self.names[0]][0]), float(row["loss"][0])
                scores[place] = Score(old.main + share * main, old.loss + share * loss)
        return scores

    def _seen(self, part: Part, rows: NDArray[np.int64], look: int | None) -> NDArray[np.int64]:
        """Return the rows' cells under a look."""
        data = self._task.dataset
        cells = (data.cell_train if part == "train" else data.cell_test)[rows]
        table = None if look is None else self._views.permutation(look)
        return cells if table is None else table[cells]

    def _mixed(
        self, evaluation: Evaluation, mix: NDArray[np.float32], look: int | None, *, counted: bool = True
    ) -> dict[str, Floats]:
        """Return figures under test distributions ``mix [n, n_cells]`` (need not be normalised)."""
        if self.kind != "classification":
            return figures(evaluation, mix, self.kind, self._summed)
        table = None if look is None else self._views.permutation(look)
        truth = np.arange(len(evaluation.count)) if table is None else table
        out = figures(evaluation, mix, self.kind, self._summed, truth, self._task.counted if counted else ())
        if table is not None:  # of other labels than were counted
            out |= {name: np.full(len(mix), np.nan) for name in out if name in ("loss", "ece", "auc", *self._summed)}
        return out


def stratified(
    mix: NDArray[np.float32], cells: NDArray[np.int64], most: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw rows with cells ``[n]`` by a distribution over cells, ``most`` of them: every cell its share, rounded.

    Of a cell that has too few, rows are taken again. A distribution of cells that nobody has is taken as even.
    """
    there = np.bincount(cells, minlength=len(mix))
    weights = np.where(there > 0, mix, 0.0).astype(np.float64)
    weights = weights if weights.sum() > 0 else there.astype(np.float64)
    wanted = most * weights / weights.sum()
    counts = np.floor(wanted).astype(np.int64)
    # what rounding left over goes to the largest remainders
    counts[np.argsort(counts - wanted, kind="stable")[: most - counts.sum()]] += 1
    return np.concatenate(
        [np.resize(rng.permutation(np.flatnonzero(cells == c)), counts[c]) for c in counts.nonzero()[0]]
    )


def alike(*columns: NDArray[np.int64]) -> Iterator[tuple[tuple[int, ...], NDArray[np.int64]]]:
    """Group rows by their values in all columns: yield the values and the rows' numbers."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    tables = []
    for column in columns:
        low, high = int(column.min()), int(column.max())
        if low == high:
            tables.append(np.array([low]))
            continue
        if high - low < 2**16:
            found, place = np.arange(low, high + 1), column - low
        else:
            found, place = np.unique(column, return_inverse=True)
        tables.append(found)
        code = code * len(found) + place.reshape(-1)
    shape = [len(t) for t in tables]
    if not code.any():
        yield tuple(int(t[0]) for t in tables), np.arange(len(code))
        return
    # numpy sorts 16-bit numbers by radix, ten times faster
    narrow = code.astype(np.uint16) if math.prod(shape) <= 2**16 else code
    order = np.argsort(narrow, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    for start, members in zip(starts.tolist(), np.split(order, starts[1:]), strict=True):
        places = np.unravel_index(int(code[order[start]]), shape)
        yield tuple(int(t[p]) for t, p in zip(tables, places, strict=True)), members
