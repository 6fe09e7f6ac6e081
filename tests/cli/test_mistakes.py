"""What people get wrong: each mistake is one sentence with an exit code of its own, and nothing half-written."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import espalier
from espalier.cli import pool
from espalier.cli.main import main
from espalier.core.errors import ComparisonError, EspalierError, SetupWarning
from espalier.report.server import LivePage

FILE = """
methods = ["hierfavg"]
[task]
model_options = { hidden = [8] }
[fleet]
devices = 4
edges = 2
[training]
lr = 0.1
[stop]
rounds = 1
"""
ROWS = "a,b,y,who\n" + "".join(f"{i % 7},{i % 3},{'pq'[i % 2]},w{i % 4}\n" for i in range(40))
CSV = "task.dataset={ kind = 'csv', path = 'd.csv', label = 'y', owner = 'who' }"
NET = "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        "
LINEAR = NET + "self.layer = torch.nn.Linear(64, 10)\n    def forward(self, x):\n        "


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's, in which the command is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESPALIER_DATA", raising=False)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    pool._dataset.cache_clear()
    (tmp_path / "e.toml").write_text(FILE, encoding="utf-8")
    return tmp_path


def refused(done: Result, code: int, says: str) -> None:
    assert done.exit_code == code, done.output
    assert says in done.output and "Traceback" not in done.output
    assert len(done.output.strip().splitlines()) <= 4, done.output


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("run nope.toml", 2, "There is no file 'nope.toml' and no bundled experiment of that name; known: demo."),
        ("run .", 2, "There is no file '.'"),
        ("run e.toml -o o --jobs 0", 2, "0 is not in the range x>=1"),
        ("run e.toml -o o --workers 0", 2, "0 is not in the range x>=1"),
        ("run e.toml -o o --device tpu", 2, "device is 'tpu'; accepted: 'cpu', 'cuda'"),
        ("run e.toml -o o --log comet", 2, "known: tensorboard, wandb, mlflow"),
        ("run e.toml -o o --log tensorboard:e.toml", 7, "record.log = 'tensorboard:e.toml' cannot be used: "),
        ("run e.toml -o o --plugin missing.py", 2, "--plugin missing.py cannot be imported: No module named 'missing'"),
        ("run e.toml -o o --report .", 7, "is a folder; give the name of a file in it"),
        ("run e.toml -o o --report e.toml/r.html", 7, "cannot be written"),
        ("run e.toml -o e.toml", 7, "e.toml is not a directory. Choose another one with --out."),
        ("run e.toml -o o -m hierfav", 2, "Did you mean 'hierfavg'?"),
        ("run e.toml -o o -s 1 -s 1", 2, "each must stand there once"),
        ("run e.toml -o o --address host:1", 2, "add --backend ray"),
        ("resume nothing", 7, "There is no run at or below nothing. Runs are made with `espalier run`."),
        ("report nothing -o r.html", 7, "There is no run at or below nothing"),
        ("watch e.toml", 7, "e.toml is not a directory"),
        ("export nothing -o m", 7, "nothing is not a run directory"),
        ("sweep e.toml -o o", 2, "Nothing to try: give --grid training.lr=0.01,0.1"),
        ("sweep e.toml -o o --grid training.lr", 2, "must be key=value,value"),
        ("sweep e.toml -o o --grid training.lrr=1,2", 2, "Did you mean 'lr'?"),
        ("sweep e.toml -o o --grid training.lr=a,b", 2, "training.lr = 'a': must be a number."),
        ("config partitoin", 2, "Did you mean 'partition'?"),
        ("describe scafold", 2, "Did you mean 'scaffold'?"),
        ("data fetch mnits", 3, "Did you mean 'mnist'?"),
        ("reproduce csahfl/tabel1", 2, "Did you mean 'csahfl/table1'?"),
        ("init e.toml", 2, "e.toml is there already"),
        ("init nodir/e.toml", 7, "nodir/e.toml cannot be written: No such file or directory"),
    ],
)  # fmt: skip
def test_a_wrong_command(here: Path, words: str, code: int, says: str) -> None:
    refused(CliRunner().invoke(main, words.split()), code, says)
    assert [p.name for p in here.iterdir()] == ["e.toml"]


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        (["training.lr"], 2, "must be key=value"),
        (["trainin.lr=1"], 2, "Did you mean 'training'?"),
        (["training.lr=nan"], 2, "training.lr = nan: must be a number"),
        (["training.lr=inf"], 2, "a positive finite number"),
        (["fleet.devices=8.5"], 2, "fleet.devices = 8.5: must be a whole number"),
        (["fleet.devices=true"], 2, "must be a whole number"),
        (["fleet={devices=4,}"], 2, "the value is not valid TOML"),
        (["seeds=[0,0]"], 2, "each must stand there once"),
        (["seeds='01'"], 2, "must be a list of whole numbers"),
        (["methods=[]"], 2, "name at least one"),
        (["methods=['hierfavg','hierfavg']"], 2, "two are labelled 'HierFAVG'"),
        (["methods=[{name='fedprox', nu=1}]"], 2, "Did you mean 'mu'?"),
        (["task.target=80"], 2, "at most 1: accuracies are shares"),
        (["task.model='resnet999'"], 2, "Did you mean 'resnet18'?"),
        (["task.model='nomod:Net'"], 2, "No module named 'nomod'"),
        (["task.model_options={hidden='a'}"], 2, "a list of positive layer sizes"),
        (["task.model_options={hiden=[3]}"], 2, "Did you mean 'hidden'?"),
        (["world.preset='moon'"], 2, "world.preset = 'moon': unknown"),
        (["partition.kind='owner'"], 3, "does not say who made its samples"),
        (["partition={kind='dirichlet', alpha=0}"], 2, "must be more than 0"),
        (["task.dataset={kind='csv', path='nope.csv'}"], 3, "There is no file nope.csv"),
        (["task.dataset={kind='cvs', path='nope.csv'}"], 2, "Did you mean 'csv'?"),
        (["task.dataset={kind='images', path='nodir'}"], 3, "There is no folder nodir"),
        (["task.dataset={kind='csv'}"], 2, "a table has a kind and a path"),
        (["task.loss='mse'"], 2, "task.loss = 'mse' does not fit a classification: leave it out"),
    ],
)  # fmt: skip
def test_a_wrong_setting(here: Path, changes: list[str], code: int, says: str) -> None:
    told = [word for change in changes for word in ("--set", change)]
    refused(CliRunner().invoke(main, ["run", "e.toml", "-o", "o", *told]), code, says)
    assert [p.name for p in here.iterdir()] == ["e.toml"]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (b"\xff\xfe\x00", 2, "is not valid TOML"),
        (b"seeds = [0\nfoo", 2, "is not valid TOML: Unclosed array (at line 2, column 1)"),
        (b'{"a": 1}', 2, "is not valid TOML"),
        (b"[fleeet]", 2, "Did you mean 'fleet'?"),
        (b"fleet = 8", 2, "fleet = 8: must be a table"),
    ],
)
def test_a_wrong_file(here: Path, text: bytes, code: int, says: str) -> None:
    (here / "b.toml").write_bytes(text)
    refused(CliRunner().invoke(main, ["run", "b.toml", "-o", "o"]), code, says)
    assert not (here / "o").exists()


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("", 3, "File d.csv is empty"),
        ("a,b,y,who\n", 3, "a header and no rows"),
        (ROWS.replace("y,who", "z,who", 1), 3, "There is no column 'y'; there are a, b, z, who."),
        (ROWS + ",1,p,w1\n", 3, "Column 'a' has 1 empty cell, the first in row 41"),
        (ROWS + "inf,1,p,w1\n", 3, "Column 'a' has an infinite number in row 41"),
        (ROWS + "1,1,,w1\n", 3, "Column 'y' has 1 empty cell"),
        (ROWS + "1,1,p,w1,5,6\n", 3, "Expected 4 fields in line 42, saw 6"),
        (ROWS.encode() + b"\xe9,1,p,w1\n", 3, "is not in UTF-8"),
        (ROWS + "".join(f"t{i},1,p,w1\n" for i in range(60)), 3, "Column 'a' holds text with 67 different values"),
        ("a,y,who\n" + "".join(f"{i % 5},{i},w{i % 4}\n" for i in range(200)), 3, "say whether they are amounts"),
        (ROWS + '"1,4",1,p,w1\n', 3, "Column 'a' holds numbers with a comma ('1,4'): write a point"),
        ("a,y,who\n" + "".join(f"{i % 5},t{i},w{i % 4}\n" for i in range(80)), 3, "80 different texts in 80 rows"),
    ],
)  # fmt: skip
def test_a_wrong_table(here: Path, text: str | bytes, code: int, says: str) -> None:
    (here / "d.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(CliRunner().invoke(main, ["run", "e.toml", "-o", "o", "--set", CSV]), code, says)
    assert not (here / "o").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise ValueError('boo')\n", "fails when it is imported: ValueError: boo (mine.py, line 1)."),
        ("def (:\n", "fails when it is imported: SyntaxError: invalid syntax (mine.py, line 1)."),
        (NET + "raise ValueError('boo')\n", "cannot be built with no options: ValueError: boo (mine.py, line 5)."),
        (LINEAR + "raise KeyError('k')\n", "cannot take an input of shape (1, 8, 8): KeyError: 'k' (mine.py, line 7)."),
        (LINEAR + "return self.layer(x)\n", "cannot take an input of shape (1, 8, 8): RuntimeError: mat1 and mat2"),
        (LINEAR + "return self.layer(x.flatten(1)), 1\n", "The model returns a tuple; a tensor is accepted."),
        (
            LINEAR.replace("10)", "3)") + "return self.layer(x.flatten(1))\n",
            "The model has 3 outputs and the data have",
        ),
        (NET + "self.f = torch.nn.Flatten()\n    def forward(self, x):\n        return self.f(x)\n", "no parameters"),
        ("Net = 3\n", "is a int; a callable is accepted"),
        ("class Nat: ...\n", "has no attribute 'Net'"),
    ],
)
def test_a_wrong_model(here: Path, text: str, says: str) -> None:
    (here / "mine.py").write_text(text, encoding="utf-8")
    change = ["--set", "task={ model = 'mine:Net' }"]
    refused(CliRunner().invoke(main, ["run", "e.toml", "-o", "o", *change]), 2, says)
    assert not (here / "o").exists()


def test_a_plugin_that_raises(here: Path) -> None:
    (here / "mine.py").write_text("import espalier\n\n1 / 0\n", encoding="utf-8")
    done = CliRunner().invoke(main, ["run", "e.toml", "-o", "o", "--plugin", "mine.py"])
    refused(
        done, 2, "--plugin mine.py fails when it is imported: ZeroDivisionError: division by zero (mine.py, line 3)."
    )


def test_a_port_that_is_taken(here: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = CliRunner().invoke(main, ["watch", str(here), "--port", str(port)])
    assert done.exit_code != 0 and str(port) in done.output and "Traceback" not in done.output


def test_a_directory_that_is_not_there_yet_is_watched(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(page: LivePage) -> None:
        assert page._viewers.board.news()["overview"]  # it is looked at all the same
        raise KeyboardInterrupt

    monkeypatch.setattr(LivePage, "wait", interrupted)
    done = CliRunner().invoke(main, ["watch", "later", "--port", "0"])
    assert done.exit_code == 0 and "watching later at http" in done.output
    assert "not there yet: waiting for the first run" in done.output and not Path("later").exists()


def test_a_damaged_run(here: Path) -> None:
    assert CliRunner().invoke(main, ["run", "e.toml", "-o", "o", "-q"]).exit_code == 0
    (here / "o/hierfavg/seed-0/run.sqlite").write_bytes(b"no database" * 100)
    for words in ("resume o", "report o -o r.html", "export o/hierfavg/seed-0 -o m"):
        done = CliRunner().invoke(main, words.split())
        refused(done, 7, "o/hierfavg/seed-0")
    assert not (here / "r.html").exists() and not (here / "m").exists()


def test_another_experiment_in_the_same_place(here: Path) -> None:
    assert CliRunner().invoke(main, ["run", "e.toml", "-o", "o", "-q"]).exit_code == 0
    done = CliRunner().invoke(main, ["run", "e.toml", "-o", "o", "--resume", "--set", "training.lr=0.2"])
    refused(done, 7, "o holds another experiment: it differs in training.lr.")


@pytest.mark.parametrize("method", ["hierfavg", "standalone", "fedasync"])
def test_a_training_that_diverges(here: Path, method: str) -> None:
    """Numbers that are not finite end the run; a loss that only grows is told with the table."""
    words = ["run", "e.toml", "-o", "o", "-m", method, "--set", "stop.rounds=4", "--set"]
    done = CliRunner().invoke(main, [*words, "training.lr=1e30", "--report", "r.html"])
    assert (here / "r.html").stat().st_size > 100_000
    assert done.exit_code == 5 and "The training has diverged" in done.output and "Traceback" not in done.output
    assert "Try a lower training.lr (it is 1e+30)" in done.output
    done = CliRunner().invoke(main, [*words, "training.lr=1e6", "-o", "p"])
    assert done.exit_code == 0 and "learnt nothing (seed 0)" in " ".join(done.output.split())


def test_ctrl_c_before_anything_runs(here: Path) -> None:
    (here / "mine.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    code = "from espalier.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "e.toml", "--plugin", "mine.py"], capture_output=True, text=True,
        cwd=here, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 130 and done.stderr == "espalier: stopped.\n"


# -- from Python -------------------------------------------------------------------------------------------------

SETTING: dict[str, Any] = {"fleet": {"devices": 4, "edges": 2}, "stop": {"rounds": 1}}
X, Y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 3
FRAME = pd.DataFrame(X, columns=list("abcde")).assign(y=Y)
DATA = espalier.Dataset.from_arrays(X, Y, X, Y)


class Fails(nn.Linear):
    """A model whose forward pass fails."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Fail."""
        raise KeyError("k")


