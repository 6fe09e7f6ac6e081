"""How studies become known: packages announce them, and methods load without them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import resources
from importlib.metadata import entry_points

from espalier.study.base import notes, papers, published, studies


def test_every_announced_module_has_studies() -> None:
    modules = [m for point in entry_points(group="espalier.methods") for m in getattr(point.load(), "STUDIES", ())]
    assert len(modules) >= 6
    assert {m.rpartition(".")[0] for m in modules} == set(papers().values())
    # a paper is called as its package, unless its module says otherwise
    assert papers() == {name: f"espalier.methods.{name}" for name in papers() if name != "espalier"} | {
        "espalier": "espalier.methods.trellis"
    }
    assert {name.split("/")[0] for name in studies()} == set(papers())


def test_studies_that_share_runs_have_the_same_experiments() -> None:
    shared = [s for s in studies().values() if s.runs_of]
    assert len(shared) >= 14
    for study in shared:
        for scale in ("small", "full"):
            theirs = {(c.row, c.column): c.experiment for c in studies()[study.runs_of].cells(scale)}
            assert all(theirs[c.row, c.column] == c.experiment for c in study.cells(scale)), study.name


def test_methods_load_without_studies() -> None:
    code = (
        "import sys; from espalier.core.method import available; available(); "
        "print([m for m in sys.modules if m.startswith(('espalier.study', 'espalier.experiment', 'espalier.record'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_a_published_table_of_several_blocks() -> None:
    found = published("espalier.methods.d2d", "table12")
    # its first block has the target and the rounds to it, its second the rounds and what a feature may take
    assert found["Solution 1.1"]["Dir(0.5)"] == {"accuracy": 51.1, "rounds": 16}
    assert found["1.1-skew"]["Dir(0.1)"] == {"rounds": 21.2, "affordable": 6.2, "needed": 41.9}
    never = found["Benchmark B"]["Dir(0.1)"]["affordable"]
    assert never != never


def test_every_note_of_a_paper_is_printed_with_one_of_its_results() -> None:
    for paper, package in papers().items():
        printed = {note for study in studies().values() if study.paper == paper for note in study.notes}
        lists = tomllib.loads((resources.files(package) / "notes.toml").read_text(encoding="utf-8"))
        for which in lists:
            assert set(notes(package, which)) <= printed, f"{package}: {which}"
            assert all(note == " ".join(note.split()) for note in notes(package, which)), (
                "a line ends without its space"
            )
