"""There is no GPU where these tests run: numbers are computed on the CPU, other devices by shapes alone (meta)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from espalier.core.errors import ConfigError
from espalier.core.params import ParamSpec
from espalier.training import device
from espalier.training.merged.engine import ChunkEngine
from espalier.training.models import build
from espalier.training.trainer import Trainer
from espalier.training.work import Optimizer, Result, TrainerJob

META = torch.device("meta")


class Rows:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.x.index_select(0, rows), rows % 10


def test_a_device_that_is_not_there_is_refused() -> None:
    assert device.find("cpu").type == "cpu"
    with pytest.raises(ConfigError, match="accepted: 'cpu', 'cuda'"):
        device.find("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"finds 0 CUDA devices.*--device cpu"):
            Trainer(nn.Linear(2, 2), "mse", where="cuda")


def test_vectors_and_samples_go_there_and_jobs_that_share_a_pool_still_do() -> None:
    pool = Rows(torch.rand(6, 4))
    vector = torch.ones(3)
    job = TrainerJob(
        start=vector, pool=pool, rows=np.arange(6), batch_size=2, optimizer=Optimizer(), seed=0, anchor=vector, mu=0.1,
        optimizer_state=vector,
    )  # fmt: skip
    assert device.sent([job], device.CPU) == [job]
    here, there = device.sent([job, job], META)
    assert here.pool is there.pool
    assert {v.device for v in (there.start, there.anchor, there.optimizer_state) if v is not None} == {META}
    assert [t.device for t in there.pool.gather(torch.tensor([0, 3]))] == [META, META]
    assert (there.rows, there.seed, there.mu) == (job.rows, job.seed, job.mu)


def test_results_come_back_and_those_that_are_here_are_not_copied() -> None:
    result = Result(torch.ones(3), 0.5, 6, 3)
    assert device.returned([result])[0] is result


def test_new_tensors_are_made_there() -> None:
    with device.computing(META):
        assert torch.zeros(2).device == META
    with device.computing(device.CPU):
        assert torch.zeros(2).device == device.CPU


def test_activations_are_counted_without_a_number() -> None:
    # Linear keeps its input (8 · 64 floats), ReLU its output (8 · 16), the last layer its input, which is ReLU's output
    module = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    assert device.activations(module, torch.zeros(8, 64)) == 4 * (8 * 64 + 8 * 16)

    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    assert device.activations(Branches(), torch.zeros(8, 64)) == 10 * 4 * 8 * 64


def test_a_chunk_is_as_large_as_the_memory_allows() -> None:
    module = build("resnet18", input_shape=(3, 32, 32), n_classes=10)
    spec, x = ParamSpec.of(module), torch.zeros(10, 3, 32, 32)
    need = 4 * 6 * spec.size + device.activations(module, x)
    # a quarter of the free memory is a chunk's
    assert device.clients(module, spec, x, 4 * 7 * need) == 7
    assert device.clients(module, spec, x, 0) == 2
    small = build("mlp", input_shape=(1, 8, 8), n_classes=10)
    assert device.clients(small, ParamSpec.of(small), torch.zeros(10, 1, 8, 8), 80 << 30) == 1024


@pytest.mark.parametrize(
    "optimizer", [Optimizer(lr=0.1), Optimizer(lr=0.1, momentum=0.9, weight_decay=1e-3), Optimizer("adam", lr=0.1)]
)
@pytest.mark.parametrize("name", ["mlp", "lenet", "fedavg_cnn", "resnet18"])
def test_the_merged_engine_mixes_no_devices(monkeypatch: pytest.MonkeyPatch, name: str, optimizer: Optimizer) -> None:
    """On the meta device everything runs but numbers: a tensor left on the CPU would be refused."""
    shape = (3, 32, 32) if name == "resnet18" else (1, 28, 28)
    trained = ChunkEngine._train

    def losses(self: ChunkEngine, jobs: list[TrainerJob], *rest: object) -> Tensor:
        found = trained(self, jobs, *rest)  # type: ignore[arg-type]
        assert found.device == META
        return torch.zeros(len(jobs), device="cpu")

    monkeypatch.setattr(ChunkEngine, "_train", losses)
    monkeypatch.setattr(device, "returned", lambda results: results)
    trainer = Trainer(build(name, input_shape=shape, n_classes=10), "cross_entropy", where="meta", chunk=4)
    start, pool = trainer.initial(0), Rows(torch.rand(60, *shape))
    jobs = [
        TrainerJob(
            start=start, pool=pool, rows=np.arange(14 * i, 14 * i + 12 + i), batch_size=10, optimizer=optimizer, seed=i,
            anchor=start, mu=0.1, keep_optimizer_state=True,
        )
        for i in range(3)
    ]  # fmt: skip
    found = list(trainer.run(jobs))
    assert trainer.batched and all(r.vector.device == META for r in found)
