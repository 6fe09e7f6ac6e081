"""The tree over time, from the record: who reported to whom, in which group, and who was there, at chosen moments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from espalier.core.address import Address
from espalier.record.run import Run
from espalier.report.reading import Names


@dataclass(frozen=True)
class Moment:
    """The tree at a moment.

    Attributes:
        time: Virtual seconds.
        parents: Each node's parent; a node without one is not here.
        groups: Each device's group, where it is not the default.
        away: Hosts that are not there.
        changed: Devices whose parent, group or presence changed since the moment before.
        counts: How many changes of which sort there were since the moment before.
    """

    time: float
    parents: dict[Address, Address]
    groups: dict[Address, str]
    away: frozenset[int]
    changed: frozenset[Address] = frozenset()
    counts: dict[str, int] = field(default_factory=dict)


def moments(run: Run, most: int = 60) -> list[Moment]:
    """Return at most ``most`` moments: every change if they are few, else evenly spaced ones.

    Each is the exact tree of its time, whatever happened between two of them.
    """
    names = Names.of(run)
    changes = _changes(run)
    end = float(run.query("SELECT coalesce(max(time), 0) FROM metrics")[0][0])
    end = max(end, changes[-1][0] if changes else 0.0)
    times = np.unique([0.0, *(c[0] for c in changes if c[0] > 0), end])
    if len(times) > most:
        times = np.linspace(0.0, end, most)
    return list(_replay(_start(run, names), changes, times.tolist(), names))


Change = tuple[float, Address, str, Address | None, str]


def _changes(run: Run) -> list[Change]:
    """Return moves and comings and goings in the order they happened: (time, node, what, parent, group)."""
    found: list[tuple[float, int, int, Change]] = []
    for row, (time, node, parent, group) in enumerate(
        run.query("SELECT time, node, parent, grp FROM moves ORDER BY rowid")
    ):
        found.append((time, 1, row, (time, node, "move", parent, group)))
    for row, (time, kind, node) in enumerate(
        run.query("SELECT time, kind, node FROM events WHERE kind IN ('gone', 'came') ORDER BY rowid")
    ):
        if node is not None:
            found.append((time, 0, row, (time, node, kind, None, "")))
    return [c for *_, c in sorted(found, key=lambda f: f[:3])]


def _start(run: Run, names: Names) -> tuple[dict[Address, Address], set[int]]:
    """Return the parents and the absent hosts of time 0, before the moves that the record has of it.

    A run whose edges report to nobody at the start has a flat tree: its devices report to the root.
    """
    planted = run.query(
        "SELECT 1 FROM moves WHERE time = 0 AND parent IS NOT NULL AND node >= ? LIMIT 1", names.devices
    )
    homes = run.query("SELECT node, edge FROM devices ORDER BY node")
    parents = {n: (names.devices + e if planted else names.cloud) for n, e in homes}
    first = dict(
        run.query("SELECT node, kind FROM (SELECT node, kind, min(rowid) FROM events "
                  "WHERE kind IN ('gone', 'came') AND node IS NOT NULL GROUP BY node)")
    )  # fmt: skip
    away = {n for n, kind in first.items() if kind == "came"}
    return {n: p for n, p in parents.items() if n not in away}, away


def _replay(
    start: tuple[dict[Address, Address], set[int]], changes: list[Change], times: list[float], names: Names
) -> Iterator[Moment]:
    parents, away = start
    groups: dict[Address, str] = {}
    at = 0
    for number, time in enumerate(times):
        before, old = dict(parents), dict(groups)
        gone = set(away)
        while at < len(changes) and changes[at][0] <= time:
            _, node, what, parent, group = changes[at]
            at += 1
            if what == "gone":
                away.add(node)
            elif what == "came":
                away.discard(node)
            else:
                if parent is None:
                    parents.pop(node, None)
                else:
                    parents[node] = parent
                if group:
                    groups[node] = group
                else:
                    groups.pop(node, None)
        yield _moment(time, parents, groups, away, None if number == 0 else (before, old, gone), names)


def _moment(
    time: float,
    parents: dict[Address, Address],
    groups: dict[Address, str],
    away: set[int],
    before: tuple[dict[Address, Address], dict[Address, str], set[int]] | None,
    names: Names,
) -> Moment:
    """Return a moment and what has changed since the one before (None: it is the first)."""
    here = Moment(time, dict(parents), dict(groups), frozenset(away))
    if before is None:
        return here
    old_parents, old_groups, old_away = before
    moved = {n for n in parents.keys() & old_parents.keys() if parents[n] != old_parents[n]}
    regrouped = {n for n in groups.keys() | old_groups.keys() if groups.get(n) != old_groups.get(n)}
    came = {n for n in (parents.keys() - old_parents.keys()) | (old_away - away) if names.is_device(n)}
    left = {n for n in (old_parents.keys() - parents.keys()) | (away - old_away) if names.is_device(n)}
    devices = {n for n in moved if names.is_device(n)}
    counts = {
        "moved": len(devices), "changed cluster": len(regrouped), "left": len(left), "came": len(came),
        "new aggregators": len(set(parents.values()) - set(old_parents.values())),
        "aggregators moved": len(moved - devices),
        "servers down": sum(not names.is_device(n) for n in away - old_away),
    }  # fmt: skip
    changed = frozenset(n for n in devices | regrouped | left | came if names.is_device(n))
    return replace(here, changed=changed, counts={k: v for k, v in counts.items() if v})


def absences(run: Run) -> list[tuple[int, float, float]]:
    """Return when hosts were away: (host, from, until), the end of the run for those that never came back."""
    end = float(run.query("SELECT coalesce(max(time), 0) FROM metrics")[0][0])
    rows = run.query("SELECT time, kind, node FROM events WHERE kind IN ('gone', 'came') ORDER BY rowid")
    since: dict[int, float] = {}
    seen: set[int] = set()
    found = []
    for time, kind, node in rows:
        if node is None:
            continue
        if kind == "gone":
            since.setdefault(node, time)
        else:
            found.append((node, since.pop(node, 0.0 if node not in seen else time), time))
        seen.add(node)
    return [*found, *((node, start, max(start, end)) for node, start in since.items())]
