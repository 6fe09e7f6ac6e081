"""A comparison for the terminal and for programs: the report's verdict, in words and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from espalier.record.measures import spoken
from espalier.record.run import Run
from espalier.report.formats import gap_text
from espalier.report.groups import compare, describe
from espalier.report.reading import Reading, readings_of
from espalier.report.verdict import Verdict, time_to_target, verdicts

#: a terminal that is narrower gets no intervals and no figures of the runs' own ends
ROOMY_COLUMNS = 116
#: headings that are shorter here than on a page
SHORT = {"end": "at its end", "steps": "steps", "bytes": "sent", "time": "time"}


def table(runs: Sequence[Run], columns: int = 160) -> Group:
    """Return the comparison of runs for a terminal of so many columns: what leads, the ranking, what to know of it."""
    parts: list[RenderableType] = []
    for found in verdicts(compare(readings_of(runs))):
        ranking = _ranking(found, columns >= ROOMY_COLUMNS)
        lines: list[RenderableType] = [Text(found.headline, style="bold"), Text(found.detail), ranking]
        lines += [Text(line, style="yellow") for line in found.warnings]
        world = "" if found.budget.real else f"{describe(found.setting.experiment)}. "
        lines.append(Text(world + found.lines[0], style="dim"))
        parts.append(Padding(Group(*lines), (1, 0)))
    return Group(*(parts or [Text("No run has been evaluated yet.")]))


def _ranking(found: Verdict, roomy: bool) -> Table:
    out = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    out.add_column("")
    out.add_column("method")
    out.add_column(spoken(found.measure), justify="right", no_wrap=roomy, min_width=13)
    out.add_column("behind", justify="right", no_wrap=True)
    shown = [i for i, c in enumerate(found.columns[: found.main]) if i and (roomy or c.key != "end")]
    for i in shown:
        column = found.columns[i]
        out.add_column(SHORT.get(column.key, column.title), justify="right")
    for place in found.places:
        gap = gap_text(place.gap) if roomy else ("" if place.gap is None else f"{place.gap.mean:.3f}")
        score = Text(place.cells[0].text(found.columns[0]), style="bold" if place.cells[0].best else "")
        rest = [found.columns[i].text(place.cells[i].mean) for i in shown]
        out.add_row(str(place.rank or "–"), place.group.label, score, f"{gap} {place.mark}".strip(), *rest)
    return out


def plain(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the comparison as plain data: every method's figures at the end, seed by seed, and what leads."""
    found = compare(readings_of(runs))
    shown = [(g, [r for r in g.readings if len(r.frame)]) for g in found.groups]
    return {
        "experiment": runs[0].experiment,
        "verdict": [v.sentence for v in verdicts(found)],
        "rows": [
            {"label": group.label, "seeds": [r.seed for r in readings], "values": _values(readings)}
            for group, readings in shown if readings
        ],
    }  # fmt: skip


def _values(readings: Sequence[Reading]) -> dict[str, list[float | None]]:
    """Return the figures that all runs have at their end, one per run."""
    names = [n for n in readings[0].columns if all(n in r.columns for r in readings)]
    found = {name: [float(r.columns[name][-1]) for r in readings] for name in names}
    if readings[0].experiment.get("task", {}).get("target") is not None:
        found["time_to_target"] = [time_to_target(r) for r in readings]
    return {name: [None if v != v else v for v in values] for name, values in found.items()}
