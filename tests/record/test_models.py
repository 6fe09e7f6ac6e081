"""What was learnt is kept, and can be asked for by who uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor, nn

from espalier import compare, simulate
from espalier.cli.main import main
from espalier.core.errors import ConfigError, RunError
from espalier.data.registry import load
from espalier.experiment import Experiment
from espalier.record.models import WithPrior
from espalier.record.run import Run

BASE: dict[str, Any] = {
    "fleet": {"devices": 6, "edges": 2},
    "partition": {"kind": "dirichlet", "alpha": 0.3, "fraction": 0.3},
    "training": {"lr": 0.1},
    "stop": {"rounds": 2},
}


class Net(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def make(n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, n_classes))


def both(method: str, tmp_path: Path, **changes: Any) -> tuple[Run, Run]:
    """Return the same run, in memory and from its directory."""
    base = {**BASE, **changes}
    return simulate(method, base), Run(simulate(method, base, directory=tmp_path / method).directory)


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_edges_and_devices_have_the_model_that_they_use(tmp_path: Path) -> None:
    for run in both("only_edge", tmp_path):
        assert {"edge-0", "edge-1"} <= set(run.models)
        assert same(run.model(edge=1), run.model("edge-1")) and not same(run.model(edge=0), run.model(edge=1))
        users = [0, 0]
        for device in range(6):
            edge = next(e for e in (0, 1) if same(run.model(device=device), run.model(edge=e)))
            users[edge] += 1
        assert min(users) > 0
    for run in both("hierfavg", tmp_path):
        assert same(run.model(), run.model(device=3)) and same(run.model(), run.model(edge=0))


def test_devices_on_their_own_keep_their_own(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((5, 1, 8, 8), dtype=np.float32)
    memory, saved = both("standalone", tmp_path)
    assert same(memory.model(device=4), saved.model(device=4)) and not same(
        saved.model(device=4), saved.model(device=5)
    )
    answers = [run.predict(x, device=4) for run in (memory, saved)]
    assert np.array_equal(*answers) and answers[0].shape == (5,) and answers[0].max() < 10
    with pytest.raises(RunError, match=r"no model 'global'; known: device-0, .*record.models says which"):
        saved.model()
    with pytest.raises(RunError, match="There is no device 6 in this run; it has 6"):
        saved.model(device=6)
    with pytest.raises(RunError, match="Ask for one model"):
        saved.model(device=1, edge=1)


@pytest.mark.parametrize("prior", ["known", "validated", "estimated"])
def test_a_device_answers_with_its_prior_as_it_was_judged(tmp_path: Path, prior: str) -> None:
    """The share of right answers on a device's own label mix is the one on record."""
    digits = load("digits")
    x, y = (part.numpy() for part in digits.pool("test").gather(torch.arange(len(digits.cell_test))))
    mixes = Experiment.build(BASE).split(digits, 0).test_mix
    method = {"name": "hierfavg", "serve": {"prior": prior}}
    for run in (simulate(method, BASE), Run(simulate(method, BASE, directory=tmp_path / "run").directory)):
        for device, judged in enumerate(run.array("acc_device")):
            right = run.predict(x, device=device) == y
            by_label = np.array([right[y == label].mean() for label in range(10)])
            assert mixes[device] @ by_label == pytest.approx(judged, abs=1e-5)
        assert isinstance(run.model(device=0), WithPrior) and not isinstance(run.model(), WithPrior)
        assert run.models == ["global"]
    out = tmp_path / "model.safetensors"
    done = CliRunner().invoke(main, ["export", str(tmp_path / "run"), "--device", "0", "-o", str(out)])
    assert done.exit_code == 0 and not [name for name in load_file(out) if "prior" in name]


def test_what_is_kept_is_a_setting(tmp_path: Path) -> None:
    (run,) = compare("standalone", {**BASE, "record": {"devices_bytes": 10}}, directory=tmp_path)
    assert run.models == []
    run = simulate("only_edge", {**BASE, "record": {"models": ["global"]}})
    assert not [name for name in run.models if name.startswith("edge")]


@pytest.mark.parametrize("model", [Net, make, lambda: Net(4)])
def test_classes_and_functions_are_models(model: Any) -> None:
    run = simulate("fedavg", {**BASE, "task": {"model": model}})
    assert isinstance(run.model(), nn.Module) and run.predict(np.zeros((2, 1, 8, 8), np.float32)).shape == (2,)
    assert simulate("fedavg", {**BASE, "task": {"model": model}}).frame().equals(run.frame())


def test_a_module_starts_with_its_weights() -> None:
    torch.manual_seed(3)
    net = Net()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    quiet = {**BASE, "training": {"lr": 1e-30}}
    run = simulate("fedavg", {**quiet, "task": {"model": net}})
    assert same(run.model(), net) and all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert not same(simulate("fedavg", {**quiet, "task": {"model": Net}}).model(), net)
    with pytest.raises(ConfigError, match=r"task.model is a int; accepted: a name, an nn.Module"):
        simulate("fedavg", {**BASE, "task": {"model": 3}})


def test_the_command_finds_a_model_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mymodel.py").write_text(
        "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    (tmp_path / "exp.toml").write_text(
        'methods = ["fedavg"]\ntask = { model = "mymodel:net" }\nfleet = { devices = 4, edges = 2 }\n'
        "stop = { rounds = 1 }\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in __import__("sys").path if p])
    done = CliRunner().invoke(main, ["run", "exp.toml", "-o", "out", "-q"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("kind", ["state_dict", "torchscript", "onnx"])
def test_exported_models_answer_as_the_run_does(kind: str, tmp_path: Path) -> None:
    run = simulate("hierfavg", BASE, directory=tmp_path / "run")
    out = tmp_path / "deep" / "model"
    done = CliRunner().invoke(main, ["export", str(tmp_path / "run"), "-o", str(out), "--format", kind, "--edge", "1"])
    assert done.exit_code == 0, done.output
    x = torch.rand(7, 1, 8, 8)
    expected = run.model()(x).detach()
    if kind == "state_dict":
        from safetensors.torch import load_file

        net = run.model()
        net.load_state_dict(load_file(out))
        found = net(x).detach()
    elif kind == "torchscript":
        with pytest.warns(DeprecationWarning):
            found = torch.jit.load(str(out))(x).detach()
    else:
        from onnx.reference import ReferenceEvaluator

        found = torch.from_numpy(ReferenceEvaluator(str(out)).run(None, {"input": x.numpy()})[0])
    assert torch.allclose(found, expected, atol=1e-5)
