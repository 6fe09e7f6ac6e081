"""Samples in shards: every row is found again, and a worker has only those of its devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from espalier.core.errors import TrainingError
from espalier.core.messages import Train
from espalier.core.store import Ref
from espalier.data.dataset import ArrayPool
from espalier.scale import shards
from espalier.scale.shards import ShardedPool, Sharding, ShardLayout, Shards, by_device, shards_by_device
from espalier.simulator.dataviews import Look, Views
from espalier.simulator.jobs import Job
from espalier.simulator.portions import Portions
from espalier.world.drift import Concept
from tests.scale.near import DIGITS, Near, experiment, run

PARTED = experiment().split(DIGITS, 3)


def test_rows_lie_in_the_order_of_edges_and_their_devices() -> None:
    # device 0 at edge 1 has rows 5, 2; device 1 at edge 0 has 4, 5; device 2 at edge 0 has 0; nobody has 1 and 3
    parted: Any = replace(
        PARTED, offsets=np.array([0, 2, 4, 5]), indices=np.array([5, 2, 4, 5, 0]),
        edge=np.array([1, 0, 0], dtype=np.int32),
    )  # fmt: skip
    order = by_device(parted, 6)
    assert order.tolist() == [4, 5, 0, 2, 1, 3]
    # two rows a shard: 4 5 | 0 2 | 1 3
    layout = ShardLayout(np.argsort(order), 2)
    assert layout.shards(np.array([5, 0, 4])).tolist() == [0, 1]
    assert [found.tolist() for found in shards_by_device(parted, layout)] == [[0, 1], [0], [1]]


def test_samples_are_those_of_the_whole_pool_wherever_they_lie() -> None:
    pool = ArrayPool(torch.randn(50, 3), torch.arange(50))
    with patch.object(shards, "SHARD_BYTES", 7 * (12 + 8)):
        cut = Shards(pool, np.random.default_rng(0).permutation(50), 50)
    found = ShardedPool(cut.layout)
    for rows in (torch.tensor([3, 49, 0, 3, 17]), torch.tensor([8]), torch.zeros(0, dtype=torch.int64)):
        numbers = [0, *cut.layout.shards(rows.numpy()).tolist()]
        found.hold((n, tuple(torch.from_numpy(a) for a in cut[n])) for n in numbers)  # type: ignore[misc]
        for ours, theirs in zip(found.gather(rows), pool.gather(rows), strict=True):
            assert torch.equal(ours, theirs)
    found.hold(())
    with pytest.raises(TrainingError, match="not at this worker"):
        found.gather(torch.tensor([3]))


def test_a_job_takes_the_shards_of_its_device_and_of_shifted_labels_those_that_it_looks_at() -> None:
    views = Views(DIGITS, PARTED, 3)
    plain, shifted = views.number(Look()), views.number(Look(Concept(shift=1)))
    with patch.object(shards, "SHARD_BYTES", 1 << 12):
        found = Sharding(views)
    for look in (plain, shifted):
        jobs = [Job(device, 0, Train(start=Ref(0)), look) for device in (4, 7)]
        wanted = found.of_rows({"train": np.concatenate([views.rows(j.device, look) for j in jobs])})
        assert found.of_jobs(jobs) == wanted


def test_a_worker_gets_the_samples_of_the_devices_that_train_and_no_others() -> None:
    near = Near(shard_bytes=1 << 12)
    away = run(near, "fedavg", fleet={"devices": 60, "edges": 3, "fraction": 0.05}, stop={"rounds": 1})
    views = away.simulation.views
    with patch.object(shards, "SHARD_BYTES", 1 << 12):
        every = Sharding(views).of_rows({"train": np.arange(len(DIGITS.cell_train))})
    # three of sixty devices: few of the 87 shards, and no test sample, as this evaluation is not worth a call
    sent = {name for name in near.shards if name[0] == "train"}
    assert sent == near.shards and 0 < len(sent) < len(every) / 4


def test_evaluations_do_not_depend_on_the_number_of_workers_or_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    here = run(None, stop={"rounds": 1})
    task, views = here.task, here.simulation.views
    vectors = [task.initial(3, index) for index in range(11)]
    rows = np.arange(0, 360, 2)
    cells = DIGITS.cell_test[rows]
    monkeypatch.setattr("espalier.simulator.portions.WORTH_SENDING", 0)
    monkeypatch.setattr(task.evaluator, "batch", 50)
    whole = Portions(task, views).evaluations(vectors, ("test", 0, True), rows, cells, each=True, outputs=True)
    for workers in (1, 2, 5):
        near = Near(workers=workers)
        portions = Portions(task, views, near.computer(task, 3, views))
        found = portions.evaluations(vectors, ("test", 0, True), rows, cells, each=True, outputs=True)
        assert near.portions["_counts"] > 1
        for ours, theirs in zip(found, whole, strict=True):
            for name in ("count", "loss_sum", "correct", "confusion", "answers", "losses", "outputs"):
                assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
