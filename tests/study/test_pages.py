"""Results pages: they are what the data render to, and name no figure that the data do not have."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import pytest

from espalier.core.errors import ConfigError
from espalier.report.published import slopes_svg, ticks
from espalier.study.archive import Archive, of_paper
from espalier.study.base import Study, papers, studies, study
from espalier.study.claims import read_claims
from espalier.study.pages import Page, all_pages, cost, index_page, state_rows
from espalier.study.results import Finished, Results, keep

PAGES = Path(__file__).parents[2] / "docs" / "results"
NAME, COLUMN = "csahfl/table1", "Fashion-MNIST EIID p_s=1"


def kept(folder: Path) -> Archive:
    """Keep made-up figures: CSAHFL 90, 91, 92 and HierFedAVG 88 under three seeds; 30 core seconds each."""
    facts = {"cpu_seconds": 30.0, "rounds": 25, "seconds": 9000.0, "trainings": 1875}
    found = {"deeds": {"late": 75}, "clusters": {"clusters": 2, "sizes": [60, 40], "beta": 20.0}}
    found["by_source"] = {"global": 0.9, "edge": 0.95, "own": 0.99}
    cells = {
        ("HierFedAVG", COLUMN): {s: Finished({"accuracy": 88.0, "late": 87.0}, facts) for s in range(3)},
        ("CSAHFL", COLUMN): {s: Finished({"accuracy": 90.0 + s, "late": 89.0}, facts | found) for s in range(3)},
    }
    keep(Results(study(NAME), "small", cells, ["espalier reproduce csahfl/table1 --scale small"]), folder)
    return Archive(folder)


def test_every_page_is_what_the_data_render_to() -> None:
    made = all_pages(PAGES, slopes_svg)
    assert {f"{paper}.md" for paper in papers()} <= {path.name for path in made}
    unlike = [path.name for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    assert not unlike, f"render them: espalier reproduce --pages docs/results ({', '.join(unlike)})"
    pictures = {path.name for path in (PAGES / "figures").glob("*.svg")}
    assert pictures == {path.name for path in made if path.suffix == ".svg"}, "a picture that no page shows"


def test_every_data_file_belongs_to_a_study() -> None:
    known = {f"{name.replace('/', '-')}-{scale}.json" for name in studies() for scale in ("small", "full")}
    assert {path.name for path in (PAGES / "data").glob("*")} <= known


@pytest.mark.parametrize("paper", ["benchmark", "cflhkd", "csahfl", "d2d", "easf", "phefl"])
def test_claims_name_what_their_studies_have(paper: str) -> None:
    claims = read_claims(resources.files(papers()[paper]) / "claims.toml")
    assert len(claims) >= 4
    for claim in claims:
        found = study(claim.study)
        assert found.paper == paper and claim.measure in found.measures, claim.name
        cells = [cell for scale in ("small", "full") for cell in found.cells(scale)]
        assert claim.named <= {cell.row for cell in cells}, claim.name
        assert set(claim.columns) <= {cell.column for cell in cells}, claim.name
        assert claim.compared([cell.row for cell in cells]), claim.name


@pytest.mark.parametrize("paper", ["cflhkd", "csahfl", "d2d", "easf", "phefl", "espalier"])
def test_a_regime_is_a_papers_only_within_half_of_its_level(paper: str) -> None:
    for claim in read_claims(resources.files(papers()[paper]) / "claims.toml"):
        found = study(claim.study)
        if claim.near < 0 or claim.measure in ("accuracy", "acc"):  # ten points of these
            continue
        columns = claim.columns or {cell.column for cell in found.cells("full")}
        rows = claim.anchors or {b for _, b in claim.compared(list(found.published))}
        printed = [figures.get(claim.measure, math.nan) for row in rows for figures in _of(found, row, columns)]
        level = [value for value in printed if math.isfinite(value)]
        assert not level or claim.near <= sum(level) / len(level) / 2, claim.name


def _of(found: Study, row: str, columns: Collection[str]) -> list[Mapping[str, float]]:
    return [figures for column, figures in found.published.get(row, {}).items() if column in columns]


def test_what_another_scale_says_stands_behind_why(tmp_path: Path) -> None:
    claim = next(c for c in read_claims(resources.files(papers()["csahfl"]) / "claims.toml") if c.study == NAME)
    facts = {"clusters": {"clusters": 2}}
    for scale, wave in (("small", 0.1), ("full", 9.0)):
        cells = {
            ("HierFedAVG", COLUMN): {s: Finished({"accuracy": 85.0}, {}) for s in range(3)},
            ("CSAHFL", COLUMN): {s: Finished({"accuracy": 88.0 + wave * (s - 1)}, facts) for s in range(3)},
        }
        keep(Results(study(NAME), scale, cells, ["x"]), tmp_path)  # type: ignore[arg-type]
    found = next(j for j in Archive(tmp_path).judgements("csahfl") if j.claim.name == claim.name)
    assert (found.scale, found.verdict) == ("small", "holds in part")
    assert "At `full`: cannot be told (0 / 0 / 1)." in found.why


def test_prose_names_figures_through_the_data(tmp_path: Path) -> None:
    page = Page(kept(tmp_path), "csahfl")
    at = f"{NAME} | small | CSAHFL | {COLUMN} | accuracy"
    assert page.fill(f"It has {{{{mean | {at}}}}} %.") == "It has 91.00 ± 1.00 %."
    assert page.fill(f"{{{{published | {NAME} | CSAHFL | {COLUMN} | accuracy}}}}") == "92.14"
    # leads of 2, 3 and 4: mean 3, standard deviation 1, t(0.975, 2) / sqrt(3) = 2.4841
    lead = f"{{{{difference | {NAME} | small | CSAHFL | HierFedAVG | {COLUMN} | accuracy}}}}"
    assert page.fill(lead) == "+3.00 [+0.52, +5.48]"
    assert page.fill("{{verdict | most accurate}}") == "holds in part", "one of 18 settings, two of eight methods"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{meen | x}}", "Did you mean 'mean'"),
        ("{{mean | csahfl/table9 | small | CSAHFL | x | accuracy}}", "no study 'csahfl/table9'"),
        (f"{{{{mean | {NAME} | full | CSAHFL | {COLUMN} | accuracy}}}}", "no figures at full"),
        (f"{{{{mean | {NAME} | small | FedAVG | {COLUMN} | accuracy}}}}", "no figure of accuracy for 'FedAVG'"),
        (f"{{{{mean | {NAME} | small | CSAHFL | {COLUMN} | acuracy}}}}", "Did you mean 'accuracy'"),
        ("{{verdict | most acurate}}", "Did you mean 'most accurate'"),
        ("{{mean}}", "cannot be filled"),
    ],
)
def test_what_is_not_known_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Page(kept(tmp_path), "csahfl").fill(text)


def test_a_section_tells_figures_deeds_and_what_is_missing(tmp_path: Path) -> None:
    page = Page(kept(tmp_path), "csahfl")
    text = page.fill(f"{{{{study | {NAME}}}}}")
    assert "| CSAHFL | **91.00 ± 1.00** (92.14) |" in text
    # 75 of 1,875 trainings were late
    assert "| CSAHFL | 25 | 9,000 | 1,875 | 4.0 | 2 (60+40), cut at 20.0° | late 75 |" in text
    assert f"| CSAHFL, {COLUMN} | 90.0 | 95.0 | – | 99.0 |" in text
    assert "138 of 144 runs are missing at `small`" in text and "138 runs, about 5 core hours" in text
    assert "Not run at `full`: `espalier reproduce csahfl/table1 --scale full`" in text
    assert list(page.pictures) == ["csahfl-table1-small.svg"]


def test_an_easier_target_is_not_set_beside_the_papers_nor_judged(tmp_path: Path) -> None:
    """Table 2 at small: 60 % is the paper's first target, 72 % is not its second."""
    table2 = study("csahfl/table2")
    cells = {
        (row, COLUMN): {s: Finished({"first": 1000.0 + lag, "second": 2000.0 + lag + s}) for s in range(3)}
        for row, lag in (("CSAHFL", 0), ("HierFedAVG", 500))
    }
    results = Results(table2, "small", cells)
    keep(results, tmp_path)
    assert results.published("CSAHFL", COLUMN, "first") == 724
    assert math.isnan(results.published("CSAHFL", COLUMN, "second"))

    def scale() -> str:
        return {j.claim.name: j for j in Archive(tmp_path).judgements("csahfl")}["first to the second target"].scale

    assert scale() == ""
    keep(Results(table2, "full", cells), tmp_path)
    assert scale() == "full"


