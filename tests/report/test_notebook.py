"""``Run.plot_…`` on a real run, kept in memory."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

import espalier
from espalier.core.errors import ConfigError, RunError
from espalier.record.run import Run


@pytest.fixture(scope="module")
def run() -> Run:
    world = {
        "compute": {"kind": "truncated_normal", "mean": 20, "std": 8, "low": 2, "high": 60},
        "mobility": {"kind": "markov", "stay": 0.7},
    }
    setting = {
        "task": {"dataset": "digits", "model": "mlp", "model_options": {"hidden": [16]}},
        "fleet": {"devices": 12, "edges": 3}, "stop": {"rounds": 3}, "world": world,
        "partition": {"kind": "two_level", "edge_fraction": 0.5, "device_fraction": 0.2},
    }  # fmt: skip
    return espalier.simulate("hierfavg", setting)


def test_every_plot_is_a_plotly_figure(run: Run) -> None:
    figures = [
        run.plot_accuracy(), run.plot_accuracy("time", "acc_global"), run.plot_accuracy("bytes"), run.plot_devices(),
        run.plot_edges(), run.plot_tree(), run.plot_tree("home"), run.plot_timeline(), run.plot_timeline(5.0, 20.0),
        run.plot_labels(), run.plot_labels("device"),
    ]  # fmt: skip
    for figure in figures:
        assert isinstance(figure, go.Figure) and len(figure.data) and figure.to_json()
    assert run.plot_notes() == {}


def test_the_curve_is_the_run_s(run: Run) -> None:
    line = run.plot_accuracy("round", "acc_global").data[0]
    frame = run.frame()
    assert list(line.x) == frame["round"].tolist()
    assert list(line.y) == pytest.approx(frame["acc_global"].tolist(), rel=1e-4)


def test_what_is_not_there_is_said(run: Run) -> None:
    with pytest.raises(RunError, match="similarity of devices"):
        run.plot_similarity()
    with pytest.raises(ConfigError, match="per = 'label': must be edge or device"):
        run.plot_labels("label")
