"""Where datasets are looked for: the given directory, ``$ESPALIER_DATA``, the user's cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from espalier.core.errors import DataError
from espalier.data.loaders.base import Entry, Layout


def cache() -> Path:
    """The user's cache directory of this program, by the platform's custom."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "espalier"


def places(data_dir: Path | None = None) -> list[Path]:
    """Data directories, in the order in which they are looked at."""
    named = os.environ.get("ESPALIER_DATA")
    return [
        *([Path(data_dir).expanduser()] if data_dir else []),
        *([Path(named).expanduser()] if named else []),
        cache(),
    ]


def locate(entry: Entry, data_dir: Path | None = None) -> tuple[Path, Layout] | None:
    """Find the folder and the layout of a dataset, or None."""
    for root in places(data_dir):
        for name in entry.folders:
            for layout in entry.layouts:
                if layout.found(root / name):
                    return root / name, layout
    return None


def missing(entry: Entry, data_dir: Path | None = None) -> DataError:
    """The error for a dataset whose files are nowhere."""
    looked = "\n".join(f"  {root}{os.sep}{{{', '.join(entry.folders)}}}" for root in places(data_dir))
    wanted = "\n".join(f"  {line}" for line in entry.files)
    todo = (
        f"Fetch it with `espalier data fetch {entry.name}`, or point --data-dir or $ESPALIER_DATA at the folder."
        if entry.sources
        else f"{entry.by_hand} `espalier data fetch {entry.name}` repeats these steps."
    )
    return DataError(f"Dataset {entry.name!r} was not found.\nLooked in\n{looked}\nfor any of\n{wanted}\n{todo}")
