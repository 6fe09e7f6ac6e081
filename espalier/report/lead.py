"""The verdict as a picture: every method's score at the equal budget, and how far it is behind the leader."""

from __future__ import annotations

from html import escape
from textwrap import wrap
from typing import Any

from espalier.record.measures import spoken
from espalier.report.budget import called
from espalier.report.figures import Figure, axis, figure, numbers
from espalier.report.palette import MUTED, colour, symbol
from espalier.report.standings import Place
from espalier.report.verdict import Verdict


def lead(verdict: Verdict) -> Figure:
    """Draw the ranking, best on top: left each seed's score and their mean, right the paired differences."""
    shown = [p for p in verdict.places if p.rank is not None]
    names = [_name(p) for p in shown]
    data = [t for p, name in zip(shown, names, strict=True) for t in (*_scores(p, name), *_gaps(p, name))]
    compared = len(shown) > 1
    held = called(verdict.budget.kind, verdict.budget.real)
    x = axis(f"{spoken(verdict.measure)} at equal {held}", None, domain=[0, 0.56] if compared else [0, 1])
    y = axis("", None, type="category", autorange="reversed", categoryorder="array", categoryarray=names)
    more: dict[str, Any] = {}
    if compared:
        more["xaxis2"] = axis("behind the leader", None, domain=[0.62, 1], rangemode="tozero", zeroline=True)
        more["xaxis2"] |= {"zerolinecolor": MUTED[0], "zerolinewidth": 1.5}
    return figure(data, x, y, height=90 + 36 * max(1, len(shown)), margin={"l": 8, "r": 16, "t": 8, "b": 48}, **more)


def _name(place: Place) -> str:
    return "<br>".join(map(escape, wrap(place.group.label, 24)))


def _scores(place: Place, name: str) -> list[dict[str, Any]]:
    cell, tone = place.cells[0], colour(place.group.number)
    seeds = [s for s, v in cell.by_seed.items() if v == v]
    shared = {"type": "scatter", "mode": "markers", "showlegend": False}
    every = {
        **shared, "x": numbers(cell.known), "y": [name] * len(seeds), "name": f"{name}, every seed",
        "text": [f"seed {s}" for s in seeds], "hovertemplate": f"{name}, %{{text}}: %{{x:.4f}}<extra></extra>",
        "marker": {"color": tone, "size": 6, "symbol": "line-ns-open", "opacity": 0.7},
    }  # fmt: skip
    mean = {
        **shared, "x": numbers([cell.mean]), "y": [name], "name": name, "meta": {"group": place.group.number},
        "hovertemplate": f"{name}: mean %{{x:.4f}}<extra></extra>",
        "marker": {"color": tone, "size": 11, "symbol": symbol(place.group.number)},
    }  # fmt: skip
    return [every, mean] if len(seeds) > 1 else [mean]


def _gaps(place: Place, name: str) -> list[dict[str, Any]]:
    gap = place.gap
    if gap is None:
        return []
    tone = colour(place.group.number)
    trace: dict[str, Any] = {
        "type": "scatter", "mode": "markers", "showlegend": False, "xaxis": "x2", "x": numbers([gap.mean]), "y": [name],
        "name": f"{name}, behind the leader", "hovertemplate": f"{name}: %{{x:.4f}} behind<extra></extra>",
        "marker": {"color": tone, "size": 9, "symbol": symbol(place.group.number)},
    }  # fmt: skip
    if gap.low is not None and gap.high is not None:
        trace["error_x"] = {
            "type": "data", "symmetric": False, "array": numbers([gap.high - gap.mean]),
            "arrayminus": numbers([gap.mean - gap.low]), "color": MUTED[0] if place.tied else tone, "thickness": 1.6,
        }  # fmt: skip
    return [trace]
