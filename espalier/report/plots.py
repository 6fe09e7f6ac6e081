"""Figures of a run for notebooks: ``run.plot_accuracy()`` and its like return ``plotly`` figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from espalier.record.run import Run


class Plots:
    """The ``plot_…`` methods of :class:`espalier.record.run.Run`. What draws is imported when it is used."""

    def plot_accuracy(self, x: str = "round", measure: str | None = None) -> Any:
        """Draw a score against ``round``, ``time`` (virtual) or ``bytes``; by default the main score per device."""
        from espalier.report.curves import curves
        from espalier.report.groups import compare

        return _shown(curves(compare([_reading(self)]), x, measure))

    def plot_devices(self) -> Any:
        """Draw how the score spreads over devices, evaluation by evaluation."""
        from espalier.report.spread import over_time

        reading = _reading(self)
        return _shown(_there(over_time(_run(self), reading.score), "an evaluation of its devices"))

    def plot_edges(self) -> Any:
        """Draw every edge's score, evaluation by evaluation."""
        from espalier.report.spread import edges_over_time

        reading = _reading(self)
        return _shown(_there(edges_over_time(_run(self), reading.score), "an evaluation of its edges"))

    def plot_tree(self, by: str = "label") -> Any:
        """Draw the tree with a slider over time, devices coloured by ``label``, ``cluster`` or ``home``."""
        from espalier.report.tree import dressed, tree

        return _shown(dressed(tree(_run(self)), by))

    def plot_timeline(self, start: float = 0.0, stop: float | None = None) -> Any:
        """Draw who did what in a window of virtual time, seconds."""
        from espalier.report.timeline import timeline

        return _shown(timeline(_run(self), start, stop))

    def plot_labels(self, per: str = "edge") -> Any:
        """Draw the labels that every ``edge`` or every ``device`` holds."""
        from espalier.core.errors import ConfigError
        from espalier.report.labels import labels_per_device, labels_per_edge

        if per not in ("edge", "device"):
            raise ConfigError(f"per = {per!r}: must be edge or device.")
        found = labels_per_edge(_run(self)) if per == "edge" else labels_per_device(_run(self))
        return _shown(_there(found, "labels"))

    def plot_similarity(self) -> Any:
        """Draw the similarity of devices as the method measured it."""
        from espalier.report.similarity import similarity

        return _shown(_there(similarity(_run(self)), "a similarity of devices in its record"))

    def plot_notes(self) -> dict[str, Any]:
        """Draw the numbers that the method noted (α, weights …): a figure for each, by title."""
        from espalier.report.notes import noted

        return {title: _shown(found) for title, found in noted(_run(self)).items()}


def _run(plots: Plots) -> Run:
    return cast("Run", plots)


def _reading(plots: Plots) -> Any:
    from espalier.report.reading import read

    return _there(read(_run(plots)), "a description of itself yet")


def _there(found: Any, what: str) -> Any:
    if found is None:
        from espalier.core.errors import RunError

        raise RunError(f"The run has not {what}: there is nothing to draw.")
    return found


def _shown(found: Any) -> Any:
    from espalier.report.figures import to_plotly

    return to_plotly(found)
