"""A table becomes samples: which columns are features, how text and empty cells are read, how features are scaled.

The `TableEncoding` that is found on the training rows also reads rows that come later, so that a trained model can be
asked about rows as they stand in the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import ConfigError, DataError, nearest, warn
from espalier.data.arrays import MOST_FLOAT_CLASSES
from espalier.data.sources import Samples, have, plain

if TYPE_CHECKING:
    import pandas as pd

#: distinct texts of a column up to which it becomes one column per text
MOST_CATEGORIES = 50
#: from so many rows on a column with another whole number in each is taken for one that numbers them
FEWEST_NUMBERED_ROWS = 100
#: a column determines the label if its values, dealt at random, would do so with no more than this chance
LEAK_CHANCE = 1e-6
#: columns that are no features, by what they say
ROLES = ("label", "owner", "edge", "test")
#: what becomes of empty cells
Missing = Literal["refuse", "drop", "mean"]


@dataclass(frozen=True)
class TableEncoding:
    """How a row becomes an input: the numbers' columns first, then a column of 0 and 1 per text of each text column.

    Empty numbers are filled; a text that is empty, or new, is none of its column's. Then (x − shift) / scale.

    Attributes:
        numbers: The columns of numbers, in order.
        texts: The columns of text, each with its values in order; a value that is not among them is all zeros.
        fill: What empty cells count as, one number per input: its mean over the training rows.
        shift: Taken from each input.
        scale: By which each input is then divided.
    """

    numbers: tuple[str, ...]
    texts: Mapping[str, tuple[str, ...]]
    fill: tuple[float, ...] = ()
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return a frame's rows as a trained model takes them, float32 ``[rows, inputs]``."""
        return self._finished(self._raw(frame))

    def fitted(self, frame: pd.DataFrame, scale: bool) -> TableEncoding:
        """Return the encoding with the means (and, to ``scale``, the spreads) of these rows."""
        raw = self._raw(frame)
        fill = np.nanmean(raw, 0)
        full = np.where(np.isnan(raw), fill, raw)
        shift, spread = full.mean(0), full.std(0)
        if not scale:
            shift, spread = np.zeros_like(shift), np.ones_like(spread)
        spread = np.where(spread > 0, spread, 1)
        return replace(self, fill=tuple(fill.tolist()), shift=tuple(shift.tolist()), scale=tuple(spread.tolist()))

    def _raw(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        have(frame.columns, [*self.numbers, *self.texts])
        parts = [frame[list(self.numbers)].to_numpy(np.float32)]
        for name, values in self.texts.items():
            texts = plain(frame[name].astype(str).to_numpy())
            parts.append((texts[:, None] == np.array(values)[None]).astype(np.float32))
        return np.concatenate(parts, 1)

    def _finished(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        fill, shift, scale = (np.array(values, np.float32) for values in (self.fill, self.shift, self.scale))
        inputs: NDArray[np.float32] = (np.where(np.isnan(raw), fill, raw) - shift) / scale
        return inputs

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data, for a run's record."""
        return asdict(self)

    @staticmethod
    def from_plain(table: Mapping[str, Any]) -> TableEncoding:
        """Read what `to_plain` gave."""
        texts = {name: tuple(values) for name, values in table["texts"].items()}
        return TableEncoding(
            tuple(table["numbers"]), texts, tuple(table["fill"]), tuple(table["shift"]), tuple(table["scale"])
        )


@dataclass(frozen=True)
class TableColumns:
    """Which column of a table says what (see `Dataset.from_pandas`)."""

    label: str
    owner: str | None = None
    edge: str | None = None
    test: str | None = None
    columns: str | Sequence[str] | None = None
    ignore: str | Sequence[str] = ()
    missing: str = "refuse"
    scale: bool = True
    amounts: bool | None = None

    def __post_init__(self) -> None:
        for name in ("columns", "ignore"):  # a single column may be named as it is
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, (value,))

    def read(self, frame: pd.DataFrame) -> tuple[Samples, Samples, dict[str, Any]]:
        """Return the training and the test rows, and what is to be remembered of the table."""
        if not hasattr(frame, "columns"):
            raise DataError(f"The table is a {type(frame).__name__}; a pandas DataFrame is accepted (or from_arrays).")
        if str(self.label) not in map(str, frame.columns):
            columns = ", ".join(map(str, frame.columns))
            meant = nearest(str(self.label), map(str, frame.columns)) or " Name the one to be learnt: label = …"
            raise DataError(f"There is no column {self.label!r}; there are {columns}.{meant}")
        if len(frame) == 0:
            raise DataError("The table has a header and no rows.")
        known = get_args(Missing)
        if self.missing not in known:
            raise ConfigError(f"missing = {self.missing!r}; known: {', '.join(known)}.{nearest(self.missing, known)}")
        if len(set(self._roles)) < len(self._roles):
            told = ", ".join(f"{r} = {getattr(self, r)!r}" for r in ROLES if getattr(self, r) is not None)
            raise ConfigError(f"{told}: each must be a column of its own.")
        have(frame.columns, [*self._roles, *(self.columns or ()), *self.ignore])
        features = self._features(frame)
        frame = _without_gaps(frame, features, self._roles, self.missing)
        for name in features:
            _check_numbers(frame[name])
        for name in (*features, *self._roles):
            _check_texts(frame[name])
        texts = {c: _categories(frame[c]) for c in features if not _is_number(frame[c])}
        encoding = TableEncoding(tuple(c for c in features if c not in texts), texts)
        owner = None if self.owner is None else plain(frame[self.owner].to_numpy())
        places = Samples(np.arange(len(frame)), self._labels(frame[self.label]), owner)
        if places.y.dtype.kind != "f":
            _check_leaks(frame[features], places.y)
        if self.test is None:
            parts = places.parts()
        else:
            chosen = _flags(frame[self.test])
            if chosen.all() or not chosen.any():
                raise DataError(
                    f"Column {self.test!r} is {'true' if chosen.all() else 'false'} in every row: some rows must be "
                    "for training, some for tests (or name no test column: then a fifth of each class is held out)."
                )
            parts = places[~chosen], places[chosen]
        encoding = encoding.fitted(frame.iloc[parts[0].x], self.scale)
        train, test = (replace(p, x=encoding.encode(frame.iloc[p.x])) for p in parts)
        return train, test, {"table": encoding.to_plain(), **self._edges(frame)}

    def _labels(self, column: pd.Series[Any]) -> NDArray[Any]:
        """Return what is to be learnt: classes (text, whole numbers) or, as floats, amounts."""
        values = plain(column.to_numpy())
        if not _is_number(column) or values.dtype.kind == "b":
            different = column.nunique()
            if different > max(MOST_CATEGORIES, len(column) // 2):
                raise DataError(
                    f"Column {self.label!r} has {different:,} different texts in {len(column):,} rows: most have no "
                    "second row to learn from; name a column whose values come again."
                )
            return values
        if self.amounts:
            return values.astype(np.float64)
        whole, different = bool((values == np.round(values)).all()), len(np.unique(values))
        if self.amounts is None and whole and different > MOST_FLOAT_CLASSES:
            raise DataError(
                f"Column {self.label!r} has {different:,} different whole numbers; say whether they are amounts "
                "(amounts = true: a regression) or classes (amounts = false)."
            )
        if self.amounts is False and not whole:
            raise DataError(f"Column {self.label!r} has numbers that are not whole; classes are text or whole numbers.")
        return values.astype(np.int64) if whole else values

    @property
    def _roles(self) -> list[str]:
        """The columns that are no features."""
        return [c for c in (getattr(self, role) for role in ROLES) if c is not None]

    def _features(self, frame: pd.DataFrame) -> list[str]:
        wanted = [c for c in frame.columns if c not in self._roles] if self.columns is None else list(self.columns)
        features = [c for c in wanted if c not in self.ignore]
        if not features:
            raise DataError(f"There is no column besides {', '.join(self._roles)}; features are needed.")
        return features

    def _edges(self, frame: pd.DataFrame) -> dict[str, Any]:
        """Return the edge of every owner, by their names."""
        if self.edge is None:
            return {}
        if self.owner is None:
            raise ConfigError(f"edge = {self.edge!r} says where owners are: name the column of owners too.")
        pairs = frame[[self.owner, self.edge]].drop_duplicates()
        twice = pairs[self.owner].duplicated()
        if twice.any():
            who = pairs[self.owner][twice].iloc[0]
            where = ", ".join(map(str, pairs[self.edge][pairs[self.owner] == who]))
            raise DataError(f"Owner {who!r} has rows at several edges ({where}); an owner is at one edge.")
        return {"edges": dict(zip(map(str, pairs[self.owner]), map(str, pairs[self.edge]), strict=True))}


def _is_number(column: pd.Series[Any]) -> bool:
    import pandas as pd

    return pd.api.types.is_numeric_dtype(column)


def _check_numbers(column: pd.Series[Any]) -> None:
    """Refuse infinite features; warn of one that numbers the rows."""
    if not _is_number(column):
        return
    values = column.to_numpy(np.float64, na_value=np.nan)
    infinite = np.isinf(values)
    if infinite.any():
        row = int(infinite.argmax()) + 1
        raise DataError(
            f"Column {column.name!r} has an infinite number in row {row}; replace it, or leave the row out."
        )
    if len(values) >= FEWEST_NUMBERED_ROWS and (values == np.round(values)).all() and column.is_unique:
        warn(
            f"Column {column.name!r} has another whole number in every row: if it numbers the rows, leave it out "
            f"(ignore = [{column.name!r}])."
        )


def _check_leaks(features: pd.DataFrame, labels: NDArray[Any]) -> None:
    """Warn of a column whose every value has one label, where that is no chance; measurements do not come again."""
    import pandas as pd

    y, classes = pd.factorize(labels)
    share = np.bincount(y) / len(y)
    for name in features:
        if _is_number(features[name]) and (features[name] % 1 > 0).any():
            continue
        codes, values = pd.factorize(features[name], use_na_sentinel=False)
        first = np.zeros(len(values), int)
        first[codes] = y
        if len(classes) < 2 or 2 * len(values) > len(y) or (first[codes] != y).any():
            continue
        alike = (share[:, None] ** np.bincount(codes)).sum(0)  # the chance that a value's rows have all one label
        if np.log(alike).sum() < np.log(LEAK_CHANCE):
            warn(
                f"Column {name!r} determines the label: each of its {len(values)} values has one label only. If it is "
                f"known only when the label is, leave it out (ignore = [{name!r}])."
            )


def _check_texts(column: pd.Series[Any]) -> None:
    """Refuse numbers with a decimal comma; warn of texts that differ in capitals or spaces alone."""
    import pandas as pd

    if _is_number(column) or not column.map(pd.api.types.is_hashable).all():
        return
    texts = column.dropna().astype(str).drop_duplicates()
    commas = texts.str.fullmatch(r"\s*[-+]?\d+,\d+\s*")
    if commas.any() and (commas | texts.str.fullmatch(r"\s*[-+]?\d+\s*")).all():
        raise DataError(
            f"Column {column.name!r} holds numbers with a comma ({texts[commas].iloc[0]!r}): write a point, or read "
            "the table with pandas.read_csv(…, decimal=',') and use Dataset.from_pandas."
        )
    alike = texts[texts.str.strip().str.casefold().duplicated(keep=False)]
    if len(alike):
        one = alike.iloc[0]
        other = next(t for t in alike.iloc[1:] if t.strip().casefold() == one.strip().casefold())
        warn(
            f"Column {column.name!r} has {one!r} and {other!r}, which differ in capitals or spaces alone and count as "
            "different: if they mean the same, write them alike."
        )


def _flags(column: pd.Series[Any]) -> NDArray[np.bool_]:
    """Return which rows are for tests."""
    values = column.to_numpy()
    strange = [v for v in column.unique().tolist() if v not in (0, 1)]
    if strange:
        raise DataError(
            f"Column {column.name!r} says which rows are for tests: true and false (or 1 and 0) are accepted, not "
            f"{strange[0]!r}."
        )
    return values.astype(bool)


def _categories(column: pd.Series[Any]) -> tuple[str, ...]:
    """Return the values of a column of text in order; a date, or too many of them, is no feature."""
    import pandas as pd

    hint = f"leave it out (ignore = [{str(column.name)!r}]) or make numbers of it."
    if pd.api.types.is_datetime64_any_dtype(column):
        raise DataError(f"Column {str(column.name)!r} holds dates; {hint}")
    if not column.map(pd.api.types.is_hashable).all():
        raise DataError(f"Column {str(column.name)!r} holds lists or other objects; {hint}")
    if column.nunique() > MOST_CATEGORIES:
        raise DataError(f"Column {str(column.name)!r} holds text with {column.nunique()} different values; {hint}")
    return tuple(sorted(column.dropna().astype(str).unique()))


def _without_gaps(frame: pd.DataFrame, features: list[str], roles: list[str], missing: str) -> pd.DataFrame:
    """Leave out or refuse rows with empty cells, as ``missing`` says; a feature without any value is always refused."""
    empty = frame[[*features, *roles]].isna()
    for name in features:
        if empty[name].all():
            raise DataError(f"Column {name!r} is empty; leave it out (ignore = [{name!r}]).")
    some, unusable = empty.any(axis=1).to_numpy(), empty[roles].any(axis=1).to_numpy()
    if not some.any():
        return frame
    if missing == "refuse":
        texts = [name for name in features if not _is_number(frame[name])]
        raise DataError(_gaps(empty, roles, texts, int(some.sum()), int(unusable.sum())))
    out = some if missing == "drop" else unusable
    if out.all():
        raise DataError(f"Every row has an empty cell in one of the columns {', '.join(map(repr, empty.columns))}.")
    if out.any():
        why = "have empty cells" if missing == "drop" else f"do not say {' or '.join(map(repr, roles))}"
        warn(f"{int(out.sum()):,} of {len(frame):,} rows {why} and are left out.")
    return frame[~out]


def _gaps(empty: pd.DataFrame, roles: list[str], texts: list[str], some: int, unusable: int) -> str:
    """Say which columns have how many empty cells, and what each remedy costs."""
    counts = {name: int(n) for name, n in empty.sum().items() if n}
    (first, n), *others = counts.items()
    row = int(empty[first].to_numpy().argmax()) + 1
    also = f"; so have {', '.join(f'{name!r} ({m})' for name, m in others)}" if others else ""
    message = f"Column {first!r} has {n} empty {'cell' if n == 1 else 'cells'}, the first in row {row}{also}: "
    message += f'leave such rows out (missing = "drop": {some:,} of {len(empty):,})'
    if some > unusable:
        kinds = {name in texts for name in counts if name not in roles}
        told = "fill numbers with the mean of their column", "count empty texts as none of their column's"
        message += f', or {" and ".join(told[kind] for kind in sorted(kinds))} (missing = "mean"'
        without = " or ".join(r for r in roles if r in counts)
        message += f": {unusable:,} rows are left out, without {without})" if unusable else ")"
    return message + "."
