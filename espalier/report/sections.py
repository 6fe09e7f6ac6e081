"""The parts of a page as plain data: the page draws them, from a file or as they come from a run that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from espalier.record.run import Run
from espalier.record.table import human_seconds
from espalier.report import formats, rerun
from espalier.report.curves import AXES, curves, measures
from espalier.report.groups import Comparison
from espalier.report.labels import labels_per_device, labels_per_edge, samples_per_device
from espalier.report.notes import noted
from espalier.report.reading import Reading
from espalier.report.similarity import similarity
from espalier.report.spread import Floats, at_the_end, edges_over_time, over_time
from espalier.report.timeline import material
from espalier.report.tree import tree
from espalier.report.verdict import final, verdict

_SWITCH = {"round": "rounds", "time": "virtual time", "bytes": "bytes"}


@dataclass(frozen=True)
class Room:
    """How much of a run's detail a page has room for: steps of the tree's slider, spans of the timeline."""

    moments: int = 60
    spans: int = 200_000

    @staticmethod
    def shared(runs: int, devices: int) -> Room:
        """Return each run's share where several are shown in detail: together they take two to five megabytes."""
        moments = 80_000 // max(1, runs * min(devices, 1500))
        return Room(max(12, min(60, moments)), (200_000 if runs <= 5 else 120_000) // max(1, runs))


def overview(comparison: Comparison) -> dict[str, Any]:
    """Return the verdict, the state of the runs and the configuration, and whom one may look at in detail."""
    evaluated = any(len(r.frame) for r in comparison.readings)
    return {
        "title": str(comparison.settings[0].experiment.get("name", "runs")) if comparison.settings else "runs",
        "verdict": formats.to_html(verdict(comparison)) if evaluated else "<p>No run has been evaluated yet.</p>",
        "runs": runs_html(comparison.readings),
        "going": any(r.state == "running" for r in comparison.readings),
        "settings": rerun.to_html(comparison),
        "details": [
            {"key": g.face.key, "title": f"{g.label}, seed {g.face.seed}", "colour": g.number}
            for g in comparison.groups
            if len(g.face.frame)
        ],
    }


def curve_section(comparison: Comparison) -> dict[str, Any]:
    """Return the scores' figures for every switch position."""
    found = measures(comparison)
    return {
        "axes": [{"key": k, "title": _SWITCH[k]} for k in AXES],
        "measures": [{"key": k, "title": v} for k, v in found.items()],
        "figures": {f"{x}/{m}": curves(comparison, x, m) for x in AXES for m in found},
    }


def spread_section(comparison: Comparison, devices: dict[str, Floats], edges: dict[str, Floats]) -> dict[str, Any]:
    """Return the spread at the end over devices and over edges."""
    found = {"device": at_the_end(comparison, devices, "device")}
    if any(len(v) for v in edges.values()):
        found["edge"] = at_the_end(comparison, edges, "edge")
    return {"figures": found}


def detail(run: Run, score: str, room: Room) -> dict[str, Any]:
    """Return everything that is shown of a single run."""
    labels = [labels_per_edge(run), labels_per_device(run)]
    figures = {
        "tree": tree(run, room.moments),
        "spread": over_time(run, score),
        "edges": edges_over_time(run, score),
        "similarity": similarity(run),
        "labels": labels[0] or samples_per_device(run),
        "devices": labels[1],
    }
    return {
        "figures": {k: v for k, v in figures.items() if v is not None},
        "notes": [{"title": k, "figure": v} for k, v in noted(run).items()],
        "timeline": material(run, room.spans),
    }


def runs_html(readings: Sequence[Reading]) -> str:
    """Return the table of runs with their progress."""
    rows = []
    for reading in readings:
        stop = reading.experiment.get("stop", {})
        limit = f" of {stop['rounds']}" if stop.get("rounds") else ""
        until = f" of {human_seconds(stop['seconds'])}" if stop.get("seconds") else ""
        name = f"{reading.score}_device"
        value = final(reading, name)
        score = "–" if value != value else f"{value:.3f}"
        bar = f'<progress max="1" value="{reading.progress:.4f}"></progress>'
        advice = ""
        if reading.state == "dead":
            advice = (
                f'<div class="advice">its process has ended; go on with '
                f"<code>espalier resume {escape(str(reading.directory))}</code></div>"
            )
        rows.append(
            f'<tr data-run="{reading.key}" data-state="{reading.state}"><td>{escape(reading.title)}</td>'
            f'<td><span class="state {reading.state}">{reading.state}</span>{advice}</td><td>{bar}</td>'
            f"<td>{reading.rounds}{limit}</td><td>{human_seconds(reading.time)}{until}</td><td>{score}</td></tr>"
        )
    heads = ("run", "state", "progress", "round", "virtual time", "score per device")
    return (
        '<div class="wide"><table class="text"><thead><tr>'
        + "".join(f"<th>{h}</th>" for h in heads)
        + f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
