from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from espalier.report import formats
from espalier.report.groups import compare
from espalier.report.verdict import Verdict, verdicts
from tests.report.conftest import with_metrics


@pytest.fixture
def found(tmp_path: Path) -> Verdict:
    readings = []
    for label, values in (("B", (0.85, 0.78, 0.80)), ("A_1 | <b>", (0.90, 0.80, 0.85))):
        for seed, value in enumerate(values):
            where = tmp_path / f"{len(readings)}"
            about = "half" if label == "B" else ""
            metrics: dict[str, list[float | None]] = {"acc_device": [0.1, value], "acc_global": [0.1, 0.5]}
            readings.append(with_metrics(where, label, seed, metrics, target=None, reconstruction=about))
    return verdicts(compare(readings))[0]


def test_markdown(found: Verdict) -> None:
    lines = formats.to_markdown(found).splitlines()
    assert lines[0] == found.sentence and lines[0].startswith("A_1 | <b> leads with accuracy per device")
    assert lines[2] == (
        "| | method | accuracy per device at equal virtual time | behind the leader | at its own end | rounds "
        "| virtual time | accuracy of the global model |"
    )
    assert lines[3] == "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert lines[4] == "| 1 | A_1 \\| <b> | **0.850 ± 0.050** |  | 0.850 ± 0.050 | 1 | 10.0 s | **0.500** |"
    assert lines[5] == (
        "| 2 | B (reconstruction) | 0.810 ± 0.036 | 0.040 [−0.003, 0.083] ≈ | 0.810 ± 0.036 | 1 | 10.0 s | **0.500** |"
    )
    assert "3 seeds (0, 1, 2)." in lines


def test_latex(found: Verdict) -> None:
    text = formats.to_latex(found)
    assert r"A\_1 | $<$b$>$ & \textbf{0.850 $\pm$ 0.050} &  & 0.850 $\pm$ 0.050 & 1 & 10.0 s \\" in text
    assert r"B\textsuperscript{r} & 0.810 $\pm$ 0.036 & 0.040 [$-$0.003, 0.083]$^{\approx}$ & 0.810" in text
    assert text.startswith(r"\begin{tabular}{lrrrrr}") and r"\bottomrule" in text
    table = text.split("%")[0]
    assert table.isascii()


def test_csv_has_full_numbers(found: Verdict) -> None:
    rows = list(csv.DictReader(io.StringIO(formats.to_csv(found))))
    row = next(r for r in rows if r["method"] == "B" and r["measure"] == "acc_device")
    assert float(row["mean"]) == pytest.approx((0.85 + 0.78 + 0.80) / 3, abs=1e-15)
    assert (row["best"], row["known"], row["seeds"], row["unit"], row["rank"]) == ("0", "3", "3", "1", "2")
    assert (row["budget"], float(row["budget_amount"])) == ("time", 10.0)
    assert float(row["p"]) == pytest.approx(0.0571909584) and float(row["behind"]) == pytest.approx(0.04)
    assert rows[0]["method"] == "A_1 | <b>" and rows[0]["behind"] == ""
    assert formats.to_csv(found, headings=False).count("\n") == len(rows)


def test_html_shows_no_foreign_markup(found: Verdict) -> None:
    text = formats.to_html(found)
    assert "<b>0.850 ± 0.050</b>" in text and "A_1 | &lt;b&gt;" in text and "| <b>" not in text
    assert 'title="half">reconstruction' in text
    assert "seed 1: 0.780" in text and 'title="p = 0.0572, adjusted"' in text
