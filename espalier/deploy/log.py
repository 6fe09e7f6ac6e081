"""Structured logs: one JSON object per line, on standard error or in a file."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

LEVELS = ("debug", "info", "warning", "error")


class Log:
    """Writes events with fields."""

    def __init__(self, node: str, path: Path | None = None, level: str = "info") -> None:
        self._node = node
        self._least = LEVELS.index(level)
        self._file: TextIO = sys.stderr if path is None else open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._own = path is not None

    def __call__(self, event: str, level: str = "info", **fields: Any) -> None:
        """Write one line."""
        if LEVELS.index(level) < self._least:
            return
        line = {"time": round(time.time(), 3), "level": level, "node": self._node, "event": event, **fields}
        self._file.write(json.dumps(line, default=str) + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._own:
            self._file.close()