def test_who_shares_runs_does_not_tell_again_what_they_did(tmp_path: Path) -> None:
    archive = kept(tmp_path)
    table2 = study("csahfl/table2")
    found = archive.results(study(NAME), "small")
    assert found is not None
    times = {"first": 1.0, "second": 2.0}
    same = {at: {s: Finished(times, one.facts) for s, one in runs.items()} for at, runs in found.cells.items()}
    keep(Results(table2, "small", same), tmp_path)
    text = Page(archive, "csahfl").fill("{{study | csahfl/table2}}")
    assert "What the methods did stands at csahfl/table1" in text and "trainings" not in text


def test_states_of_all_studies(tmp_path: Path) -> None:
    archive = kept(tmp_path)
    rows = {(name, scale): (what, price) for name, scale, what, price, _ in state_rows(archive)}
    # 27 runs of the column that was begun, by the half minute of its kept ones; 117 by the 2.5 minutes of claims.toml
    assert rows[NAME, "small"] == ("6 of 144 runs, seed(s) 0, 1, 2", "144 runs, about 5 core hours")
    begun = archive.state(study(NAME), "small")
    assert (begun.minutes, begun.left_minutes) == (pytest.approx(306), pytest.approx(303)) and begun.guessed
    assert rows["csahfl/table2", "small"] == ("not run", "runs of csahfl/table1")
    assert {name for name, _ in rows} == set(studies())
    unknown = archive.state(study("csahfl/table1"), "full")
    assert cost(unknown, math.nan) == "cost not known"
    assert [s.name for s in of_paper("csahfl")[:4]] == [f"csahfl/{n}" for n in ("table1", "table2", "table3", "fig3")]