def run(method: Any = "hierfavg", setting: Any = SETTING, **options: Any) -> Any:
    return espalier.simulate(method, setting, **{"dataset": DATA, "progress": False, **options})


def with_model(model: Any) -> Any:
    return run(setting={**SETTING, "task": {"model": model}})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: run(None), "None must be a method's name"),
        (lambda: run("scafold"), r"There is no method 'scafold'; .* Did you mean 'scaffold'\?"),
        (lambda: run(setting=[1]), "The experiment is a list; give a table"),
        (lambda: run(setting="nope.toml"), "There is no file 'nope.toml'"),
        (lambda: run(setting={"fleeet": {}}), "Did you mean 'fleet'?"),
        (lambda: run(seed="0"), "must be a list of whole numbers"),
        (lambda: run(seed=1.5), "must be a list of whole numbers"),
        (lambda: run(dataset=(X, Y, X, Y)), r"dataset is a tuple; make an espalier.Dataset .*from_arrays"),
        (lambda: run(dataset="digits"), "named in the experiment"),
        (lambda: run(dataset=FRAME), "from_pandas"),
        (lambda: run(callbacks=[print]), "must be a list of objects of classes below espalier.Callback"),
        (lambda: run(workers=0), "a positive number is accepted"),
        (lambda: run(device="gpu"), "accepted: 'cpu', 'cuda'"),
        (lambda: with_model(Fails(5, 3)), r"The model cannot take an input of shape \(5,\): KeyError: 'k' \(test_m"),
        (lambda: with_model(nn.Linear(4, 3)), "cannot take an input of shape"),
        (lambda: with_model(nn.Linear(5, 2)), "has 2 outputs and the data have 3 classes: give it 3"),
        (lambda: with_model(nn.Linear(5, 1)), "has 1 output and the data have 3 classes: give it 3"),
        (lambda: with_model(nn.Linear(5, 3).requires_grad_(False)), "no parameters to train"),
        (lambda: with_model(lambda: None), "Model 'lambda' gave a NoneType"),
        (lambda: with_model(3), "task.model is a int"),
        (lambda: run(setting={"task": {"dataset": DATA}}), r"stand beside: simulate\(…, dataset=…\)"),
        (lambda: espalier.compare([], SETTING), "name at least one"),
        (lambda: espalier.compare(["fedavg"] * 2, SETTING), "two are labelled 'FedAvg'"),
        (lambda: espalier.compare("fedavg", SETTING, seeds=[1, 1]), "each must stand there once"),
        (lambda: espalier.Dataset.from_arrays(np.where(X > 1, np.nan, X), Y, X, Y), "the first at index"),
        (lambda: espalier.Dataset.from_arrays(X, np.eye(3)[Y], X, np.eye(3)[Y]), r"one-hot form: .*y.argmax\(1\)"),
        (lambda: espalier.Dataset.from_arrays(X, Y * 10**9, X, Y), "numbered from 0 without gaps"),
        (lambda: espalier.Dataset.from_arrays(X, np.append(X[1:, 0], np.inf), X, X[:, 0]), "y_train has numbers"),
        (lambda: espalier.Dataset.from_arrays(X, Y, X, Y, owner_train=[None, "a"] * 20), "types .NoneType, str."),
        (lambda: espalier.Dataset.from_pandas(X, label="y"), "The table is a ndarray"),  # type: ignore[arg-type]
        (lambda: espalier.Dataset.from_pandas(FRAME.assign(f=[[1]] * 40), label="y"), "holds lists"),
        (lambda: espalier.Dataset.from_pandas(FRAME.assign(y=X[:, 0]), label="y", amounts=False), "are not whole"),
        (lambda: espalier.Dataset.from_torch([("hello", 0)] * 9), "Sample 0's input is a str"),
        (lambda: run().predict(np.zeros((3, 4))), r"takes inputs of shape \(5,\), .* have shape \(3, 4\)"),
        (lambda: run().time_to(0.5, "acc_globl"), "Did you mean 'acc_global'?"),
        (lambda: run().model(edge=9), "There is no edge 9 in this run; it has 2, numbered from 0"),
    ],
)  # fmt: skip
def test_a_wrong_call(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(EspalierError, match=says):
        call()


def test_a_test_column_with_one_value_and_a_column_with_two_roles() -> None:
    table = FRAME.assign(t=False, who=list("pq") * 20)
    with pytest.raises(EspalierError, match="Column 't' is false in every row: some rows must be for training"):
        espalier.Dataset.from_pandas(table, label="y", test="t")
    with pytest.raises(EspalierError, match="label = 'y', owner = 'y': each must be a column of its own"):
        espalier.Dataset.from_pandas(table, label="y", owner="y")


def test_words_that_differ_in_capitals_alone_are_told() -> None:
    table = FRAME.assign(sex=["f", "F", "m", " f"] * 10)
    with pytest.warns(SetupWarning, match="Column 'sex' has 'f' and 'F', which differ in capitals or spaces alone"):
        espalier.Dataset.from_pandas(table, label="y")


def test_an_owners_model_is_exported_by_the_owners_name(here: Path) -> None:
    (here / "d.csv").write_text(ROWS, encoding="utf-8")
    words = ["run", "e.toml", "-o", "o", "-q", "--set", CSV, "--set", "partition={kind='owner'}"]
    assert CliRunner().invoke(main, words).exit_code == 0
    assert CliRunner().invoke(main, ["export", "o", "--device", "w1", "-o", "m"]).exit_code == 0
    refused(
        CliRunner().invoke(main, ["export", "o", "--device", "w9", "-o", "n"]), 7, "There is no device 'w9' in this run"
    )


def test_too_few_owners(here: Path) -> None:
    """What cannot be done ("at most 0") is not advised."""
    for options, says in (
        ("", "the data have 4 owners; set fleet.devices to at most 4."),
        (
            ", min_samples=500",
            "the data have 0 owners with at least 500 training samples; lower partition.min_samples.",
        ),
    ):
        (here / "d.csv").write_text(ROWS, encoding="utf-8")
        words = ["run", "e.toml", "-o", "o", "--set", CSV, "--set", f"partition={{kind='owner'{options}}}"]
        refused(CliRunner().invoke(main, [*words, "--set", "fleet.devices=9"]), 3, says)


def test_owners_that_nothing_is_done_with_are_told(here: Path) -> None:
    owned = espalier.Dataset.from_arrays(X, Y, X, Y, owner_train=list("abcd") * 10)
    with pytest.warns(SetupWarning, match="as long as there is no .partition."):
        run(dataset=owned)
    run(dataset=owned, setting={**SETTING, "partition": {"kind": "owner"}})
    (here / "d.csv").write_text(ROWS)
    (here / "o.toml").write_text(
        "fleet = { devices = 4, edges = 2 }\nstop.rounds = 1\n"
        "task.dataset = { kind = 'csv', path = 'd.csv', label = 'y', owner = 'who' }\n"
    )
    for more, told in ([], 1), (["--set", "partition.kind='owner'"], 0):
        done = CliRunner().invoke(main, ["run", "o.toml", "-o", f"o{told}", *more])
        assert done.exit_code == 0 and done.output.count("rows are dealt to devices at random") == told


def test_a_sigmoid_at_the_end_is_told() -> None:
    with pytest.warns(SetupWarning, match="ends with a sigmoid") as told:
        with_model(nn.Sequential(nn.Linear(5, 3), nn.Sigmoid()))
    assert told[0].filename == __file__  # the user's own line, not ours


def test_a_model_that_no_other_program_finds_is_told(here: Path) -> None:
    with pytest.warns(SetupWarning, match="^lambda is known to this program alone"):
        run(setting={**SETTING, "task": {"model": lambda: nn.Linear(5, 3)}}, directory=here / "o")
    code = "import sys, espalier\nprint(espalier.Run('o').model())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=here)
    assert "was made in the program that began the run" in done.stderr.splitlines()[-1]


class Capricious(nn.Linear):
    """A model that fails once it is trained for real."""

    calls = 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Fail after a while."""
        Capricious.calls += 1
        if Capricious.calls > 200:
            raise OSError("no")
        return super().forward(input)


@pytest.mark.filterwarnings("ignore:Capricious")
def test_what_others_learnt_outlives_a_model_that_fails_late() -> None:
    setting = {**SETTING, "task": {"model": Capricious, "model_options": {"in_features": 5, "out_features": 3}}}
    with pytest.raises(ComparisonError, match=r"OSError: no.*\(test_mistakes.py, line \d+\)") as caught:
        espalier.compare("hierfavg", {**setting, "stop": {"rounds": 3}}, seeds=range(40), dataset=DATA, progress=False)
    assert 0 < len(caught.value.runs) < 40 and isinstance(caught.value.__cause__, OSError)


def test_columns_of_pandas_are_words_too() -> None:
    words = pd.Series(np.array(list("abc"))[Y])
    told = espalier.Dataset.from_arrays(
        X, words, X, words.astype("category"), owner_train=words, owner_test=list(words)
    )
    assert told.kind == "classification" and told.meta["classes"] == told.meta["owners"] == ("a", "b", "c")


def test_a_verdict_says_which_runs_ended_early() -> None:
    with pytest.warns(SetupWarning, match="has diverged"):
        wild = {**SETTING, "training": {"lr": 1e30}, "stop": {"rounds": 4}}
        found = espalier.compare("hierfavg", wild, seeds=[0, 1], dataset=DATA)
    assert "\nHierFAVG, seeds 0, 1 ended early. The training has diverged" in found.verdict()


def test_whole_numbers_in_a_table_are_classes_unless_they_are_amounts() -> None:
    floats = FRAME.assign(y=Y.astype(float))
    assert espalier.Dataset.from_pandas(floats, label="y").kind == "classification"
    assert espalier.Dataset.from_pandas(floats, label="y", amounts=True).kind == "regression"
    assert espalier.Dataset.from_pandas(FRAME.assign(y=X[:, 0]), label="y").kind == "regression"


def test_cells_may_be_separated_by_semicolons(here: Path) -> None:
    (here / "d.csv").write_text(ROWS.replace(",", ";"), encoding="utf-8")
    done = CliRunner().invoke(main, ["run", "e.toml", "-o", "o", "-q", "--set", CSV])
    assert done.exit_code == 0, done.output


def test_an_experiment_may_be_a_file(here: Path) -> None:
    found = espalier.simulate("fedavg", here / "e.toml", progress=False)
    assert found.experiment["fleet"]["devices"] == 4
