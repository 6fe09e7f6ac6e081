"""Flat vectors: what is in them, and tied weights, which have two names and are one tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import espalier
from espalier.core.errors import TrainingError
from espalier.core.params import ParamSpec, first_names, spliced


class Tied(nn.Module):
    """Two layers of digits' size with one weight, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.second(self.first(x.flatten(1)).relu()).relu())
        return out


def tied(**_: object) -> nn.Module:
    """What an experiment builds its model with."""
    return Tied()


def normed(**_: object) -> nn.Module:
    """A model with running statistics and a counter."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def test_parameters_then_floating_buffers_then_counters() -> None:
    spec = ParamSpec.of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    assert [(e.name, e.start, e.stop) for e in spec.entries] == [
        ("0.weight", 0, 6), ("0.bias", 6, 9), ("1.weight", 9, 12), ("1.bias", 12, 15),
        ("1.running_mean", 15, 18), ("1.running_var", 18, 21), ("1.num_batches_tracked", 21, 22),
    ]  # fmt: skip
    # 15 parameters and 6 statistics travel; the counter is not sent
    assert (spec.n_params, spec.n_float, spec.size, spec.model_bytes) == (15, 21, 22, 84)


def test_a_vector_goes_into_a_module_and_comes_out() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    spec = ParamSpec.of(module)
    vector = torch.arange(22.0)
    spec.load(module, vector)
    assert torch.equal(spec.flatten(module.state_dict()), vector)
    assert module[1].num_batches_tracked.dtype == torch.int64
    with pytest.raises(TrainingError, match=r"no tensor '0\.weight'"):
        spec.flatten({})


def test_tied_weights_are_one_tensor_with_two_names() -> None:
    module = Tied()
    spec = ParamSpec.of(module)
    assert [e.name for e in spec.entries] == ["first.weight", "first.bias", "second.bias", "head.weight", "head.bias"]
    # 64 · 64 + 64 + 64 + 10 · 64 + 10: the second layer's weight costs nothing
    assert spec.size == spec.n_params == 4096 + 128 + 650
    assert first_names(module)["second.weight"] == "first.weight"
    spec.load(module, torch.full((spec.size,), 0.5))
    assert module.second.weight is module.first.weight and bool((module.second.weight == 0.5).all())


@pytest.mark.filterwarnings("ignore:.*one client at a time")
@pytest.mark.parametrize("model", ["tied", "normed"])
def test_a_model_comes_back_as_it_was_trained(tmp_path: Path, model: str) -> None:
    table = {
        "task": {"model": f"tests.core.test_params:{model}"}, "fleet": {"devices": 4, "edges": 2},
        "training": {"batch_size": 16, "updates": 3, "lr": 0.2}, "stop": {"rounds": 3},
    }  # fmt: skip
    run = espalier.simulate("hierfavg", table, directory=tmp_path / "run")
    module = run.model().eval()
    assert run.meta("model_bytes") == ParamSpec.of(module).model_bytes
    data = espalier.Experiment.build(table).dataset()
    accuracy = float((module(data.x_test).argmax(1) == data.y_test).float().mean())
    assert accuracy == pytest.approx(float(run.frame()["acc_global"].iloc[-1]), abs=1e-6)
    assert accuracy > 0.6


def test_parts_by_name() -> None:
    # body.weight [0, 6), body.bias [6, 9), norm.weight [9, 12), norm.bias [12, 15), head.weight [15, 21), head.bias
    # [21, 23); then norm's buffers: running_mean [23, 26), running_var [26, 29), num_batches_tracked [29, 30)
    model = nn.ModuleDict({"body": nn.Linear(2, 3), "norm": nn.BatchNorm1d(3), "head": nn.Linear(3, 2)})
    spec = ParamSpec.of(model)
    assert spec.spans(["head.*"]) == ((15, 23),)
    assert spec.spans(["norm.*", "*.bias"]) == ((6, 15), (21, 30))
    assert spec.rest(spec.spans(["norm.*", "*.bias"])) == ((0, 6), (15, 21))
    assert spec.rest(()) == ((0, 30),) and spec.rest(((0, 30),)) == ()
    assert spec.last_layer() == ("head.*",)
    base, part = torch.zeros(30), torch.arange(30.0)
    assert spliced(base, part, ((1, 3), (29, 30))).nonzero().flatten().tolist() == [1, 2, 29]
    assert not base.any()
