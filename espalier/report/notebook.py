"""Runs in a notebook: small HTML without scripts, the ranking as a frame, the verdict as text, ``plotly`` figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from espalier.core.errors import ConfigError, RunError
from espalier.record.measures import human_bytes, human_seconds, spoken
from espalier.record.run import Run
from espalier.report.budget import called, reached
from espalier.report.curves import curves
from espalier.report.figures import colour, to_plotly
from espalier.report.formats import BEHIND, gap_text
from espalier.report.groups import compare
from espalier.report.heatmaps import labels_per_device, labels_per_edge
from espalier.report.heatmaps import similarity as similarity_of
from espalier.report.notes import noted
from espalier.report.page import report, save
from espalier.report.reading import Reading, read, readings_of
from espalier.report.spread import edges_over_time, over_time
from espalier.report.standings import Place
from espalier.report.timeline import timeline as timeline_of
from espalier.report.tree import dressed
from espalier.report.tree import tree as tree_of
from espalier.report.verdict import Verdict, judged, measures, verdicts

_CELL = "padding:2px 10px 2px 0;text-align:right;white-space:nowrap"
_LEFT = "padding:2px 10px 2px 0;text-align:left;white-space:nowrap"
#: pixels of a small picture
_WIDE, _HIGH = 180, 16


def run_html(run: Run) -> str:
    """Return a run as a card: what it is, how it stands or ended, its score over time, and what it has used."""
    reading = read(run)
    if reading is None or not len(reading.frame):
        return f"<div><b>{escape(str(run.meta('label') or 'Run'))}</b>: not evaluated yet</div>"
    names = measures(compare([reading]).groups)
    name = names[0] if names else f"{reading.score}_device"
    used = {"rounds": f"{reading.rounds}", called("time", reading.deployed): human_seconds(reading.time)}
    if (steps := reached(reading, "steps")) == steps:
        used["local steps"] = f"{steps:,.0f}"
    if (sent := reached(reading, "bytes")) == sent:
        used["sent"] = human_bytes(sent)
    facts = " · ".join(f"{value} {key}" if key == "rounds" else f"{key} {value}" for key, value in used.items())
    ended = f"ended early: {reading.stalled}" if reading.stalled else reading.state
    where = "" if reading.directory is None else f" · {escape(str(reading.directory))}"
    return (
        f'<div style="margin:4px 0"><b>{escape(reading.title)}</b> <span style="opacity:.7">{escape(ended)}</span><br>'
        f"{_curve(reading, name)} {escape(spoken(name))} <b>{reached(reading, name):.3f}</b><br>"
        f'<span style="opacity:.7">{escape(facts)}{where}</span></div>'
    )


def comparison_html(runs: Sequence[Run]) -> str:
    """Return a comparison as its sentence and its ranking."""
    found = verdicts(compare(readings_of(runs)))
    if not found:
        return f"<div>{len(runs)} runs, none of them evaluated yet</div>"
    return "".join(_block(v) for v in found)


def _block(found: Verdict) -> str:
    columns = found.columns[: found.main]
    titles = [columns[0].title, "", BEHIND, *(c.title for c in columns[1:])]
    heads = "".join(
        f'<th style="{_CELL};font-weight:500;opacity:.7;white-space:normal;vertical-align:bottom">{escape(t)}</th>'
        for t in titles
    )
    values = [v for p in found.places for v in p.cells[0].known]
    ends = (min(values), max(values)) if values else (0.0, 1.0)
    rows = []
    for place in found.places:
        texts = [cell.text(c) for c, cell in zip(columns, place.cells[: found.main], strict=True)]
        cells = [escape(texts[0]), _dots(place, ends), escape(f"{gap_text(place.gap)} {place.mark}".strip())]
        cells += [escape(t) for t in texts[1:]]
        line = "".join(f'<td style="{_CELL}">{c}</td>' for c in cells)
        name = f"{place.rank or '–'}&ensp;{escape(place.group.label)}{' (ended early)' if place.ended else ''}"
        rows.append(f'<tr style="background:none"><th style="{_LEFT};font-weight:500">{name}</th>{line}</tr>')
    notes = "".join(f'<div style="opacity:.8">{escape(line)}</div>' for line in found.warnings)
    style = "border-collapse:collapse;margin:6px 0;font:inherit;color:inherit"
    return (
        f'<div style="margin:4px 0;max-width:80em"><b>{escape(found.headline)}</b><div>{escape(found.detail)}</div>'
        f'<table style="{style}"><thead><tr><th style="{_LEFT}"></th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>{notes}</div>"
    )


def _dots(place: Place, ends: tuple[float, float]) -> str:
    """Draw a method's score on the scale that all rows share: a stroke per seed, a dot for their mean."""
    low, high = ends
    cell, tone = place.cells[0], colour(place.group.number)
    if not cell.known:
        return ""
    at = [8 + (_WIDE - 16) * (v - low) / (high - low or 1.0) for v in (*cell.known, cell.mean)]
    strokes = "".join(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="12" stroke="{tone}"/>' for x in at[:-1])
    middle = f'<circle cx="{at[-1]:.1f}" cy="8" r="4" fill="{tone}"/>'
    rule = f'<line x1="0" x2="{_WIDE}" y1="8" y2="8" stroke="currentColor" stroke-opacity=".15"/>'
    return f'<svg width="{_WIDE}" height="{_HIGH}" style="vertical-align:middle">{rule}{strokes}{middle}</svg>'


def _curve(reading: Reading, name: str) -> str:
    """Draw a score from the first evaluation to the last."""
    x, y = reading.columns["time"], reading.columns.get(name, np.zeros(0))
    x = x if x[-1] > x[0] else np.arange(len(x), dtype=float)
    known = np.isfinite(y) if len(y) else np.zeros(0, dtype=bool)
    if known.sum() < 2:
        return ""
    x, y = x[known], y[known]
    across, up = (x - x[0]) / (x[-1] - x[0] or 1.0), (y - y.min()) / (np.ptp(y) or 1.0)
    points = " ".join(f"{2 + 176 * a:.1f},{30 - 26 * u:.1f}" for a, u in zip(across, up, strict=True))
    line = f'<polyline points="{points}" fill="none" stroke="{colour(0)}" stroke-width="1.5"/>'
    return f'<svg width="{_WIDE}" height="32" style="vertical-align:middle">{line}</svg>'


def verdict_text(runs: Iterable[Run], measure: str | None, budget: str | None) -> str:
    """Return what leads, as text, and what keeps the comparison from being whole; a paragraph per setting."""
    return "\n\n".join(
        "\n".join((v.sentence, *v.warnings)) for v in judged(compare(readings_of(runs)), measure, budget)
    )


def ranking(runs: Iterable[Run], measure: str | None, budget: str | None) -> pd.DataFrame:
    """Return the ranking as a frame: a row per method with the measure's mean, deviation and gap, then the others."""
    rows = []
    for found in judged(compare(readings_of(runs)), measure, budget):
        for place in found.places:
            gap, first = place.gap, place.cells[0]
            row = {
                "rank": place.rank, "method": place.group.label, "seeds": len(first.by_seed),
                found.measure: first.mean, f"{found.measure}_std": first.std,
                "behind": 0.0 if gap is None else gap.mean, "behind_low": None if gap is None else gap.low,
                "behind_high": None if gap is None else gap.high, "p": place.p,
                "told_apart": None if place.p is None else not place.tied,
            }  # fmt: skip
            row |= {c.key: cell.mean for c, cell in list(zip(found.columns, place.cells, strict=True))[1:]}
            rows.append(row)
    return pd.DataFrame(rows)


def write(runs: Iterable[Run], path: Path) -> Path:
    """Write the report of runs, kept in directories or in memory; return its path."""
    readings = readings_of(runs)
    if not any(len(r.frame) for r in readings):
        raise RunError("No run has been evaluated yet: there is nothing to report.")
    save(report(readings), path)
    return path


def accuracy(run: Run, x: str, measure: str | None) -> Any:
    """Draw a score against ``round``, ``time`` or ``bytes``."""
    return to_plotly(curves(compare([_reading(run)]), x, measure))


def devices(run: Run) -> Any:
    """Draw how the score spreads over devices."""
    return to_plotly(_there(over_time(run, _reading(run).score), "an evaluation of its devices"))


def edges(run: Run) -> Any:
    """Draw every edge's score."""
    return to_plotly(_there(edges_over_time(run, _reading(run).score), "an evaluation of its edges"))


def tree(run: Run, by: str) -> Any:
    """Draw the tree with a slider over time."""
    return to_plotly(dressed(tree_of(run), by))


def timeline(run: Run, start: float, stop: float | None) -> Any:
    """Draw who did what in a window of virtual time."""
    return to_plotly(timeline_of(run, start, stop))


def labels(run: Run, per: str) -> Any:
    """Draw the labels that every edge or every device holds."""
    if per not in ("edge", "device"):
        raise ConfigError(f"per = {per!r}: must be edge or device.")
    return to_plotly(_there(labels_per_edge(run) if per == "edge" else labels_per_device(run), "labels"))


def similarity(run: Run) -> Any:
    """Draw the similarity of devices as the method measured it."""
    return to_plotly(_there(similarity_of(run), "a similarity of devices in its record"))


def notes(run: Run) -> dict[str, Any]:
    """Draw the numbers that the method noted, a figure for each, by title."""
    return {title: to_plotly(found) for title, found in noted(run).items()}


def _reading(run: Run) -> Reading:
    found: Reading = _there(read(run), "a description of itself yet")
    return found


def _there(found: Any, what: str) -> Any:
    if found is None:
        raise RunError(f"The run has not {what}: there is nothing to draw.")
    return found
