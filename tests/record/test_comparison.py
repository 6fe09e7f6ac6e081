"""What `espalier.compare` returns: runs, their verdict, a card for notebooks, a report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import espalier
from espalier.core.errors import ConfigError, SetupWarning
from espalier.record.run import Comparison

SETTING = {
    "fleet": {"devices": 8, "edges": 2}, "stop": {"rounds": 3}, "task": {"model_options": {"hidden": [8]}},
    "world": {"compute": {"kind": "rate", "low": 1, "high": 4}},
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Comparison:
    return espalier.compare(["fedavg", {"name": "hierfavg", "kappa2": 2}], SETTING, seeds=[0, 1])


def test_it_is_a_sequence_of_runs(found: Comparison) -> None:
    assert [(run.label, run.seed) for run in found] == [
        ("FedAvg", 0), ("FedAvg", 1), ("HierFAVG", 0), ("HierFAVG", 1),
    ]  # fmt: skip
    assert len(found) == 4 and found[-1].seed == 1 and len(found[1:3]) == 2 and isinstance(found[1:3], Comparison)
    assert repr(found) == "Comparison(4 runs: FedAvg, HierFAVG)"
    frame = found.frame()
    assert list(frame.columns[:2]) == ["method", "seed"] and len(frame) == 4 * 4


def test_verdict_and_table_agree(found: Comparison) -> None:
    table = found.table()
    assert table["rank"].tolist() == [1, 2] and table["acc_device"].is_monotonic_decreasing
    assert found.verdict().startswith(f"{table['method'][0]} leads with accuracy per device")
    assert "cannot be told with 2 seeds" in found.verdict() and table["told_apart"].tolist() == [None, None]
    assert {"round", "steps", "bytes", "time"} <= set(table.columns)
    assert "of the global model" in found.verdict("acc_global", "steps") and "local steps" in found.verdict(
        budget="steps"
    )
    with pytest.raises(ConfigError, match=r"measure = 'acc_globl'.*Did you mean 'acc_global'"):
        found.verdict("acc_globl")
    with pytest.raises(ConfigError, match=r"budget = 'hours': must be one of time, steps, bytes, round"):
        found.table(budget="hours")


def test_runs_that_were_saved_get_a_verdict_too(found: Comparison, tmp_path: Path) -> None:
    setting = {**SETTING, "stop": {"rounds": 1}}
    for label in ("fedavg", "hierfavg"):
        espalier.compare([label], setting, directory=tmp_path / label)
    saved = espalier.find_runs(tmp_path / "hierfavg", tmp_path / "fedavg")
    assert isinstance(saved, Comparison) and " after " in saved.verdict() and len(saved.table()) == 2
    apart = espalier.find_runs(tmp_path / "hierfavg") + list(espalier.find_runs(tmp_path / "fedavg"))
    assert apart.verdict() == saved.verdict()


def test_a_metric_that_was_not_measured_is_told_with_what_measures_it(found: Comparison) -> None:
    with pytest.raises(ConfigError, match=r'measure = \'f1\'.* task.metrics = \["f1"\] measures it'):
        found.verdict("f1")
    with pytest.raises(ConfigError, match=r'task.metrics = \["ece"\] measures it'):
        found.verdict("ece_device")


def test_notebooks_get_small_html_without_scripts(found: Comparison) -> None:
    for html in (found._repr_html_(), found[0]._repr_html_()):
        assert len(html) < 12_000 and not re.search(r"<script|https?://|<link|<img", html)
    assert found.verdict().split(". ")[0] in found._repr_html_() and found._repr_html_().count("<svg") == 2
    assert "FedAvg, seed 0" in found[0]._repr_html_() and "polyline" in found[0]._repr_html_()


def test_a_run_says_how_it_ended() -> None:
    with pytest.warns(SetupWarning, match="has diverged"):
        wild = espalier.simulate("fedavg", {**SETTING, "training": {"lr": 1e30}})
    assert "ended early: The training has diverged" in wild._repr_html_()


def test_runs_in_memory_have_a_report_too(found: Comparison, tmp_path: Path) -> None:
    assert found.report(tmp_path / "here.html") == tmp_path / "here.html"
    text = (tmp_path / "here.html").read_text(encoding="utf-8")
    assert len(re.findall(r'data-part="detail/', text)) == 2  # a run per method in detail
