"""The catalogue of datasets: find one by name, read it, fetch it, list them all."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from espalier.core.errors import ConfigError, DataError, nearest
from espalier.data import cache
from espalier.data.dataset import Dataset, Kind
from espalier.data.download import Progress, download
from espalier.data.entries import ENTRIES
from espalier.data.loaders.base import DatasetEntry, Layout, checked
from espalier.data.loaders.files import reading

#: what reads a user's own data, by kind; imported when it is used
READERS = {
    "csv": "tables:read_csv",
    "fedscale": "tables:read_fedscale",
    "images": "imagefolder:read_imagefolder",
    "leaf": "leaf:read_leaf",
    "npz": "npz:read_npz",
}
FOLDERS = ("images", "leaf")
#: what ``kind`` may also say of an ``.npz`` file: its task
TASKS = get_args(Kind)


@dataclass(frozen=True)
class Info:
    """One line of the catalogue.

    Attributes:
        name: The dataset's name.
        kind: Its task.
        samples: Training and test samples as published.
        classes: Classes (outputs of a regression).
        files: The layouts that are read, each with its file patterns.
        licence: As the publisher states it.
        citation: Whom to cite.
        embedded: Needs no files.
        fetchable: ``espalier data fetch`` can download it.
        where: The folder it was found in, or None.
    """

    name: str
    kind: Kind
    samples: tuple[int, int]
    classes: int
    files: tuple[str, ...]
    licence: str
    citation: str
    embedded: bool
    fetchable: bool
    where: Path | None


def require(name: str, data_dir: Path | None = None, kind: str | None = None) -> None:
    """Refuse a dataset whose files are nowhere, without reading any; ``kind`` is that of a user's own.

    Raises:
        DataError: There is no such dataset, or its files are missing.
    """
    if _own_data(name, kind) is None:
        entry = find(name)
        if entry.make is None and locate(entry, data_dir) is None:
            raise missing(entry, data_dir)


def load(
    name: str,
    data_dir: Path | None = None,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **options: Any,
) -> Dataset:
    """Read a dataset of the catalogue, or a user's own file or folder.

    Args:
        name: A name of the catalogue (``digits``, ``fashion-mnist``), or the path of a user's own: an ``.npz`` file, a
            ``.csv`` table, a folder with one folder of images per class, a folder of LEAF's json files. The option
            ``kind`` (npz, csv, images, leaf, fedscale) says which, where the path does not.
        data_dir: Looked at first; then ``$ESPALIER_DATA``; then the user's cache.
        mean: Taken from the pixels of each channel (0…1); with ``std``, by which they are divided.
        std: See ``mean``.
        **options: What the dataset's loader takes (``size=64``, ``topics=10``).

    Raises:
        DataError: An unknown name; files that are missing, truncated or of another format.
        ConfigError: An option that the loader does not take.
    """
    found = _read(name, data_dir, options)
    return found if mean is None and std is None else found.standardised(mean or (0.0,), std or (1.0,))


def _read(name: str, data_dir: Path | None, options: dict[str, Any]) -> Dataset:
    own = _own_data(name, options.get("kind"))
    if own is not None and options.get("kind") not in TASKS:
        options.pop("kind", None)
    if own is not None:
        path, reader = own
        taken = checked(reader, options, f"Dataset {name!r}", skip=("path", "folder", "name"))
        with reading(path):
            return reader(path, **taken)
    entry = find(name)
    what = f"Dataset {entry.name!r}"
    if entry.make is not None:
        return entry.make(**checked(entry.make, options, what))
    located = locate(entry, data_dir)
    if located is None:
        raise missing(entry, data_dir)
    folder, layout = located
    taken = checked(layout.read, options, f"{what} ({layout.title})", skip=("folder",))
    with reading(folder):  # a reader names the file itself where it can
        return layout.read(folder, **taken)


def fetch(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Download a dataset's files from the publisher into ``data_dir`` (the user's cache by default).

    Files that are already there and whole are left alone; a broken download is resumed.

    Args:
        name: A name of the catalogue.
        data_dir: Where to; a folder of the dataset's name is made in it.
        progress: Called as ``progress(file, bytes so far, bytes in all or None)``.

    Returns:
        The folder with the files.

    Raises:
        DataError: The dataset cannot be fetched (then it says how to get it), there is no network, or a
            file's checksum is wrong.
    """
    entry = find(name)
    if entry.make is not None:
        raise DataError(f"Dataset {entry.name!r} needs no files: it is made by the program itself. Nothing to fetch.")
    if not entry.sources:
        raise DataError(f"Dataset {entry.name!r} cannot be fetched by a program. {entry.by_hand}")
    folder = (Path(data_dir).expanduser() if data_dir else cache()) / entry.folders[0]
    for source in entry.sources:
        download(source, folder, progress)
    return folder


