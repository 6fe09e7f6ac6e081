"""Measured worlds: CSV files with a header, and values that hold from one time to the next."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.errors import WorldError, nearest

#: How to read one cell of a column.
Reader = Callable[[str], Any]


def read(path: Path, columns: Mapping[str, Reader]) -> dict[str, list[Any]]:
    """Read the named columns of a CSV file; others are ignored.

    Raises:
        WorldError: The file is missing, has another header, or a cell that its reader refuses (the
            message names the line).
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _read(csv.DictReader(file, skipinitialspace=True), path, columns)
    except OSError as error:
        raise WorldError(f"{path}: cannot be read ({error.strerror}); give the path of a CSV file.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise WorldError(f"{path}: is not a CSV text file ({error}).") from error


def _read(rows: csv.DictReader[str], path: Path, columns: Mapping[str, Reader]) -> dict[str, list[Any]]:
    header = [name.strip() for name in rows.fieldnames or []]
    rows.fieldnames = header
    for name in columns:
        if name not in header:
            expected = ",".join(columns)
            raise WorldError(f"{path}: has no column {name!r}; expected {expected}.{nearest(name, header)}")
    found: dict[str, list[Any]] = {name: [] for name in columns}
    for row in rows:
        for name, reader in columns.items():
            cell = row[name]
            try:
                if cell is None:
                    raise ValueError("the line is too short")
                found[name].append(reader(cell.strip()))
            except ValueError as error:
                raise WorldError(f"{path}, line {rows.line_num}: {name} = {cell!r}: {error}.") from error
    if not next(iter(found.values())):
        raise WorldError(f"{path}: has no rows.")
    return found


def number(low: float = -math.inf, high: float = math.inf, *, open_low: bool = False) -> Reader:
    """Return a reader of numbers in [low, high] (``open_low``: above low)."""

    def reader(cell: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not (low < value if open_low else low <= value) or value > high:
            raise ValueError(f"must be a number {'>' if open_low else '≥'} {low:g} and ≤ {high:g}")
        return value

    return reader


#: Reads a virtual time in seconds.
clock = number(0, 1e15)


def index(count: int, what: str) -> Reader:
    """Return a reader of whole numbers 0 … count-1."""

    def reader(cell: str) -> int:
        if not cell.isdecimal() or int(cell) >= count:
            raise ValueError(f"must be the number of a {what}, 0 … {count - 1}")
        return int(cell)

    return reader


def word(*known: str) -> Reader:
    """Return a reader of one of a few words."""

    def reader(cell: str) -> str:
        if cell not in known:
            raise ValueError(f"must be one of {', '.join(known)}{nearest(cell, known)}")
        return cell

    return reader


@dataclass(frozen=True, eq=False)
class Steps:
    """Values per device that hold from a time to the device's next: rows sorted by device, then time.

    Before its first time a device has its first value. A trace of M devices stands for more: device i follows the
    trace's device i mod M.
    """

    offsets: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]

    @staticmethod
    def read(path: Path, n_devices: int, cycle: bool, columns: Mapping[str, Reader]) -> Steps:
        """Read a file ``device,time,…``, whose other columns are the values; it may lack devices where it cycles."""
        device = index(1 << 62 if cycle else n_devices, "device")
        rows = read(path, {"device": device, "time": clock, **columns})
        devices = np.asarray(rows["device"], dtype=np.int64)
        if cycle:
            named, devices = np.unique(devices, return_inverse=True)
            n_devices = len(named)
        values = list(zip(*(rows[name] for name in columns), strict=True))
        return Steps.of(path, n_devices, devices, rows["time"], values)

    @staticmethod
    def of(path: Path, n_devices: int, devices: ArrayLike, times: list[float], values: list[Any]) -> Steps:
        """Sort a trace's rows; every device must have at least one, and no time twice."""
        device, time = np.asarray(devices, dtype=np.int64), np.asarray(times, dtype=np.float64)
        order = np.lexsort((time, device))
        device, time = device[order], time[order]
        counts = np.bincount(device, minlength=n_devices)
        if not counts.all():
            missing = int(np.argmin(counts))
            raise WorldError(
                f"{path}: has no row for device {missing}; a trace needs every device 0 … {n_devices - 1} "
                "(or set cycle = true to let its devices stand for several)."
            )
        same = (device[1:] == device[:-1]) & (time[1:] == time[:-1])
        if same.any():
            at = int(np.argmax(same))
            raise WorldError(f"{path}: device {device[at]} has two rows for time {time[at]:g}; keep one.")
        offsets = np.concatenate(([0], np.cumsum(counts)))
        return Steps(offsets, time, np.asarray(values, dtype=np.float64)[order])

    @property
    def n_devices(self) -> int:
        """How many devices the trace has."""
        return len(self.offsets) - 1

    def at(self, device: int, now: float) -> tuple[Any, float]:
        """Return a device's value (a number or a row of numbers) now, and until when it holds."""
        device %= self.n_devices
        first, last = int(self.offsets[device]), int(self.offsets[device + 1])
        row = first + int(np.searchsorted(self.times[first:last], now, side="right")) - 1
        until = float(self.times[row + 1]) if row + 1 < last else math.inf
        return self.values[max(row, first)], until
