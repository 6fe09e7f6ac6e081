"""A dataset: training and test tensors, and the cells that partitions and test distributions go by.

A *cell* is the label that a split is skewed over: the class of a sample, the region a magnet was in, the
majority class of a street scene. For classification the cell is the class. An *owner* is who made a sample
(a writer, a subject, a clinic, a city), where the publisher says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from espalier.core.errors import ConfigError, DataError, nearest
from espalier.core.seeds import stream
from espalier.data import sources
from espalier.data.arrays import VOID, IntArray, Kind, fields_from_arrays, pixel_majority
from espalier.data.rows import stratified_mask
from espalier.data.table import TableColumns

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

__all__ = ["VOID", "ArrayPool", "Dataset", "IntArray", "Kind", "pixel_majority"]


@dataclass(frozen=True, eq=False)
class ArrayPool:
    """Samples that jobs draw rows from: ``x [n, …]`` and ``y [n, …]``."""

    x: Tensor
    y: Tensor

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples at ``rows`` (int64 ``[n]``) as ``x [n, …], y [n, …]``."""
        return self.x.index_select(0, rows), self.y.index_select(0, rows)

    def __len__(self) -> int:
        return int(self.x.shape[0])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples of one task.

    Attributes:
        name: What the dataset is called.
        x_train: Inputs: float32 ``[n, channels, height, width]`` in 0…1 for images, int64 ``[n, length]``
            token ids for text, float32 ``[n, features]`` otherwise.
        y_train: Targets: int64 ``[n]`` classes, float32 ``[n, outputs]``, or int64 ``[n, height, width]``.
        x_test: Test inputs.
        y_test: Test targets.
        kind: The task.
        n_classes: Outputs of a classifier, or the output dimension of a regression.
        cell_train: The cell of each training row, int64 ``[n]``.
        cell_test: The cell of each test row.
        n_cells: How many cells there are.
        owner_train: The natural owner of each training row (int64 ``[n]``), or None.
        owner_test: The natural owner of each test row, or None.
        meta: What else is known: class names, owner names, the vocabulary's size.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    kind: Kind
    n_classes: int
    cell_train: IntArray
    cell_test: IntArray
    n_cells: int
    owner_train: IntArray | None = None
    owner_test: IntArray | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            n = len(getattr(self, f"x_{part}"))
            if n == 0:
                raise DataError(f"Dataset {self.name!r}: x_{part} has no rows.")
            for column in ("y", "cell", "owner"):
                values = getattr(self, f"{column}_{part}")
                if values is not None and len(values) != n:
                    raise DataError(
                        f"Dataset {self.name!r}: {column}_{part} has {len(values)} rows, x_{part} has {n}; give one "
                        "entry per row."
                    )
            cells = getattr(self, f"cell_{part}")
            if cells.min() < 0 or cells.max() >= self.n_cells:
                raise DataError(
                    f"Dataset {self.name!r}: cell_{part} has values {cells.min()}…{cells.max()}, accepted are "
                    f"0…{self.n_cells - 1}."
                )
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise DataError(
                f"Dataset {self.name!r}: a training sample has shape {tuple(self.x_train.shape[1:])}, a test sample "
                f"{tuple(self.x_test.shape[1:])}; they must agree."
            )

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {len(self.x_train):,} + {len(self.x_test):,} samples, {self.kind})"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x_train.shape[1:])

    @property
    def vocabulary(self) -> int | None:
        """Number of token ids of a text dataset, None otherwise."""
        size = self.meta.get("vocabulary")
        return None if size is None else int(size)

    @cached_property
    def train_pool(self) -> ArrayPool:
        """The training samples as a pool (always the same object)."""
        return ArrayPool(self.x_train, self.y_train)

    @cached_property
    def test_pool(self) -> ArrayPool:
        """The test samples as a pool (always the same object)."""
        return ArrayPool(self.x_test, self.y_test)

    def pool(self, part: Literal["train", "test"] = "train") -> ArrayPool:
        """The training or the test samples as a pool."""
        return self.train_pool if part == "train" else self.test_pool

    def for_validation(self) -> Dataset:
        """Return the dataset with a fifth of each cell's training samples in the place of the test samples."""
        held = stratified_mask(self.cell_train, 0.2, stream(0, "dataset", "validation"))
        parts = {"train": ~held, "test": held}
        rows = {part: np.flatnonzero(mask) for part, mask in parts.items()}
        chosen = {f"{c}_{p}": getattr(self, f"{c}_train")[rows[p]] for p in parts for c in ("x", "y", "cell")}
        if self.owner_train is not None:
            chosen |= {f"owner_{p}": self.owner_train[rows[p]] for p in parts}
        return replace(self, **chosen)

    def standardised(self, mean: Sequence[float], std: Sequence[float]) -> Dataset:
        """Return the same images, pixels less the mean and over the standard deviation of each channel (or of all)."""
        channels = self.input_shape[0]
        if self.x_train.ndim != 4 or not {len(mean), len(std)} <= {1, channels} or min(std) <= 0:
            raise DataError(
                f"Dataset {self.name!r}: mean = {list(mean)} and std = {list(std)} standardise images, with one number "
                f"(std above 0) for each channel or one for all; its samples have shape {self.input_shape}."
            )
        shift, scale = (self.x_train.new_tensor(list(values))[:, None, None] for values in (mean, std))
        return replace(self, x_train=(self.x_train - shift) / scale, x_test=(self.x_test - shift) / scale)

    @staticmethod
    def from_arrays(
        x_train: ArrayLike | Tensor,
        y_train: ArrayLike | Tensor,
        x_test: ArrayLike | Tensor,
        y_test: ArrayLike | Tensor,
        *,
        name: str = "arrays",
        kind: Kind | None = None,
        n_classes: int | None = None,
        cell_train: ArrayLike | None = None,
        cell_test: ArrayLike | None = None,
        owner_train: ArrayLike | None = None,
        owner_test: ArrayLike | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Make a dataset of arrays in memory; see `espalier.data.arrays` for what is converted how."""
        cells, owners = (cell_train, cell_test), (owner_train, owner_test)
        fields = fields_from_arrays(
            x_train, y_train, x_test, y_test, name=name, kind=kind, n_classes=n_classes, cells=cells, owners=owners,
            meta=meta,
        )  # fmt: skip
        return Dataset(name=name, **fields)

    @staticmethod
    def from_torch(train: Any, test: Any = None, *, name: str = "torch", **options: Any) -> Dataset:
        """Make a dataset of PyTorch's (or torchvision's) map-style datasets of pairs (input, target).

        Args:
            train: The training samples.
            test: The test samples; by default a fifth of each class of the training samples.
            name: What to call it.
            **options: As :meth:`from_arrays` takes them (``kind``, ``n_classes``, ``owner_train`` with a test part).
        """
        _check_options(options, Dataset.from_torch)
        first = sources.torch_samples(train)
        parts = first.parts() if test is None else (first, sources.torch_samples(test))
        return Dataset.from_arrays(**{**sources.fields(*parts), **options}, name=name)

    @staticmethod
    def from_hf(
        train: Any,
        test: Any = None,
        *,
        x: str | Sequence[str],
        label: str = "label",
        owner: str | None = None,
        name: str = "hf",
        **options: Any,
    ) -> Dataset:
        """Make a dataset of Hugging Face's: ``x`` is the column of inputs, or several columns of numbers.

        Of several splits (``load_dataset`` returns them), ``train`` and ``test`` are taken. Without ``test``, a fifth
        of each class is the test part.
        """
        _check_options(options, Dataset.from_hf)
        if isinstance(train, Mapping):
            sources.have(train, ["train"], "split")
            train, test = train["train"], train.get("test") if test is None else test
        first = sources.hf_samples(train, x, label, owner)
        parts = first.parts() if test is None else (first, sources.hf_samples(test, x, label, owner))
        return Dataset.from_arrays(**sources.fields(*parts), name=name, **options)

    @staticmethod
    def from_pandas(
        frame: pd.DataFrame,
        *,
        label: str = "",
        owner: str | None = None,
        edge: str | None = None,
        columns: str | Sequence[str] | None = None,
        ignore: str | Sequence[str] = (),
        test: str | None = None,
        missing: str = "refuse",
        scale: bool = True,
        amounts: bool | None = None,
        name: str = "frame",
        **options: Any,
    ) -> Dataset:
        """Make a dataset of a frame: a row per sample.

        Args:
            frame: The rows.
            label: The column that is to be learnt.
            owner: The column that says whose a row is.
            edge: The column that says at which edge an owner is (a region, a hospital); the partition ``owner`` then
                puts the owner's device there.
            columns: The features; by default all others. Text becomes columns of 0 and 1.
            ignore: Columns that are no features.
            test: A column that is true for test rows; by default a fifth of each class.
            missing: What becomes of rows with empty cells: ``refuse``, ``drop``, or ``mean`` (an empty number counts as
                its column's mean over the training rows, an empty text as none of its column's; rows without a label
                or owner are left out).
            scale: Scale features to mean 0 and standard deviation 1 (of the training rows).
            amounts: Whether the label's numbers are amounts (a regression) or classes; by default, whole numbers are
                classes.
            name: What to call it.
            **options: As :meth:`from_arrays` takes them.
        """
        _check_options(options, Dataset.from_pandas)
        if "kind" in options and amounts is None:
            amounts = options["kind"] == "regression"
        table = TableColumns(label, owner, edge, test, columns, ignore, missing, scale, amounts)
        train, held, about = table.read(frame)
        if amounts:
            options["kind"] = "regression"
        options["meta"] = {**about, **options.get("meta", {})}
        return Dataset.from_arrays(**sources.fields(train, held), name=name, **options)


def _check_options(options: Mapping[str, Any], maker: Callable[..., Dataset]) -> None:
    """Refuse options that neither the maker nor ``from_arrays``, which gets them, has."""
    takes = [p for f in (maker, Dataset.from_arrays) for p in inspect.signature(f).parameters.values()]
    known = sorted({p.name for p in takes if p.kind is p.KEYWORD_ONLY})
    for name in options:
        if name not in known:
            there = ", ".join(known)
            raise ConfigError(f"Dataset.{maker.__name__} has no option {name!r}; known: {there}.{nearest(name, known)}")