def catalogue(data_dir: Path | None = None) -> list[Info]:
    """Every dataset, and where it was found."""
    lines = []
    for e in ENTRIES:
        located = locate(e, data_dir)
        lines.append(
            Info(
                name=e.name,
                kind=e.kind,
                samples=e.samples,
                classes=e.classes,
                files=e.files,
                licence=e.licence,
                citation=e.citation,
                embedded=e.make is not None,
                fetchable=bool(e.sources),
                where=located[0] if located else None,
            )
        )
    return lines


def find(name: str) -> DatasetEntry:
    """The catalogue's entry of a name; case, spaces, ``-`` and ``_`` do not matter."""
    for entry in ENTRIES:
        if _plain(name) in {_plain(n) for n in (entry.name, *entry.aliases)}:
            return entry
    names = [e.name for e in ENTRIES]
    raise DataError(
        f"There is no dataset {name!r}; known are {', '.join(names)}, a file (.npz, .csv), and a folder of "
        f"images or of LEAF's files.{nearest(name.lower(), names)}"
    )


def is_own(name: str, kind: str | None = None) -> bool:
    """Tell whether a dataset's name is the path of somebody's own file or folder."""
    return kind in READERS or Path(name).suffix in (".npz", ".csv") or Path(name).expanduser().name != name


def _own_data(name: str, kind: str | None = None) -> tuple[Path, Callable[..., Dataset]] | None:
    """A user's file or folder and what reads it, if the name is the path of one: it has a separator, or an ending."""
    if not is_own(name, kind):
        return None
    path = Path(name).expanduser()
    if kind is None or kind in TASKS:
        leaf = any((path / "train").glob("*.json*"))
        kind = {".npz": "npz", ".csv": "csv"}.get(path.suffix, "leaf" if leaf else "images")
    if kind not in READERS:
        known = ", ".join(READERS)
        raise ConfigError(f"task.dataset.kind = {kind!r}: unknown; known: {known}.{nearest(kind, READERS)}")
    if not (path.is_dir() if kind in FOLDERS else path.is_file()):
        what = "folder" if kind in FOLDERS else "file"
        raise DataError(f"There is no {what} {path}; give the path of an existing {what} ({kind}).")
    module, _, reader = READERS[kind].partition(":")
    found: Callable[..., Dataset] = getattr(importlib.import_module(f"espalier.data.loaders.{module}"), reader)
    return path, found


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def places(data_dir: Path | None = None) -> list[Path]:
    """Data directories, in the order in which they are looked at."""
    named = os.environ.get("ESPALIER_DATA")
    return [
        *([Path(data_dir).expanduser()] if data_dir else []),
        *([Path(named).expanduser()] if named else []),
        cache(),
    ]


def locate(entry: DatasetEntry, data_dir: Path | None = None) -> tuple[Path, Layout] | None:
    """Find the folder and the layout of a dataset, or None."""
    for root in places(data_dir):
        for name in entry.folders:
            for layout in entry.layouts:
                if layout.found(root / name):
                    return root / name, layout
    return None


def missing(entry: DatasetEntry, data_dir: Path | None = None) -> DataError:
    """The error for a dataset whose files are nowhere."""
    looked = "\n".join(f"  {root}{os.sep}{{{', '.join(entry.folders)}}}" for root in places(data_dir))
    wanted = "\n".join(f"  {line}" for line in entry.files)
    todo = (
        f"Fetch it with `espalier data fetch {entry.name}`, or point --data-dir or $ESPALIER_DATA at the folder."
        if entry.sources
        else f"{entry.by_hand} `espalier data fetch {entry.name}` repeats these steps."
    )
    return DataError(f"Dataset {entry.name!r} was not found.\nLooked in\n{looked}\nfor any of\n{wanted}\n{todo}")
