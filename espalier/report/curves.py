"""Scores against rounds, virtual time and bytes: the mean over seeds with a band, every seed's value on hover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from espalier.core.errors import ConfigError, nearest
from espalier.report.figures import Figure, axis, byte_unit, figure, numbers, thin, time_unit
from espalier.report.groups import Comparison, Group
from espalier.report.palette import colour, dash, faded
from espalier.report.reading import Reading

Floats = NDArray[np.float64]

#: what the horizontal axis may be: column of the frame, by the switch's name
AXES = {"round": "round", "time": "time", "bytes": "bytes"}
_SCOPES = {
    "global": "the root's model, whole test set",
    "edge": "mean over edges",
    "device": "mean over devices",
    "device_worst": "mean of the worst tenth of devices",
    "edge_worst": "mean of the worst tenth of edges",
    "device_std": "standard deviation over devices",
}
_NAMES = {"acc": "accuracy", "miou": "mean IoU"}
_UNITS = {"acc": "fraction", "miou": "fraction", "loss": "mean per sample"}


def measures(comparison: Comparison) -> dict[str, str]:
    """Return what can be drawn, the main score first: metric → how people call it."""
    columns = {c for r in comparison.readings for c in r.frame.columns}
    main = comparison.score
    names = [(main, s) for s in _SCOPES] + [("loss", s) for s in ("global", "edge", "device") if main != "loss"]
    found = {f"{n}_{s}": f"{_NAMES.get(n, n)}: {_SCOPES[s]}" for n, s in names}
    order = {k: v for k, v in found.items() if k in columns}
    preferred = f"{main}_device"
    return {k: order[k] for k in sorted(order, key=lambda k: k != preferred)} if preferred in order else order


def unit_of(measure: str) -> tuple[str, str | None]:
    """Return a metric's name for an axis, and its unit (None: only the task knows it)."""
    name = measure.split("_")[0]
    return _NAMES.get(name, name), _UNITS.get(name)


def curves(comparison: Comparison, x: str = "round", measure: str | None = None) -> Figure:
    """Draw one measure of every group against ``x``: rounds, virtual time or bytes sent."""
    if x not in AXES:
        raise ConfigError(f"x = {x!r}: must be one of {', '.join(AXES)}.{nearest(x, AXES)}")
    known = measures(comparison)
    chosen = measure or next(iter(known), "acc_device")
    if measure is not None and measure not in known:
        raise ConfigError(f"measure = {measure!r}: the runs have {', '.join(known)}.{nearest(measure, known)}")
    found = [(g, [r for r in g.readings if _has(r, chosen)]) for g in comparison.groups]
    bands = [(g, rs, band([_curve(r, x, chosen) for r in rs])) for g, rs in found]
    title, unit, size = _horizontal(x, [b for _, _, b in bands if b is not None])
    data = [t for g, rs, b in bands if b is not None for t in _traces(g, [r.seed for r in rs], b, size, unit)]
    name, of = unit_of(chosen)
    return figure(data, axis(title, unit, rangemode="tozero"), axis(name, of))


def _horizontal(x: str, bands: Sequence[Band]) -> tuple[str, str | None, float]:
    largest = max((float(b.x[-1]) for b in bands), default=0.0)
    if x == "time":
        return ("virtual time", *time_unit(largest))
    if x == "bytes":
        return ("bytes sent over all links", *byte_unit(largest))
    return "global rounds", None, 1.0


def _has(reading: Reading, measure: str) -> bool:
    return measure in reading.frame and bool(reading.frame[measure].notna().any())


def _curve(reading: Reading, x: str, measure: str) -> tuple[Floats, Floats]:
    frame = reading.frame
    y = frame[measure].to_numpy(float)
    column = AXES[x]
    return (frame[column].to_numpy(float) if column in frame else np.zeros(len(y))), y


def _traces(group: Group, seeds: Sequence[int], found: Band, size: float, unit: str | None) -> list[dict[str, object]]:
    tone, label, key = colour(group.number), escape(group.label), f"g{group.number}"
    x = numbers(found.x / size, 6)
    out: list[dict[str, object]] = []
    if len(found.raw) > 1:
        low, high = numbers(found.mean - found.std), numbers(found.mean + found.std)
        edge = {"width": 0, "color": tone}
        shared = {"mode": "lines", "line": edge, "hoverinfo": "skip", "showlegend": False, "legendgroup": key}
        out.append({"type": "scatter", "x": x, "y": low, "name": f"{label}, low", **shared})
        fill = {"fill": "tonexty", "fillcolor": faded(tone, 0.18)}
        out.append({"type": "scatter", "x": x, "y": high, "name": f"{label}, high", **shared, **fill})
        texts = [
            f"± {s:.4f}<br>" + "<br>".join(f"seed {n}: {v:.4f}" for n, v in zip(seeds, column, strict=True))
            for s, column in zip(found.std.tolist(), found.raw.T.tolist(), strict=True)
        ]
    else:
        texts = [f"seed {seeds[0]}"] * len(x)
    line = {"color": tone, "width": 2, "dash": dash(group.number)}
    out.append({
        "type": "scatter", "x": x, "y": numbers(found.mean), "name": label, "legendgroup": key,
        "mode": "lines+markers" if len(x) < 2 else "lines", "line": line,
        "text": texts, "hovertemplate": f"<b>{label}</b><br>at %{{x}} {unit or ''}: "
        "%{y:.4f} %{text}<extra></extra>",
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
