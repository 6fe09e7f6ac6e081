from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from espalier.report import formats
from espalier.report.groups import compare
from espalier.report.verdict import Verdict, verdict
from tests.report.conftest import with_metrics


@pytest.fixture
def found(tmp_path: Path) -> Verdict:
    readings = []
    for label, values in (("A_1 | <b>", (0.90, 0.80, 0.85)), ("B", (0.85, 0.78, 0.80))):
        for seed, value in enumerate(values):
            where = tmp_path / f"{len(readings)}"
            about = "half" if label == "B" else ""
            metrics: dict[str, list[float | None]] = {"acc_device": [0.1, value], "acc_global": [0.1, 0.5]}
            readings.append(with_metrics(where, label, seed, metrics, target=None, reconstruction=about))
    return verdict(compare(readings))


def test_markdown(found: Verdict) -> None:
    lines = formats.to_markdown(found).splitlines()
    assert lines[0] == "| | acc global | acc device | virtual time |"
    assert lines[1] == "| --- | ---: | ---: | ---: |"
    assert lines[2] == "| A_1 \\| <b> | **0.500** | **0.850 ± 0.050** | **10.0 s** |"
    assert lines[3] == "| B (reconstruction) | 0.500 ≈ | 0.810 ± 0.036 ≈ | 10.0 s ≈ |"
    assert "3 seeds (0, 1, 2)." in lines


def test_latex(found: Verdict) -> None:
    text = formats.to_latex(found)
    assert r"A\_1 | $<$b$>$ & \textbf{0.500} & \textbf{0.850 $\pm$ 0.050} & \textbf{10.0 s} \\" in text
    assert r"B\textsuperscript{r} & 0.500$^{\approx}$ & 0.810 $\pm$ 0.036$^{\approx}$ & 10.0 s$^{\approx}$ \\" in text
    assert text.startswith(r"\begin{tabular}{lrrr}") and r"\bottomrule" in text
    table = text.split("%")[0]
    assert table.isascii()


def test_csv_has_full_numbers(found: Verdict) -> None:
    rows = list(csv.DictReader(io.StringIO(formats.to_csv(found))))
    row = next(r for r in rows if r["method"] == "B" and r["measure"] == "acc_device")
    assert float(row["mean"]) == pytest.approx((0.85 + 0.78 + 0.80) / 3, abs=1e-15)
    assert (row["best"], row["known"], row["seeds"], row["unit"]) == ("0", "3", "3", "1")
    assert float(row["p"]) == pytest.approx(0.0571909584)
    assert rows[0]["method"] == "A_1 | <b>"


def test_html_shows_no_foreign_markup(found: Verdict) -> None:
    text = formats.to_html(found)
    assert "<b>0.500</b>" in text and "A_1 | &lt;b&gt;" in text and "| <b>" not in text
    assert 'title="half">reconstruction' in text
    assert "seed 1: 0.780" in text and "p = 0.0572 against the best" in text
