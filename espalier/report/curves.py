"""Scores against virtual time, rounds, local steps and bytes: the mean over seeds with a band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import ConfigError, nearest
from espalier.record.measures import SCOPES, other_scores, spoken
from espalier.report.budget import called
from espalier.report.figures import (
    Figure,
    axis,
    byte_unit,
    colour,
    dash,
    faded,
    figure,
    numbers,
    symbol,
    thin,
    time_unit,
)
from espalier.report.groups import Group, Groups
from espalier.report.reading import Reading

Floats = NDArray[np.float64]

#: what the horizontal axis may be: column of the frame → how it is called
AXES = {"time": "virtual time", "round": "global rounds", "steps": "local steps", "bytes": "bytes sent over all links"}


def axes_of(groups: Groups) -> list[str]:
    """Return what scores of some runs can be drawn against: what at least one of them has used."""
    return [x for x in AXES if any(x in r.frame and r.frame[x].max() > 0 for r in groups.readings)] or ["round"]


def measures(groups: Groups) -> dict[str, str]:
    """Return what can be drawn, the main score per device first: metric → how people call it."""
    columns = {c for r in groups.readings for c in r.frame.columns}
    main = groups.score
    names = [f"{main}_{s}" for s in ("device", *(s for s in SCOPES if s != "device"))]
    names += [f"{other}_{s}" for other in other_scores(sorted(columns)) for s in ("device", "global", "edge")]
    names += [f"loss_{s}" for s in ("global", "edge", "device") if main != "loss"]
    return {name: spoken(name) for name in names if name in columns}


def curves(groups: Groups, x: str = "time", measure: str | None = None) -> Figure:
    """Draw one measure of every group against ``x``: virtual time, rounds, local steps or bytes sent."""
    if x not in AXES:
        raise ConfigError(f"x = {x!r}: must be one of {', '.join(AXES)}.{nearest(x, AXES)}")
    known = measures(groups)
    chosen = measure or next(iter(known), "acc_device")
    if measure is not None and measure not in known:
        raise ConfigError(f"measure = {measure!r}: the runs have {', '.join(known)}.{nearest(measure, known)}")
    found = [(g, [r for r in g.readings if chosen in r.frame and r.frame[chosen].notna().any()]) for g in groups.groups]
    bands = [(g, rs, band([_curve(r, x, chosen) for r in rs])) for g, rs in found]
    title, unit, size = _horizontal(x, [b for _, _, b in bands if b is not None])
    if x == "time":
        title = called(x, any(r.deployed for r in groups.readings))
    data = [t for g, rs, b in bands if b is not None for t in _traces(g, [r.seed for r in rs], b, size, unit)]
    return figure(data, axis(title, unit, rangemode="tozero"), axis(spoken(chosen), None), height=440)


def _horizontal(x: str, bands: Sequence[Band]) -> tuple[str, str | None, float]:
    largest = max((float(b.x[-1]) for b in bands), default=0.0)
    units = {"time": time_unit, "bytes": byte_unit}
    return (AXES[x], *units[x](largest)) if x in units else (AXES[x], None, 1.0)


def _curve(reading: Reading, x: str, measure: str) -> tuple[Floats, Floats]:
    frame = reading.frame
    y = frame[measure].to_numpy(float)
    return (frame[x].to_numpy(float) if x in frame else np.zeros(len(y))), y


def _traces(group: Group, seeds: Sequence[int], found: Band, size: float, unit: str | None) -> list[dict[str, Any]]:
    """Return a group's band and line; the line's ``meta`` has every seed's values, which the page filters."""
    tone, label, key = colour(group.number), escape(group.label), f"g{group.number}"
    x = numbers(found.x / size, 6)
    out: list[dict[str, Any]] = []
    meta = {"group": group.number, "seeds": {str(s): numbers(row) for s, row in zip(seeds, found.raw, strict=True)}}
    if len(found.raw) > 1:
        low, high = numbers(found.mean - found.std), numbers(found.mean + found.std)
        edge = {"width": 0, "color": tone}
        shared = {
            "mode": "lines", "line": edge, "hoverinfo": "skip", "showlegend": False, "legendgroup": key,
            "meta": {"group": group.number},
        }  # fmt: skip
        out.append({"type": "scatter", "x": x, "y": low, "name": f"{label}, low", **shared})
        fill = {"fill": "tonexty", "fillcolor": faded(tone, 0.14)}
        out.append({"type": "scatter", "x": x, "y": high, "name": f"{label}, high", **shared, **fill})
    out.append({
        "type": "scatter", "x": x, "y": numbers(found.mean), "name": label, "legendgroup": key, "mode": "lines+markers",
        "line": {"color": tone, "width": 2, "dash": dash(group.number)}, "meta": meta,
        "marker": {"color": tone, "size": 7, "symbol": symbol(group.number), "maxdisplayed": 7},
        "hovertemplate": f"<b>{label}</b><br>at %{{x}} {unit or ''}: %{{y:.4f}}<extra></extra>",
    })  # fmt: skip
    return out


@dataclass(frozen=True)
class Band:
    """A mean over seeds.

    Attributes:
        x: The grid, [P], ascending.
        raw: Each seed's value there, [S, P].
    """

    x: Floats
    raw: Floats

    @property
    def mean(self) -> Floats:
        """The mean over seeds, [P]."""
        found: Floats = self.raw.mean(0)
        return found

    @property
    def std(self) -> Floats:
        """The standard deviation over seeds, [P]; zeros for one seed."""
        found: Floats = self.raw.std(0, ddof=1) if len(self.raw) > 1 else np.zeros(self.raw.shape[1])
        return found


def band(curves: Sequence[tuple[Floats, Floats]], most: int = 150) -> Band | None:
    """Put curves (x, y) on a common grid of at most ``most`` points; None if they have no stretch in common.

    The grid covers only what all curves cover, so a mean is always one over all seeds. Where all curves are known
    at the same points, these are the grid; elsewhere values between two points lie on the straight line between them.
    """
    known = [_clean(x, y) for x, y in curves]
    if not known or not all(len(x) for x, _ in known):
        return None
    start, stop = max(x[0] for x, _ in known), min(x[-1] for x, _ in known)
    if stop < start:
        return None
    grid = np.unique(np.concatenate([x for x, _ in known]))
    grid = grid[(grid >= start) & (grid <= stop)]
    grid = grid[thin(len(grid), most)]
    return Band(grid, np.stack([np.interp(grid, x, y) for x, y in known]))


def _clean(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the known points, ascending in x; of several at one x, the last."""
    ok = np.isfinite(x) & np.isfinite(y)
    x, y = x[ok], y[ok]
    last = np.append(np.diff(x) > 0, True) if len(x) else np.zeros(0, dtype=bool)
    return x[last], y[last]
