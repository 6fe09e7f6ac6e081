"""Numbers that a method wrote down as it went (α, merge weights, thresholds …), drawn over rounds.

A method notes them as events: any field of an event that is a number, a list of numbers or a table of numbers is a
series of its own. Nothing here knows a method.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from espalier.record.run import Run
from espalier.report.budget import called
from espalier.report.figures import SCALE, Figure, axis, colour, dash, figure, numbers, thin, time_unit
from espalier.report.reading import Names

#: events of the simulator and of the tree; they have places of their own in a report
KNOWN = frozenset((
    "dropped", "late", "unreachable", "gone", "came", "drift", "rejected", "stalled", "taken_over",
    "similarity", "elected", "joined",
))  # fmt: skip
#: fields that say where and when, not what
_PLACE = frozenset(("node", "child", "round", "clock", "time", "cohort", "device"))
#: lines in one figure; more would be a tangle and become rows of a heatmap, at most so many
MOST_LINES, MOST_ROWS, MOST_POINTS, MOST_FIGURES = 4, 120, 200, 8

#: plain words for what the bundled methods note; what has none here is called as it was noted
SPOKEN = {
    "agreement": "agreement of its update with the others'",
    "alpha": "weight of own and others' models",
    "arranged: accepted": "exchanges between clusters that were accepted",
    "arranged: angle_after": "mean angle between devices of a cluster, after the search",
    "arranged: angle_before": "mean angle between devices of a cluster, before the search",
    "arranged: angles": "angle between devices of a cluster",
    "arranged: crowded": "devices in a cluster because no further one may be opened",
    "arranged: moved": "devices that changed their cluster",
    "arranged: seconds": "round time of a cluster (s)",
    "arranged: settled": "clusters that have come to rest",
    "arranged: splits": "clusters that were split",
    "arranged: t_g": "length of a global round (s)",
    "discrepancy": "distance of its subtree's labels from all",
    "frequency: updates": "updates per round that children are given",
    "interval: seconds": "time after which a round closes (s)",
    "limit: accuracy": "accuracy that the staleness limit is chosen by",
    "limit: limit": "rounds that a report may be late",
    "mismatch": "distance between gradients",
    "split: greatest": "greatest norm of an update",
    "split: mean": "norm of the mean update",
    "stale: staleness": "rounds that a report was late",
    "statistic": "what a device told of its labels",
    "weights": "weight in the merge",
}

#: by label: when (virtual seconds), in which round if the event says so, and the number
Series = dict[str, list[tuple[float, Any, float]]]


def noted(run: Run) -> dict[str, Figure]:
    """Return a figure for every kind of number that the method noted, by title."""
    names = Names.of(run)
    found: dict[str, Series] = {}
    kinds = ", ".join("?" * len(KNOWN))
    rows = run.query(f"SELECT time, kind, node, data FROM events WHERE kind NOT IN ({kinds}) ORDER BY rowid", *KNOWN)
    for time, kind, node, text in rows:
        facts = json.loads(text)
        if not isinstance(facts, Mapping):
            continue
        at = facts.get("round", facts.get("clock"))
        who = facts.get("node", node)
        where = names.name(who) if isinstance(who, int) else ""
        for field, key, value in _numbers(facts):
            title = kind if field in ("value", "values", kind) else f"{kind}: {field}"
            label = " · ".join(part for part in (where, _called(key, names)) if part) or kind
            found.setdefault(title, {}).setdefault(label, []).append((time, at, value))
    titles = [t for t in sorted(found) if _worth(found[t])][:MOST_FIGURES]
    clock = called("time", bool(run.meta("deployed")))
    return {t: _figure(t, _labelled({k: found[t][k] for k in sorted(found[t], key=_by_number)}), clock) for t in titles}


def _numbers(facts: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield (field, key within it, number)."""
    for field, value in facts.items():
        if field in _PLACE:
            continue
        if isinstance(value, Mapping):
            pairs: list[tuple[str, Any]] = [(str(k), v) for k, v in value.items()]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            # whole numbers in a list name nodes more often than they measure something
            pairs = [(str(i) if len(value) > 1 else "", v) for i, v in enumerate(value) if isinstance(v, float)]
        else:
            pairs = [("", value)]
        for key, number in pairs:
            if isinstance(number, int | float) and not isinstance(number, bool):
                yield field, key, float(number)


