"""Figures of devices and edges that use models with a label prior, or several models together.

A model's log-probabilities on the test rows are computed once; every prior is then one pass over the rows of the
device's own cells. Devices with the same models, prior and test distribution share it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from espalier.core.errors import ConfigError
from espalier.core.seeds import stream
from espalier.core.serving import Serving, proportions, smoothed, temper
from espalier.core.store import Ref
from espalier.data.partition import Partition
from espalier.simulator.dataviews import Views
from espalier.simulator.ledger import Ledger
from espalier.simulator.metrics import DeviceModels, Floats, Scores, alike
from espalier.simulator.task import Task
from espalier.training.metrics import answered

Rows = NDArray[np.int64]


class ServedScores:
    """Scores of one simulation's devices and edges under a serving policy that is not plain."""

    def __init__(
        self, serving: Serving, task: Task, partition: Partition, views: Views, ledger: Ledger, scores: Scores
    ) -> None:
        self._serving, self._task, self._partition = serving, task, partition
        self._views, self._ledger, self._scores = views, ledger, scores
        if task.dataset.kind != "classification":
            raise ConfigError(f"serve: priors and mixtures are for classifications; this is a {task.dataset.kind}.")
        if serving.model == "mixture" and partition.validation is None:
            raise ConfigError(
                "serve.model = 'mixture' weighs models by samples that devices hold out; set partition.val_fraction."
            )
        self._n_classes = task.dataset.n_classes
        self._counts: dict[tuple[int, int], Floats] = {}
        self._logs: dict[tuple[int, int], Floats] = {}
        self._own: dict[tuple[int, int, int], tuple[Floats, Rows]] = {}
        #: how each device uses the one model that it has, as it was judged last: what its outputs are multiplied by,
        #: and what is added to them
        self.used: dict[int, tuple[float, Floats]] = {}

    def prepare(self) -> None:
        """Forget the log-probabilities of models that are in use no longer."""
        self._logs, self._own = {}, {}

    def at_devices(self, candidates: Sequence[DeviceModels], looks: NDArray[np.int64]) -> dict[str, Floats]:
        """Return every device's figures on its own test distribution, [N] each."""
        used = []
        for places, models in candidates:
            column = np.zeros(len(looks), dtype=np.int64)
            for (place, group), members in alike(*places):
                column[members] = int(models[place, group])
            used.append(column)
        out: dict[str, Floats] = {}
        for (look, *refs), members in alike(looks, *used):
            mixes = self._views.mix(look, self._partition.test_mix[members])
            self._validate(refs, members.tolist(), look)
            known: dict[bytes, dict[str, float]] = {}
            for device, distribution in zip(members.tolist(), mixes, strict=True):
                mix: NDArray[np.float32] | None = None
                if self._own_tests(device):
                    rows = self._scores.device_rows(device, look)
                else:
                    rows, mix = self._rows(distribution), distribution
                prior = self._prior([int(device)], look, refs[0], rows, mix)
                factors = self._factors(refs, [int(device)], look, prior)
                weights = self._weights(refs, int(device), look, prior, factors)
                if len(refs) == 1:
                    self.used[int(device)] = float(factors[0]), prior
                tested = rows if mix is None else mix
                code = prior.tobytes() + factors.tobytes() + weights.tobytes() + tested.tobytes()
                if code not in known:
                    known[code] = self._judge(refs, factors, weights, look, rows, prior, mix)
                for name, value in known[code].items():
                    out.setdefault(name, np.full(len(looks), np.nan))[device] = value
        return out

    def at_edges(self, models: Mapping[int, Ref], looks: NDArray[np.int64]) -> dict[str, Floats]:
        """Return every edge's figures on its own test set or distribution, with its devices' labels as prior."""
        part = self._partition
        out: dict[str, Floats] = {}
        samples = np.bincount(part.edge, weights=part.sizes, minlength=part.n_edges)
        for (edge, look), members in alike(part.edge.astype(np.int64), looks):
            if edge not in models:
                continue
            share = part.sizes[members].sum() / samples[edge]
            rows, mix = self._scores.edge_rows(edge, look), None
            if not self._scores.by_rows:
                mix = (part.test_mix[members] * part.sizes[members, None]).sum(0)
                mix = self._views.mix(look, (mix / mix.sum())[None].astype(np.float32))[0]
                rows = self._rows(mix)
            ref = int(models[edge])
            prior = self._prior(members.tolist(), look, ref, rows, mix)
            self._validate([ref], members.tolist(), look)
            factors = self._factors([ref], members.tolist(), look, prior)
            row = self._judge([ref], factors, np.ones(1), look, rows, prior, mix)
            for name, value in row.items():
                found = out.setdefault(name, np.full(part.n_edges, np.nan))
                found[edge] = np.nan_to_num(found[edge]) + share * value
        return out

    # -- parts -------------------------------------------------------------------------------------------------

    def _own_tests(self, device: int) -> bool:
        """Tell whether a device is tested on rows of its own."""
        tests = self._partition.device_tests
        return tests is not None and bool(len(tests[device]))

    def _rows(self, mix: NDArray[np.float32]) -> Rows:
        """Return the test rows of a distribution's cells (all, if the test set has none of them)."""
        cells = self._task.dataset.cell_test
        found = np.flatnonzero(mix[cells] > 0)
        return found if len(found) else np.arange(len(cells))

    def _shares(self, rows: Rows, mix: NDArray[np.float32] | None) -> Floats:
        """Return the weight of each test row under a distribution over cells (None: all alike)."""
        if mix is None or len(rows) == 0:
            return np.full(len(rows), 1.0 / max(1, len(rows)))
        cells = self._task.dataset.cell_test[rows]
        weights: Floats = mix[cells].astype(np.float64) / np.bincount(cells, minlength=len(mix))[cells]
        return weights / weights.sum() if weights.sum() > 0 else np.full(len(rows), 1.0 / len(rows))

    def _prior(self, devices: list[int], look: int, ref: int, rows: Rows, mix: NDArray[np.float32] | None) -> Floats:
        """Return the label prior of some devices with one look, log shares ``[C]``."""
        if self._serving.prior == "none" or len(rows) == 0:
            return np.zeros(self._n_classes)
        if self._serving.prior in ("known", "validated"):
            counts = np.sum([self._labels(device, look) for device in devices], axis=0)
        else:
            rng = stream(self._views.seed, "serve", *sorted(devices)[:1])
            drawn = rng.choice(len(rows), size=self._serving.inputs, p=self._shares(rows, mix))
            counts = proportions(np.exp(self._log_probabilities(ref, look, rows[drawn])))
        logs: Floats = np.log(smoothed(counts, self._serving.smoothing))
        return logs

    def _labels(self, device: int, look: int) -> Floats:
        """Return how many samples of each label a device trains on, as it sees them."""
        if (device, look) not in self._counts:
            labels = self._task.dataset.cell_train[self._views.rows(device, look)]
            table = self._views.permutation(look)
            seen = labels if table is None else table[labels]
            self._counts[device, look] = np.bincount(seen, minlength=self._n_classes).astype(np.float64)
        return self._counts[device, look]

    def _validate(self, refs: Sequence[int], devices: Sequence[int], look: int) -> None:
        """Let models answer the samples by which devices validate their priors, all devices at once."""
        if self._serving.prior != "validated":
            return
        pool = self._views.pool(look)
        for ref in dict.fromkeys(refs):
            new = [device for device in devices if (ref, look, device) not in self._own]
            if not new:
                continue
            samples = [self._samples(device, look) for device in new]
            rows, ends = np.concatenate(samples), np.cumsum([len(found) for found in samples])[:-1]
            labels = pool.gather(torch.from_numpy(rows))[1].numpy()
            logs = self._task.evaluator.logits([self._ledger.vector(Ref(ref))], pool, rows)[0].double().log_softmax(1)
            parts = zip(new, np.split(logs.numpy(), ends), np.split(labels, ends), strict=True)
            self._own |= {(ref, look, device): (own, truth) for device, own, truth in parts}

    def _samples(self, device: int, look: int) -> Rows:
        """Return the rows by which a device validates its prior: those it holds out, else those it trains on."""
        held = self._views.held_out(device, look) if self._partition.validation is not None else ()
        return np.asarray(held if len(held) else self._views.rows(device, look))[: self._serving.inputs]

    def _factors(self, refs: Sequence[int], devices: Sequence[int], look: int, prior: Floats) -> Floats:
        """Return by what each model's answers count beside the prior, by the samples of some devices."""
        if self._serving.prior != "validated":
            return np.ones(len(refs))
        found = []
        for ref in refs:
            own = [self._own[ref, look, device] for device in devices]
            logs, labels = (np.concatenate(part) for part in zip(*own, strict=True))
            found.append(temper(logs, labels, prior))
        return np.array(found)

    def _weights(self, refs: Sequence[int], device: int, look: int, prior: Floats, factors: Floats) -> Floats:
        """Return how much each of several models counts at a device, by the samples that it holds out."""
        rows = self._views.held_out(device, look) if len(refs) > 1 else np.zeros(0, dtype=np.int64)
        if len(set(refs)) == 1 or len(rows) == 0:
            first: Floats = np.eye(len(refs))[0]
            return first
        pool, vectors = self._views.pool(look), list(self._ledger.vectors([Ref(r) for r in refs]))
        labels = pool.gather(torch.from_numpy(rows))[1]
        logs = self._task.evaluator.logits(vectors, pool, rows).double().log_softmax(2)
        outputs = torch.from_numpy(factors)[:, None, None] * logs + torch.from_numpy(prior)
        likely = outputs.softmax(2)[:, torch.arange(len(rows)), labels]
        return proportions(likely.T.numpy())

    def _log_probabilities(self, ref: int, look: int, rows: Rows) -> Floats:
        """Return a model's log-probabilities on test rows, ``[n, C]``."""
        found = self._scores.found(Ref(ref), look)
        key = (ref, id(found))
        if key not in self._logs:
            self._logs[key] = torch.from_numpy(found.evaluation.outputs).double().log_softmax(1).numpy()
        return self._logs[key][np.searchsorted(found.rows, rows)]

    def _judge(
        self,
        refs: Sequence[int],
        factors: Floats,
        weights: Floats,
        look: int,
        rows: Rows,
        prior: Floats,
        mix: NDArray[np.float32] | None,
    ) -> dict[str, float]:
        """Return the figures of models together, under a prior."""
        if len(rows) == 0:
            return {"acc": math.nan, "loss": math.nan}
        table, cells = self._views.permutation(look), self._task.dataset.cell_test[rows]
        truth = cells if table is None else table[cells]
        answers = np.zeros((len(rows), self._n_classes))
        for ref, factor, weight in zip(refs, factors.tolist(), weights.tolist(), strict=True):
            if weight > 0.0:
                scores = factor * self._log_probabilities(ref, look, rows) + prior
                scores = np.exp(scores - scores.max(1, keepdims=True))
                answers += weight * scores / scores.sum(1, keepdims=True)
        shares, counted = self._shares(rows, mix), self._task.counted
        likely = np.maximum(answers[np.arange(len(rows)), truth], 1e-300)
        found = {"acc": float(shares @ (answers.argmax(1) == truth)), "loss": float(shares @ -np.log(likely))}
        return {**answered(answers, truth, shares, counted), **found} if counted else found
