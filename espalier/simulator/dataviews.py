"""What a device's data look like now: a concept (drift, planted label permutation) as a pool and rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from espalier.core.codec import register
from espalier.core.errors import PartitionError
from espalier.core.seeds import stream
from espalier.data.dataset import Dataset
from espalier.data.partition import Partition
from espalier.training.work import Pool
from espalier.world.drift import ORDINARY, Concept

register(Concept)

Part = Literal["train", "test"]


@register
@dataclass(frozen=True, slots=True)
class Look:
    """A concept of the world together with a planted label permutation; ``false``: with an attacker's labels."""

    concept: Concept = ORDINARY
    planted: int = 0
    false: bool = False


class Views:
    """Pools and rows by number: a job carries the number of the look its device had when it trained.

    ``pools`` (training, test) stand for the dataset's own where not all samples are at hand.
    """

    def __init__(
        self, dataset: Dataset, partition: Partition, seed: int, pools: tuple[Pool, Pool] | None = None
    ) -> None:
        self.dataset = dataset
        self.partition = partition
        self.seed = seed
        self._train, self._test = pools or (dataset.pool("train"), dataset.pool("test"))
        self._whole = pools is None
        #: what each label reads to an attacker that flips labels
        self.flip: NDArray[np.int64] | None = None
        self.looks: list[Look] = []
        self._numbers: dict[Look, int] = {}
        self.pool = lru_cache(maxsize=64)(self._pool)
        self.rows = lru_cache(maxsize=4096)(self._rows)
        self._by_cell = lru_cache(maxsize=2)(self._cell_rows)

    def number(self, look: Look) -> int:
        """Return the number of a look."""
        if look not in self._numbers:
            self._numbers[look] = len(self.looks)
            self.looks.append(look)
        return self._numbers[look]

    def restore(self, looks: list[Look]) -> None:
        """Take over the looks that a checkpoint holds."""
        self.looks = list(looks)
        self._numbers = {look: i for i, look in enumerate(looks)}

    def permutation(self, number: int) -> NDArray[np.int64] | None:
        """Return what each label reads under a look, or None where it reads as itself."""
        look = self.looks[number]
        if self.dataset.kind != "classification":
            return None
        table = np.arange(self.dataset.n_classes)
        if look.planted:
            table = self.partition.permutations[look.planted][table]
        if look.concept.permutation:
            drawn = stream(self.seed, "world", "permutation", look.concept.permutation)
            table = drawn.permutation(self.dataset.n_classes)[table]
        if look.false and self.flip is not None:
            table = self.flip[table]
        return None if np.array_equal(table, np.arange(len(table))) else table

    def _pool(self, number: int) -> Pool:
        return self._seen(self._train, number, "train")

    def samples(self, part: Part, look: int | None, labels: bool = True) -> Pool:
        """Return the training or test samples with a look's features and labels (None: as they are)."""
        if look is None:
            return self._train if part == "train" else self._test
        return self.pool(look) if part == "train" else self.test_pool(look, labels=labels)

    def test_pool(self, number: int, *, labels: bool = False) -> Pool:
        """Return the test pool with a look's features; labels are permuted only on request (see `mix`)."""
        return self._seen(self._test, number, "test", labels=labels)

    def _seen(self, pool: Pool, number: int, part: str, *, labels: bool = True) -> Pool:
        from espalier.data.drift import look_through

        look = self.looks[number]
        table = self.permutation(number) if labels else None
        return look_through(
            pool, labels=table, brightness=look.concept.brightness, noise=look.concept.noise,
            rotation=look.concept.rotation, seed=self.seed, part=part, check=self._whole,
        )  # fmt: skip

    def features(self, number: int) -> tuple[float, float, float]:
        """Return what decides how the test features look; equal means equal test pools."""
        concept = self.looks[number].concept
        return (concept.brightness, concept.noise, concept.rotation)

    def _rows(self, device: int, number: int) -> NDArray[np.int64]:
        rows = self._changed(self.partition.rows(device), device, number)
        if len(rows) == 0:
            raise PartitionError(
                f"Device {device} has no sample of the labels {self.looks[number].concept.labels} that the drift "
                "leaves it. Use a partition that gives every device samples before and after the drift."
            )
        return rows

    def held_out(self, device: int, number: int) -> NDArray[np.int64]:
        """Return the rows that a device holds out, as a look changes them (none if it holds none out)."""
        return self._changed(self.partition.validation_rows(device), device, number)

    def tested(self, node: int, rows: NDArray[np.int64], number: int) -> NDArray[np.int64]:
        """Return the test rows of an edge's host or of a device as a look changes them."""
        return self._changed(rows, node, number, "test")

    def _changed(self, rows: NDArray[np.int64], node: int, number: int, part: Part = "train") -> NDArray[np.int64]:
        concept = self.looks[number].concept
        cells = self._cells(part)
        if concept.labels is not None:
            rows = rows[np.isin(cells[rows], concept.labels)]
        if concept.shift:
            want = (cells[rows] + concept.shift) % self.dataset.n_cells
            rng = stream(self.seed, "world", "shift", node, concept.shift)
            by_cell = self._by_cell(part)
            rows = np.array([rng.choice(by_cell[c]) for c in want.tolist()], dtype=np.int64)
        return rows

    def _cell_rows(self, part: Part) -> list[NDArray[np.int64]]:
        cells = self._cells(part)
        return [np.flatnonzero(cells == c) for c in range(self.dataset.n_cells)]

    def _cells(self, part: Part) -> NDArray[np.int64]:
        return self.dataset.cell_train if part == "train" else self.dataset.cell_test

    def mix(self, number: int, mixes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return test mixes ``[n, n_cells]`` as a look changes them (restricted and shifted labels)."""
        concept = self.looks[number].concept
        if concept.shift:
            mixes = np.roll(mixes, concept.shift, axis=1)
        if concept.labels is not None:
            keep = np.zeros(mixes.shape[1], dtype=np.float32)
            keep[list(concept.labels)] = 1
            mixes = mixes * keep
            mixes = mixes / np.maximum(mixes.sum(1, keepdims=True), 1e-12)
        return mixes