def _called(key: str, names: Names) -> str:
    """Return a table's key for people: keys that are addresses of nodes get the node's name."""
    return names.name(int(key)) if key.isdigit() and int(key) >= names.devices else key


def _by_number(label: str) -> list[tuple[int, str]]:
    """Return a key that puts "device 2" before "device 10"."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", label)]


def _labelled(series: Series) -> Series:
    """Leave out who noted the numbers where all are one node's, and of nodes or things that have names."""
    who = {label.partition(" · ")[0] for label in series}
    rest = [label.partition(" · ")[2] for label in series]
    if len(who) > 1 or any(not part or part.isdigit() for part in rest):
        return series
    return dict(zip(rest, series.values(), strict=True))


def _worth(series: Series) -> bool:
    """Tell whether there is anything to see: not one and the same number everywhere."""
    return len({value for points in series.values() for *_, value in points}) > 1


def _figure(title: str, series: Series, clock: str) -> Figure:
    whole = [at for points in series.values() for _, at, _ in points]
    unit, size = time_unit(max(time for points in series.values() for time, *_ in points))
    if all(isinstance(at, int | float) for at in whole):
        horizontal, word = axis("round of the node", None), "round %{x}"
        lines = {k: [(float(at or 0), value) for _, at, value in points] for k, points in series.items()}
    else:
        horizontal, word = axis(clock, unit), f"%{{x}} {unit}"
        lines = {k: [(time / size, value) for time, _, value in points] for k, points in series.items()}
    title = SPOKEN.get(title, title)
    if len(lines) > MOST_LINES:
        return _heatmap(title, lines, horizontal, word)
    data: list[dict[str, Any]] = []
    for number, (label, points) in enumerate(lines.items()):
        kept = [points[i] for i in thin(len(points), MOST_POINTS).tolist()]
        data.append({
            "type": "scatter", "mode": "lines" if len(kept) > 1 else "markers", "name": escape(label),
            "x": numbers([x for x, _ in kept], 6), "y": numbers([y for _, y in kept]),
            "line": {"color": colour(number), "dash": dash(number)}, "marker": {"color": colour(number)},
            "hovertemplate": f"{escape(label)}<br>{word}: %{{y}}<extra></extra>", "showlegend": True,
        })  # fmt: skip
    return _titled(title, data, horizontal, axis("", None), height=340, top=64)


def _bars(title: str, values: dict[str, float]) -> Figure:
    """Draw what was noted once, of every node."""
    bars = {
        "type": "bar", "x": [escape(label) for label in values], "y": numbers(list(values.values())),
        "marker": {"color": colour(0)}, "hovertemplate": "%{x}: %{y}<extra></extra>", "showlegend": False,
    }  # fmt: skip
    return _titled(title, [bars], axis("", None, type="category"), axis("", None), height=340)


def _titled(
    title: str, data: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], *, height: int, top: int = 40
) -> Figure:
    """Return a figure with its title above it, where a long one has room."""
    head = {"text": escape(title), "x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container"}
    head |= {"yanchor": "top", "pad": {"t": 8, "l": 4}, "font": {"size": 13}}
    return figure(data, x, y, height=height, title=head, margin={"l": 56, "r": 16, "t": top, "b": 48})


def _heatmap(title: str, lines: dict[str, list[tuple[float, float]]], x: dict[str, Any], word: str) -> Figure:
    labels = [list(lines)[i] for i in thin(len(lines), MOST_ROWS).tolist()]
    grid = np.unique([at for label in labels for at, _ in lines[label]])
    if len(grid) == 1:
        return _bars(title, {label: lines[label][0][1] for label in labels})
    grid = grid[thin(len(grid), MOST_POINTS)]
    table = np.full((len(labels), len(grid)), np.nan)
    for row, label in enumerate(labels):
        known = dict(lines[label])
        table[row] = [known.get(at, np.nan) for at in grid.tolist()]
    picture = {
        "type": "heatmap", "x": numbers(grid, 6), "y": [escape(label) for label in labels], "colorscale": SCALE,
        "z": [numbers(row, 4) for row in table], "hovertemplate": f"%{{y}}<br>{word}: %{{z}}<extra></extra>",
        "colorbar": {"title": {"text": ""}, "thickness": 12},
    }  # fmt: skip
    vertical = axis("", None, type="category", autorange="reversed")
    row_height = 14 if len(labels) > 16 else 22
    return _titled(title, [picture], x, vertical, height=min(900, 130 + max(110, row_height * len(labels))))
