"""What a live page shows: parts with versions, made from the runs' databases when somebody looks at them."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.core.errors import RunError
from espalier.report.groups import Groups, compare
from espalier.report.page import details_of, dumps, finals
from espalier.report.reading import Reading, directories_of, opened, read
from espalier.report.sections import Room, curve_section, overview, spread_section
from espalier.report.timeline import material

#: a part is made again at most for this share of the time, so that watching does not slow the runs down …
BUSY_SHARE = 0.1
#: … but of what is seen first, nobody waits longer than this for the next picture
PROMPT, MOST_WAIT_SECONDS = ("overview", "curves"), 1.0


@dataclass
class _Part:
    """A part that was announced: its version, since when, how long making it took, and its text once made."""

    version: str
    since: float
    cost: float = 0.0
    made: str = ""
    text: bytes = b""


class LiveParts:
    """The parts of a live page over some directories. Safe to use from several threads."""

    def __init__(self, roots: Sequence[Path], room: Room | None = None) -> None:
        """Show the runs at or below ``roots``, also those that begin later."""
        self.roots = list(roots)
        self.room = room or Room(moments=60, spans=60_000)
        self._lock = threading.Lock()
        self._readings: dict[Path, Reading] = {}
        self._comparison = Groups((), ())
        self._parts: dict[str, _Part] = {}
        self._problems: dict[Path, str] = {}

    def news(self) -> dict[str, str]:
        """Look at the databases; return the version of every part."""
        with self._lock:
            self._look()
            now = time.monotonic()
            for name, version in self._versions().items():
                part = self._parts.get(name)
                if part is None:
                    self._parts[name] = _Part(version, now)
                    continue
                wait = part.cost / BUSY_SHARE
                wait = min(wait, MOST_WAIT_SECONDS) if name in PROMPT else wait
                if part.version != version and now - part.since >= wait:
                    part.version, part.since = version, now
            return {name: part.version for name, part in self._parts.items()}

    def _look(self) -> None:
        found: dict[Path, Reading] = {}
        self._problems = {}
        there = dict.fromkeys(directories_of(self.roots))
        # in the order of appearance: what no experiment planned keeps its place, and so its colour, when others come
        for directory in [d for d in {**self._readings, **there} if d in there]:
            try:
                with opened(directory) as run:
                    reading = read(run, self._readings.get(directory))
            except (RunError, sqlite3.Error, OSError) as error:
                self._problems[directory] = str(error)
                continue
            if reading is not None:
                found[directory] = reading
        if found != self._readings:
            self._readings = found
            self._comparison = compare(list(found.values()))

    def _versions(self) -> dict[str, str]:
        shown = self._comparison
        everything = "|".join(f"{r.key}:{r.stamp}" for r in shown.readings) + "|" + "|".join(self._problems.values())
        whole = hashlib.sha256(everything.encode()).hexdigest()[:12]
        faces = [g.face for g in shown.groups if len(g.face.frame)]
        found = dict.fromkeys(("overview", "curves", "spread") if faces else ("overview",), whole)
        return found | {f"detail/{f.key}": f.stamp for f in faces}

    def part(self, name: str) -> bytes | None:
        """Return a part as JSON, as new as it was announced or newer; None if there is none of that name."""
        with self._lock:
            part = self._parts.get(name)
            if part is None:
                return None
            if part.made != part.version:
                began = time.monotonic()
                found = self._make(name)
                if found is None:
                    return None
                part.text, part.made, part.cost = dumps(found), part.version, time.monotonic() - began
            return part.text

    def window(self, key: str, start: float, stop: float) -> bytes | None:
        """Return the timeline of a run with the spans of a window, as JSON; None if there is no such run."""
        with self._lock:
            reading = self._reading(key)
            if reading is None or reading.directory is None:
                return None
            with opened(reading.directory) as run:
                found = material(run, self.room.spans, (start, stop))
            return None if found is None else dumps(found)

    def _make(self, name: str) -> dict[str, Any] | None:
        makers: dict[str, Callable[[], dict[str, Any]]] = {
            "overview": self._overview,
            "curves": lambda: curve_section(self._comparison),
            "spread": lambda: spread_section(self._comparison, *finals(self._comparison)),
        }
        if name in makers:
            return makers[name]()
        reading = self._reading(name.removeprefix("detail/"))
        if reading is None or reading.directory is None:
            return None
        return details_of(reading, self.room)

    def _overview(self) -> dict[str, Any]:
        notes = tuple(f"{where} is not shown: {why}" for where, why in self._problems.items())
        shown = self._comparison
        return overview(Groups(shown.settings, shown.groups, (*shown.notes, *notes)))

    def _reading(self, key: str) -> Reading | None:
        return next((r for r in self._comparison.readings if r.key == key), None)
