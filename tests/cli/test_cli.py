"""The command as a user meets it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from espalier.api import simulate
from espalier.cli.main import main
from espalier.core.errors import ConfigError, RunError
from espalier.data.dataset import Dataset
from espalier.record.run import find_runs

SMALL = """
name = "small"
seeds = [0, 1]
methods = ["hierfavg", { name = "fedprox", mu = 0.1, label = "FedProx 0.1" }]
[task]
dataset = "digits"
model = "mlp"
model_options = { hidden = [16] }
target = 0.3
[partition]
kind = "dirichlet"
alpha = 0.5
fraction = 0.3
[fleet]
devices = 8
edges = 2
[training]
lr = 0.1
[world.compute]
kind = "rate"
low = 1
high = 4
[stop]
rounds = 3
"""


def call(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def dump(directory: Path) -> dict[str, list[tuple[object, ...]]]:
    found = {}
    for path in sorted(directory.rglob("run.sqlite")):
        connection = sqlite3.connect(path)
        for table in ("metrics", "arrays", "traffic", "spans", "moves", "events"):
            key = f"{path.parent.relative_to(directory)}/{table}"
            found[key] = connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
    return found


def test_a_run_prints_a_table_and_leaves_directories(small: Path, tmp_path: Path) -> None:
    done = call("run", str(small), "-o", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert "FedProx 0.1" in done.output and "HierFAVG" in done.output
    runs = find_runs(tmp_path / "out")
    assert len(runs) > 1 and {tuple(r.meta("planned")) for r in runs} == {("HierFAVG", "FedProx 0.1")}
    for name in ("run.toml", "run.sqlite", "models/global.safetensors"):
        assert (tmp_path / "out" / "hierfavg" / "seed-1" / name).is_file()


def test_jobs_do_not_change_the_rows(small: Path, tmp_path: Path) -> None:
    for jobs in ("1", "2"):
        done = call("run", str(small), "-o", str(tmp_path / jobs), "--jobs", jobs, "--quiet")
        assert done.exit_code == 0, done.output
    assert dump(tmp_path / "1") == dump(tmp_path / "2")


def test_json_can_be_read_by_a_program(small: Path, tmp_path: Path) -> None:
    done = call("run", str(small), "-o", str(tmp_path / "out"), "--json", "--seed", "5", "--method", "hierfavg")
    found = json.loads(done.output)
    (row,) = found["rows"]
    assert row["label"] == "HierFAVG" and row["seeds"] == [5]
    assert 0 < row["values"]["acc_global"][0] < 1


def test_set_changes_a_setting(small: Path, tmp_path: Path) -> None:
    done = call("run", str(small), "-o", str(tmp_path / "o"), "-q", "--set", "stop.rounds=1", "--set", "fleet.edges=4")
    assert done.exit_code == 0, done.output
    assert "rounds = 1" in (tmp_path / "o" / "hierfavg" / "seed-0" / "run.toml").read_text()


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ("training.lrr=0.1", 2, "Did you mean 'lr'?"),
        ("training.lr=-1", 2, "must be more than 0"),
        ("fleet.edges=9", 2, "between 1 and the number of devices"),
        ("partition.kind=dirichlett", 2, "Did you mean 'dirichlet'?"),
        ("world.compute.kind=warp", 2, "unknown"),
        ("methods=hierfav", 2, "Did you mean 'hierfavg'?"),
        ("task.dataset=imagenet-22k", 3, "imagenet-22k"),
        ("partition={kind='classes', k=11}", 3, "11"),
    ],
)
def test_a_mistake_is_one_clear_line(small: Path, tmp_path: Path, change: str, code: int, words: str) -> None:
    done = call("run", str(small), "-o", str(tmp_path / "o"), "--set", change)
    assert done.exit_code == code, done.output
    assert words in done.output
    assert "Traceback" not in done.output


def test_unknown_experiment_and_full_directory(small: Path, tmp_path: Path) -> None:
    assert call("run", "nonsense").exit_code == 2
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("precious")
    done = call("run", str(small), "-o", str(tmp_path / "full"))
    assert done.exit_code == 7 and "not empty" in done.output


def test_methods_describe_list_and_data() -> None:
    names = {row["name"] for row in json.loads(call("methods", "--json").output)}
    assert {"fedavg", "fedprox", "hierfavg", "only_edge", "edge_cloud", "standalone"} <= names
    page = call("describe", "hierfavg").output
    assert "kappa2" in page and "ICC 2020" in page
    assert call("describe", "hierfavgg").exit_code == 2
    assert "demo" in call("list").output
    listed = {d["name"]: d for d in json.loads(call("data", "list", "--json").output)}
    assert listed["digits"]["embedded"] is True


def test_resume_of_finished_runs_says_so(small: Path, tmp_path: Path) -> None:
    call("run", str(small), "-o", str(tmp_path / "o"), "-q")
    done = call("resume", str(tmp_path / "o"))
    assert done.exit_code == 0
    assert "is finished" in done.output


def test_the_demo_runs_every_method_to_its_report(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    args = [
        "run",
        "demo",
        "--seed",
        "0",
        "--jobs",
        "1",
        "--out",
        str(tmp_path / "runs"),
        "--report",
        str(page),
        "--quiet",
    ]
    done = call(*args)
    assert done.exit_code == 0, done.output
    assert page.stat().st_size > 1_000_000
    experiment = tomllib.loads((files("espalier") / "experiments" / "demo.toml").read_text())
    assert len(list((tmp_path / "runs").glob("*/seed-0/run.sqlite"))) == len(experiment["methods"])


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "espalier", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("espalier, version")


def test_a_missing_dataset_is_told_once_before_anything_runs(small: Path, tmp_path: Path) -> None:
    small.write_text(SMALL.replace('"digits"', '"femnist"'), encoding="utf-8")
    for jobs in ("1", "2"):
        done = call("run", str(small), "-o", str(tmp_path / jobs), "--jobs", jobs)
        assert done.exit_code == 3
        assert done.output.count("was not found") == 1
        assert not list(tmp_path.rglob("run.sqlite"))


def test_runs_that_finished_are_shown_beside_those_that_failed(small: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.html"
    done = call(
        "run", str(small), "-o", str(tmp_path / "out"), "-m", "hierfavg", "-m", "phefl", "-s", "0",
        "--report", str(report),
    )  # fmt: skip
    assert done.exit_code == 2 and "PHE-FL · seed 0:" in done.output
    assert "HierFAVG reaches accuracy per device" in done.output
    assert report.stat().st_size > 100_000
    assert "inf" not in done.output and "leads" not in done.output


def test_what_stops_every_run_is_told_once(small: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,who\n" + "1,x,p\n2,y,q\n" * 10 + ",x,p\n")
    csv = f"task.dataset={{kind='csv', path='{tmp_path / 't.csv'}', label='b', owner='who'}}"
    done = call(
        "run", str(small), "-o", str(tmp_path / "o"), "-m", "hierfavg", "-s", "0", "-s", "1", "--set", csv, "-q"
    )
    assert done.exit_code == 3 and done.output.count("Column 'a' has 1 empty cell") == 1
    assert done.output.startswith("espalier: every run (2): ")


def test_a_misspelt_command_is_guessed() -> None:
    done = call("rnu", "demo")
    assert done.exit_code == 2 and "No such command 'rnu'. Did you mean 'run'?" in done.output


def test_json_is_printed_also_when_all_else_is_quiet(small: Path, tmp_path: Path) -> None:
    done = call("run", str(small), "-o", str(tmp_path / "o"), "-m", "hierfavg", "-s", "0", "-q", "--json")
    assert done.exit_code == 0 and json.loads(done.output)


def test_an_export_names_the_runs_that_there_are(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    call("run", str(small), "-o", str(out), "-m", "hierfavg", "-s", "0", "-s", "1", "-q")
    done = call("export", str(out), "-o", str(tmp_path / "m"))
    assert done.exit_code == 7 and f"holds 2 runs; give one: {out}/hierfavg/seed-0" in done.output
    assert call("export", str(out / "hierfavg" / "seed-0"), "-o", str(tmp_path / "m")).exit_code == 0
    (out / "hierfavg" / "seed-1").rename(tmp_path / "elsewhere")
    assert call("export", str(out), "-o", str(tmp_path / "m")).exit_code == 0  # the only one


def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match=r"is not empty and holds no run \(but thesis.tex, for one\)"):
        simulate("fedavg", {"fleet": {"devices": 4, "edges": 2}, "stop": {"rounds": 1}}, directory=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_dataset_in_the_place_of_its_name_is_refused_without_its_numbers() -> None:
    data = Dataset.from_arrays(np.zeros((4, 2)), [0, 1, 0, 1], np.zeros((2, 2)), [0, 1])
    with pytest.raises(ConfigError) as told:
        simulate("fedavg", {"task": {"dataset": data}})
    assert "stand beside: simulate(…, dataset=…)" in str(told.value) and len(str(told.value)) < 200


def test_methods_have_equal_time_also_when_they_go_on(small: Path, tmp_path: Path) -> None:
    small.write_text(SMALL.replace("rounds = 3", 'rounds = 3\nbudget = "time"'), encoding="utf-8")
    more = ("-m", "fedavg", "-m", "csahfl", "--quiet")
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        done = call("run", str(small), "-o", str(out), "--jobs", jobs, *more)
        assert done.exit_code == 0, done.output
        times = {(r.label, r.seed): r.seconds for r in find_runs(out)}
        assert times["FedAvg", 0] == times["CSAHFL", 0] and times["FedAvg", 1] == times["CSAHFL", 1]
    shutil.rmtree(tmp_path / "2" / "csahfl")
    assert call("resume", str(tmp_path / "2")).exit_code == 0
    assert dump(tmp_path / "1") == dump(tmp_path / "2")
