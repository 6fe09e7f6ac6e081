"""Datasets, partitions, and the test distributions of edges and devices.

Begin at `dataset` (`Dataset`); `registry` finds one by name, `partition` deals it out.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache() -> Path:
    """The user's cache directory of this program, by the platform's custom."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "espalier"
