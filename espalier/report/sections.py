"""The parts of a page as plain data: the page draws them, from a file or as they come from a run that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from espalier.record.measures import human_seconds, spoken
from espalier.record.run import Run
from espalier.report import formats, rerun
from espalier.report.budget import BUDGETS, budgets, called, reached
from espalier.report.curves import axes_of, curves, measures
from espalier.report.groups import Groups, choices_of, describe
from espalier.report.heatmaps import labels_per_device, labels_per_edge, samples_per_device, similarity
from espalier.report.notes import noted
from espalier.report.reading import Reading
from espalier.report.spread import Floats, at_the_end, edges_over_time, over_time
from espalier.report.timeline import material
from espalier.report.tree import tree
from espalier.report.verdict import MOST_DRAWN, Verdict, lead, verdicts
from espalier.report.verdict import measures as measures_of

#: how the horizontal axes besides time are called on a switch
_SWITCH = {"round": "rounds", "steps": "local steps", "bytes": "bytes"}


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


def overview(groups: Groups) -> dict[str, Any]:
    """Return the verdicts, the state of the runs and the configuration, and whom one may look at in detail."""
    names = [str(s.experiment.get("name", "runs")) for s in groups.settings]
    order = {number: i for i, number in enumerate(p.group.number for v in verdicts(groups) for p in v.places)}
    return {
        "title": " and ".join(dict.fromkeys(names)) if 0 < len(names) <= 2 else "runs",
        "about": describe(groups.settings[0].experiment) if len(groups.settings) == 1 else "",
        **_verdicts(groups),
        "methods": [{"number": g.number, "title": g.label, "choices": choices_of(g.face)} for g in groups.groups],
        "seeds": sorted({s for g in groups.groups for s in g.seeds}),
        "runs": runs_html(groups.readings),
        "state": _state(groups.readings),
        "settings": rerun.to_html(groups),
        "details": [
            {"key": g.face.key, "title": f"{g.label}, seed {g.face.seed}", "colour": g.number}
            for g in sorted(groups.groups, key=lambda g: order.get(g.number, len(order)))  # the leader's first
            if len(g.face.frame)
        ],
    }


def _verdicts(groups: Groups) -> dict[str, Any]:
    """Return the verdicts by every measure at every equal budget, as the page shows them."""
    ranked = measures_of(groups.groups)
    known = [
        budgets([r for g in groups.groups if g.setting == n for r in g.readings]) for n in range(len(groups.settings))
    ]
    kinds = [k for k in BUDGETS if any(k in here for here in known)] or ["round"]
    first = next((k for here in known for k in here), "round")
    found = {}
    for name in ranked:
        for kind in kinds:
            judged = verdicts(groups, name, kind)
            found[f"{name}/{kind}"] = {
                "blocks": [_block(v) for v in judged],
                "csv": "".join(formats.to_csv(v, headings=not i) for i, v in enumerate(judged)),
                "latex": "\n".join(formats.to_latex(v) for v in judged),
            }
    return {
        "measures": [{"key": n, "title": spoken(n)} for n in ranked],
        "budgets": [
            {"key": k, "title": called(k, any(r.deployed for r in groups.readings))}
            for k in sorted(kinds, key=lambda k: k != first)
        ],
        "verdicts": found,
    }


def _block(found: Verdict) -> dict[str, Any]:
    return {
        "name": found.setting.name, "headline": found.headline, "detail": found.detail,
        "table": formats.to_html(found), "figure": lead(found), "order": [p.group.number for p in found.places],
        "scores": [{"mean": p.cells[0].mean, "seeds": p.cells[0].known} for p in found.places], "drawn": MOST_DRAWN,
    }  # fmt: skip


def _state(readings: Sequence[Reading]) -> str:
    """Say how the runs stand, as their table does: both are of one reading."""
    if not any(len(r.frame) for r in readings):
        return "waiting for the first evaluation of a run"
    counts = {state: sum(r.state == state for r in readings) for state in ("running", "finished", "dead")}
    told = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
    return f"live: {told}" if counts["running"] else f"no run is going on: {told}"


def curve_section(groups: Groups) -> dict[str, Any]:
    """Return the scores' figures for every switch position."""
    found = measures(groups)
    axes, real = axes_of(groups), any(r.deployed for r in groups.readings)
    return {
        "axes": [{"key": k, "title": called(k, real) if k == "time" else _SWITCH[k]} for k in axes],
        "measures": [{"key": k, "title": v} for k, v in found.items()],
        "figures": {f"{x}/{m}": curves(groups, x, m) for x in axes for m in found},
    }


def spread_section(comparison: Groups, devices: dict[str, Floats], edges: dict[str, Floats]) -> dict[str, Any]:
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
        value = reached(reading, name)
        score = "–" if value != value else f"{value:.3f}"
        bar = f'<progress max="1" value="{reading.progress:.4f}"></progress>'
        advice = f'<div class="advice">{escape(reading.stalled)}</div>' if reading.stalled else ""
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
    clock = called("time", any(r.deployed for r in readings))
    heads = ("run", "state", "progress", "round", clock, "score per device")
    return (
        '<div class="wide"><table class="text"><thead><tr>'
        + "".join(f"<th>{h}</th>" for h in heads)
        + f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
