"""The reference of experiment files is made from the code, and what it says is so."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from espalier import reference
from espalier.cli.main import main
from espalier.experiment import Experiment
from espalier.experiments import bundled
from espalier.record.run import find_runs
from espalier.training.models import names as model_names

ROOT = Path(__file__).parents[1]


def test_the_document_is_what_the_code_says() -> None:
    told = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert told == reference.markdown(), "renew it: espalier config --markdown > docs/reference/configuration.md"


def test_every_section_and_family_is_there() -> None:
    assert set(reference.SECTIONS) == set(Experiment.__dataclass_fields__) - {"name", "methods", "seeds", "planned"}
    found = reference.families()
    assert {"dirichlet", "owner", "two_level"} <= set(found["partition"])
    assert {"compute", "links", "mobility", "churn", "merge", "pace", "method"} <= set(found)


def test_keys_have_defaults_ranges_and_meanings() -> None:
    found = {k.name: k for k in reference.keys(reference.families()["fleet"][""])}
    assert found["edges"].default == "6" and found["edges"].accepted == "between 1 and the number of devices"
    for section in {*reference.SECTIONS} - {"partition"}:
        assert [k.name for k in reference.keys(reference.families()[section][""]) if not k.about] == [], section
    (model,) = (k for k in reference.keys(reference.families()["task"][""]) if k.name == "model")
    assert all(f"``{name}``" in model.about for name in model_names())
    links = {k.name: k for k in reference.keys(reference.families()["links.tier"][""])}
    assert links["bandwidth"].about.startswith("Bytes per second") and links["bandwidth"].default == "inf"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["config"], "partition          classes, dirichlet"),
        (["config", "partition"], "dirichlet"),
        (["config", "partition", "dirichlet"], "alpha"),
        (["config", "training"], "lr: a number"),
        (["config", "trainin"], "Did you mean 'training'?"),
        (["config", "partition", "dirichlett"], "Did you mean 'dirichlet'?"),
    ],
)
def test_the_command_prints_parts(words: list[str], says: str) -> None:
    assert says in CliRunner().invoke(main, words).output


def files() -> list[Path]:
    return [*bundled().values()]


@pytest.mark.parametrize("path", files(), ids=lambda p: p.stem)
def test_experiments_keep_to_the_schema(path: Path) -> None:
    schema = reference.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(tomllib.loads(path.read_text(encoding="utf-8")), schema)


@pytest.mark.parametrize(
    "table", [{"trainin": {}}, {"fleet": {"devices": "ten"}}, {"partition": {"kind": "none"}}, {"training": {"lr": 0}}]
)
def test_the_schema_refuses_what_the_program_refuses(table: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(table, reference.schema())


def test_a_file_to_begin_with(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    assert CliRunner().invoke(main, ["init", str(path)]).exit_code == 0
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(table, reference.schema())
    assert Experiment.build(table).name == "mine"
    assert CliRunner().invoke(main, ["init", str(path)]).exit_code == 2


def test_a_method_of_ones_own_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "ownmethod.py").write_text(
        "from dataclasses import dataclass\nfrom espalier import Method\n\n"
        "@dataclass(frozen=True)\nclass Mine(Method, kind='mine'):\n    title = 'Mine'\n"
    )
    (tmp_path / "e.toml").write_text('methods = ["mine"]\nfleet = { devices = 4, edges = 2 }\nstop = { rounds = 1 }\n')
    words = ["run", str(tmp_path / "e.toml"), "-o", str(tmp_path / "out"), "-s", "0", "-s", "1", "-j", "2", "-q"]
    command = [sys.executable, "-m", "espalier", *words, "--plugin", str(tmp_path / "ownmethod.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "out" / "mine" / "seed-1")
    go_on = [sys.executable, "-m", "espalier", "resume", str(tmp_path / "out"), "-q"]
    alone = subprocess.run(go_on, capture_output=True, text=True, check=False)
    assert alone.returncode != 0 and "no method 'mine'; see `espalier methods` (your own: --plugin" in alone.stderr
    own = ["--plugin", str(tmp_path / "ownmethod.py")]
    resumed = subprocess.run([*go_on, *own], capture_output=True, text=True, check=False)
    assert resumed.returncode == 0 and len(find_runs(tmp_path / "out")) == 2, resumed.stderr
    listed = CliRunner().invoke(main, ["methods", "--json", *own])
    assert "Mine" in [m["title"] for m in json.loads(listed.output) if m["name"] == "mine"]
    assert "Mine (mine)" in CliRunner().invoke(main, ["describe", "mine", *own]).output
    assert "mine" in CliRunner().invoke(main, ["config", "method", *own]).output
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "json.py").touch()
    taken = CliRunner().invoke(main, ["methods", "--plugin", str(tmp_path / "aside" / "json.py")])
    assert taken.exit_code == 2 and "a module 'json' is there already; give the file another name" in taken.output
    gone = CliRunner().invoke(main, [*words, "--plugin", "nowhere.py"])
    assert gone.exit_code == 2 and "--plugin nowhere.py cannot be imported" in gone.output
