"""Structured logs: one JSON object per line, on standard error or in a file."""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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

    @contextmanager
    def crashes(self) -> Iterator[None]:
        """Let the interpreter write its stacks here if it crashes in native code, where no exception can tell."""
        mine = not faulthandler.is_enabled()
        if mine:
            faulthandler.enable(self._file)
        try:
            yield
        finally:
            if mine:
                faulthandler.disable()

    def close(self) -> None:
        """Close the file."""
        if self._own:
            self._file.close()
