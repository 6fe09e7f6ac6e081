from __future__ import annotations

import base64
import gzip
import json
import re
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import espalier
from espalier.core.errors import RunError
from espalier.experiment import Experiment
from espalier.record.database import Recorder
from espalier.report.groups import compare
from espalier.report.page import dumps, report, save, write_report
from espalier.report.reading import read_all, readings_of
from espalier.report.rerun import experiment_text, to_html
from espalier.study.base import Metric, Study
from espalier.study.results import Results
from tests.report.made import write_run


def part(html: str, name: str) -> Any:
    found = re.search(rf'<script type="text/plain" data-part="{name}">([^<]*)</script>', html)
    assert found is not None, name
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def test_the_file_has_everything_inside(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "report.html"
    write_report([runs], out)
    html = out.read_text(encoding="utf-8")
    markup = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|data:)", markup)
    assert "default-src 'none'" in markup
    overview = part(html, "overview")
    assert overview["title"] == "made up"
    assert [d["title"] for d in overview["details"]] == ["CSAHFL, seed 0", "HierFAVG, seed 0", "Flat <i>, seed 0"]
    for one in overview["details"]:
        assert {"tree", "spread", "edges", "labels"} <= set(part(html, f"detail/{one['key']}")["figures"])
    assert set(overview["verdicts"]) == {
        f"acc_{m}/{b}" for m in ("device", "global", "edge", "device_worst") for b in ("time", "bytes", "round")
    }
    (block,) = overview["verdicts"]["acc_device/time"]["blocks"]
    assert block["headline"].startswith("CSAHFL leads with accuracy per device") and "HierFAVG" in block["table"]
    assert block["order"] == [1, 0, 2] and "cannot be told with 2 seeds" in block["detail"]
    assert [m["choices"]["training.lr"] for m in overview["methods"]] == [0.05] * 3  # the page draws what was tried
    assert [len(s["seeds"]) for s in block["scores"]] == [2, 2, 2] and block["scores"][0]["mean"] > block["scores"][1][
        "mean"
    ]
    assert len(part(html, "curves")["figures"]) == 3 * 9
    assert out.stat().st_size < 3_000_000


def test_the_same_runs_make_the_same_file(runs: Path) -> None:
    readings = read_all([runs])
    assert report(readings) == report(readings)


def test_names_from_users_are_text(tmp_path: Path) -> None:
    nasty = "</script><script>alert(1)</script>"
    write_run(tmp_path / "a", label=nasty, name=nasty)
    html = report(read_all([tmp_path]))
    assert "alert(1)" not in re.sub(r'<script type="text/plain".*?</script>', "", html, flags=re.S).replace(
        "&lt;script&gt;alert(1)&lt;/script&gt;", ""
    )
    (block,) = part(html, "overview")["verdicts"]["acc_device/time"]["blocks"]
    assert nasty not in block["table"] and nasty in block["headline"]  # which the page shows as text


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot be written"):
        save("text", tmp_path / "file" / "report.html")


def test_numbers_that_no_browser_reads_become_null() -> None:
    assert json.loads(dumps({"a": [float("inf"), 1.5, {"b": float("nan")}]})) == {"a": [None, 1.5, {"b": None}]}


def test_the_configuration_makes_the_runs_again(tmp_path: Path) -> None:
    """The file in the report is an experiment with every method and seed, and the same settings."""
    plain = Experiment.build({
        "name": "again", "methods": [{"name": "hierfavg", "kappa2": 3, "label": "H"}], "seeds": [0],
        "world": {"links": {"kind": "uniform"}}, "stop": {"rounds": 4},
    }).to_plain()  # fmt: skip
    for label in ("H", "F"):
        for seed in (1, 0):
            where = write_run(tmp_path / label / str(seed), label=label, seed=seed, rounds=1)
            from espalier.record.database import Recorder

            recorder = Recorder(where / "run.sqlite")
            method = {"name": "hierfavg", "kappa2": 3, "label": label, "mu": 0.0}
            recorder.meta("experiment", {**plain, "methods": [method], "seeds": [seed]})
            recorder.close()
    comparison = compare(read_all([tmp_path]))
    found = Experiment.build(tomllib.loads(experiment_text(comparison, 0)))
    assert found.seeds == (0, 1) and sorted(e.label for e in found.methods) == ["F", "H"]
    assert found.to_plain()["world"] == plain["world"] and found.stop.rounds == 4
    html = to_html(comparison)
    assert "espalier run again.toml" in html and "espalier run made-up.toml" in html and "torch 2.13" in html


