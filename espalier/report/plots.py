"""Figures of a run for notebooks: what ``run.plot_accuracy()`` and its like return, as ``plotly`` figures."""

from __future__ import annotations

from typing import Any

from espalier.core.errors import ConfigError, RunError
from espalier.record.run import Run
from espalier.report.curves import curves
from espalier.report.figures import to_plotly
from espalier.report.groups import compare
from espalier.report.labels import labels_per_device, labels_per_edge
from espalier.report.notes import noted
from espalier.report.reading import Reading, read
from espalier.report.similarity import similarity as similarity_of
from espalier.report.spread import edges_over_time, over_time
from espalier.report.timeline import timeline as timeline_of
from espalier.report.tree import dressed
from espalier.report.tree import tree as tree_of


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
