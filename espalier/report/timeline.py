"""The timeline: who trains, sends and waits, and whose updates came late or were given up."""

from __future__ import annotations

import base64
import json
import math
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.address import host_of
from espalier.core.errors import ConfigError
from espalier.record.run import Run
from espalier.report.budget import called
from espalier.report.figures import AWAY, LIGHT, WAITING, Figure, axis, figure, numbers, thin, time_unit
from espalier.report.reading import Names
from espalier.report.spans import STATES, Spans, hosts_shown, raster, read_spans
from espalier.report.tree_history import absences

#: colours of the states, in their order
COLOURS = (WAITING[0], LIGHT[0], LIGHT[4], LIGHT[1], LIGHT[5], AWAY[0])
#: events that are marked on the timeline: how they are called and their symbol
MARKS = {
    "dropped": ("update dropped", "x"),
    "late": ("update late, kept", "triangle-right-open"),
    "unreachable": ("not reachable", "cross-open"),
    "gone": ("left", "triangle-down-open"),
    "came": ("came", "triangle-up-open"),
}
#: marks of one kind that are drawn; of more, evenly chosen ones
MOST_MARKS = 1500
#: parts into which the whole run is divided in a report
OVERVIEW_BINS = 1000


def end_of(run: Run) -> float:
    """Return when the last thing known of a run ends, in virtual seconds."""
    rows = run.query(
        "SELECT max(coalesce((SELECT max(stop) FROM spans), 0), coalesce((SELECT max(time) FROM metrics), 0))"
    )
    return float(rows[0][0])


def timeline(run: Run, start: float = 0.0, stop: float | None = None, bins: int = 1200) -> Figure:
    """Draw a window of virtual time, seconds: a row per node, coloured by what it did for most of each part."""
    end = end_of(run)
    until = end if stop is None else stop
    if not start < until:
        raise ConfigError(
            f"start = {start:g}, stop = {until:g}: a window must end after it starts (the run has {end:g} s)."
        )
    names = Names.of(run)
    hosts = hosts_shown(run, names)
    rows = [names.name(h) for h in hosts]
    spans = read_spans(run, hosts, start, until)
    picture = raster(spans, _rows(absences(run), hosts), len(rows), start, until, bins)
    unit, size = time_unit(until)
    edges = (start + (until - start) * (np.arange(bins) + 0.5) / bins) / size
    data: list[dict[str, Any]] = [{
        "type": "heatmap", "x": numbers(edges, 7), "y": rows, "z": picture.tolist(), "zmin": 0, "zmax": len(STATES) - 1,
        "colorscale": scale(), "showscale": False, "hovertemplate": "%{y} at %{x} " + unit + "<extra></extra>",
    }]  # fmt: skip
    data += [legend_entry(n) for n in range(len(STATES))]
    for kind, found in marks(run, hosts).items():
        title, shape = MARKS[kind]
        here = [i for i, t in enumerate(found["time"]) if start <= t <= until]
        if here:
            data.append({
                "type": "scatter", "mode": "markers", "name": title, "x": [found["time"][i] / size for i in here],
                "y": [rows[found["row"][i]] for i in here], "text": [found["text"][i] for i in here],
                "marker": {"symbol": shape, "size": 8, "color": LIGHT[3]}, "hovertemplate": "%{text}<extra></extra>",
            })  # fmt: skip
    vertical = axis("node", None, type="category", autorange="reversed")
    return figure(data, axis(called("time", bool(run.meta("deployed"))), unit), vertical, height=height(len(rows)))


def height(rows: int) -> int:
    """Return the height of a timeline, pixels."""
    return int(min(1400, 170 + max(4 * rows, min(14 * rows, 560), 240)))


def scale() -> list[list[Any]]:
    """Return the states' colours as a scale of steps."""
    n = len(STATES)
    return [[x, c] for i, c in enumerate(COLOURS) for x in (i / n, (i + 1) / n)]