def test_runs_that_got_the_first_ones_time_are_made_again_so(tmp_path: Path) -> None:
    """The file says what was asked for (the first method's rounds, then its time), not what one seed took."""
    setting: dict[str, Any] = {"fleet": {"devices": 4, "edges": 2}, "stop": {"rounds": 2, "budget": "time"}}
    runs = espalier.compare(["hierfavg", "fedavg"], setting, seeds=[0, 1], progress=False)
    comparison = compare(readings_of(list(runs)[::-1]))
    found = tomllib.loads(experiment_text(comparison, 0))
    assert [m["name"] for m in found["methods"]] == ["hierfavg", "fedavg"]
    assert found["stop"] == {"rounds": 2, "budget": "time"} and "this makes the runs again" in to_html(comparison)


def test_runs_that_no_single_file_makes_say_so(tmp_path: Path) -> None:
    for lr in (0.1, 0.2):
        write_run(tmp_path / str(lr), label=f"lr={lr}", lr=lr)
    assert "makes runs like the first (they differ in training.lr: each" in to_html(compare(read_all([tmp_path])))


def test_published_figures_beside_ours(tmp_path: Path) -> None:
    from espalier.record.run import Run

    runs = {}
    for row, skill in (("A", 0.3), ("B", 0.5), ("C", 0.7)):
        runs[row, "D1"] = [Run(write_run(tmp_path / row / str(s), label=row, skill=skill, seed=s)) for s in (0, 1)]
    measure = Metric("accuracy (%)", lambda run: 100 * float(run.frame()["acc_global"].iloc[-1]), digits=1)
    # at the end 100·(skill·(1 − e^−2.5) + .1) = 37.5, 55.9, 74.3 here; the paper has A over B
    published = {"A": {"D1": {"acc": 60.0}}, "B": {"D1": {"acc": 50.0}}, "C": {"D1": {"acc": 90.0}}}
    study = Study("paper/table1", "three methods", lambda scale: [], {"acc": measure}, published, notes=("smaller",))
    html = report(read_all([tmp_path]), Results.of_runs(study, "smoke", runs))
    table = part(html, "overview")["published"]
    rows = re.findall(r"<tr>(.*?)</tr>", table)
    texts = [re.findall(r">([^<>]+)<", row) for row in rows]
    assert ["A", "37.5 ± 0.0", "60.0", "-22.5"] in texts and ["C", "74.3 ± 0.0", "90.0", "-15.7"] in texts
    # pairs AB reversed, AC and BC kept: τ = (2 − 1)/3
    assert ["order, Kendall τ", "+0.33"] in texts
    assert "smaller" in table and "C is best, as in the paper" in table


def test_what_a_run_has_spent_of_its_devices_privacy_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "plain", label="plain")
    assert "privacy" not in to_html(compare(read_all([tmp_path])))
    write_run(tmp_path / "private", label="private")
    with closing(Recorder(tmp_path / "private" / "run.sqlite", {})) as recorder:
        spent = {"delta": 1e-5, "reports": {"epsilon": 3.14159}, "merges": {"epsilon": None}}
        recorder.meta("privacy", spent)
    found = to_html(compare(read_all([tmp_path])))
    assert "<th>privacy</th>" in found
    assert "<td>reports ε = 3.14, merges ε = ∞ at δ = 1e-05</td>" in found
    assert "<td>–</td>" in found