def test_pictures_are_whole_and_the_same_each_time(tmp_path: Path) -> None:
    results = kept(tmp_path).results(study(NAME), "small")
    assert results is not None
    text = slopes_svg(results, "accuracy")
    assert text == slopes_svg(results, "accuracy")
    shown = [e for e in ElementTree.fromstring(text).iter() if e.tag.endswith("circle")]
    assert len(shown) == 4, "published and ours, of two methods"


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (36.1, 92.8, [30, 40, 50, 60, 70, 80, 90, 100]),
        (0.44, 0.92, [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        (5, 5, [5, 6]),
    ],
)
def test_round_numbers_on_a_scale(low: float, high: float, found: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(found)


def test_studies_without_a_run_share_one_table(tmp_path: Path) -> None:
    text = Page(kept(tmp_path), "csahfl").fill("{{studies}}")
    assert text.count("## ") == 2 and f"## {NAME}: " in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `csahfl/fig3` |")]
    assert [row[-1] for row in rows] == ["runs of csahfl/table1 |"]


def test_the_index_counts_verdicts(tmp_path: Path) -> None:
    rows = [line for line in index_page(kept(tmp_path)).splitlines() if line.startswith("| [phefl](phefl.md) | –")]
    assert rows == ["| [phefl](phefl.md) | – | – | – | – | 4 |"]