def legend_entry(state: int) -> dict[str, Any]:
    """Return a trace without points that explains a colour."""
    return {
        "type": "scatter", "x": [None], "y": [None], "mode": "markers", "name": STATES[state], "hoverinfo": "skip",
        "marker": {"symbol": "square", "size": 11, "color": COLOURS[state]},
    }  # fmt: skip


def marks(run: Run, hosts: list[int]) -> dict[str, dict[str, list[Any]]]:
    """Return what happened to whom: by kind, its times (s), rows and texts."""
    place = {h: i for i, h in enumerate(hosts)}
    kinds = ", ".join("?" * len(MARKS))
    rows = run.query(f"SELECT time, kind, node, data FROM events WHERE kind IN ({kinds}) ORDER BY rowid", *MARKS)
    found: dict[str, list[tuple[float, int, str]]] = {}
    for time, kind, node, text in rows:
        facts = json.loads(text)
        host = host_of(facts["child"]) if isinstance(facts.get("child"), int) else node
        if host in place:
            words = ", ".join(f"{k} {v}" for k, v in facts.items() if k not in ("node", "child"))
            found.setdefault(kind, []).append((time, place[host], escape(f"{MARKS[kind][0]} at {time:.6g} s: {words}")))
    out = {}
    for kind, items in found.items():
        kept = [items[i] for i in thin(len(items), MOST_MARKS).tolist()]
        out[kind] = {"time": [t for t, _, _ in kept], "row": [r for _, r, _ in kept], "text": [x for _, _, x in kept]}
    return out


def _rows(away: list[tuple[int, float, float]], hosts: list[int]) -> list[tuple[int, float, float]]:
    place = {h: i for i, h in enumerate(hosts)}
    return [(place[h], a, b) for h, a, b in away if h in place]


def material(run: Run, most: int, window: tuple[float, float] | None = None) -> dict[str, Any] | None:
    """Return what the page draws its timeline from; None if the run recorded no spans.

    The whole run is there in :data:`OVERVIEW_BINS` parts; span by span there is a window of at most ``most`` spans,
    from the start of the run (or of ``window``) on. Times are whole ticks, a millionth of the run or less.
    """
    if not run.query("SELECT 1 FROM spans WHERE stop > start LIMIT 1"):
        return None
    names = Names.of(run)
    hosts = hosts_shown(run, names)
    end = end_of(run)
    away = _rows(absences(run), hosts)
    spans = read_spans(run, hosts)
    start, stop = window or (0.0, end)
    detail = spans.within(start, stop)
    if len(detail) > most:
        stop = float(detail.start[most])
        detail = detail.only(slice(0, most))
    tick = 10.0 ** (math.floor(math.log10(max(end, 1e-9))) - 6)
    return {
        "rows": [names.name(h) for h in hosts],
        "leaves": [names.is_device(h) for h in hosts],
        "clock": called("time", bool(run.meta("deployed"))),
        "hidden": names.devices - sum(h < names.devices for h in hosts),
        "end": end,
        "height": height(len(hosts)),
        "states": [{"name": n, "colour": c} for n, c in zip(STATES, COLOURS, strict=True)],
        "overview": {"bins": OVERVIEW_BINS, "data": _packed(raster(spans, away, len(hosts), 0.0, end, OVERVIEW_BINS))},
        "window": [start, stop],
        "spans": _ticks(detail, tick),
        "tick": tick,
        "away": away,
        "marks": {k: {"title": MARKS[k][0], "symbol": MARKS[k][1], **m} for k, m in marks(run, hosts).items()},
    }


def _ticks(spans: Spans, tick: float) -> dict[str, str]:
    start = np.round(spans.start / tick)
    length = np.maximum(1, np.round(spans.stop / tick) - start)
    return {
        "row": _packed(spans.row.astype("<i2")),
        "state": _packed(spans.state),
        "start": _packed(np.diff(start, prepend=0.0).astype("<i4")),
        "length": _packed(length.astype("<i4")),
        "other": _packed(spans.other.astype("<i2")),
    }


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()
