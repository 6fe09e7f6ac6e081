"""Attacks do to a run what they say, and only that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from espalier.core.codec import pack, unpack
from espalier.core.errors import ConfigError
from espalier.core.messages import Report
from espalier.data.dataset import Dataset
from espalier.experiment import Experiment
from espalier.simulator.attacks import a_little_is_enough
from espalier.simulator.runner import Runner
from espalier.simulator.simulation import Simulation
from tests.reliability.runs import runner

HOSTILE = [0, 5]


def first_updates(attack: dict[str, Any] | None) -> tuple[Simulation, dict[int, torch.Tensor], dict[int, Report]]:
    """Run FedAvg's first round; return every device's reported model and report."""
    world = {"preset": "ideal", "attackers": {"devices": HOSTILE, **attack}} if attack else "ideal"
    one = runner(None, "fedavg", world=world, fleet={"devices": 12, "edges": 3}, stop={"rounds": 1})
    sim = one.simulation
    found: dict[int, Report] = {}
    send = sim.transport.send

    def watched(message: Any, since: float | None = None) -> None:
        if isinstance(message, Report):
            found[message.sender] = message
        send(message, since)

    sim.transport.send = watched  # type: ignore[method-assign]
    sim.start()
    while sim.step() and len(found) < 12:
        pass
    models = {d: sim.ledger.vector(next(iter(r.models.values()))) for d, r in sorted(found.items())}
    return sim, models, found


@pytest.fixture(scope="module")
def honest() -> dict[int, torch.Tensor]:
    return first_updates(None)[1]


@pytest.fixture(scope="module")
def start() -> torch.Tensor:
    sim = first_updates(None)[0]
    return sim.task.initial(sim.seed, 0)


def others_are_untouched(models: dict[int, torch.Tensor], honest: dict[int, torch.Tensor]) -> None:
    for device, model in models.items():
        if device not in HOSTILE:
            assert torch.equal(model, honest[device])


def test_sign_flip(honest: dict[int, torch.Tensor], start: torch.Tensor) -> None:
    _, models, _ = first_updates({"kind": "sign_flip", "scale": 2.0})
    others_are_untouched(models, honest)
    for device in HOSTILE:
        assert torch.allclose(models[device], start - 2 * (honest[device] - start), atol=1e-6)


def test_noise(honest: dict[int, torch.Tensor], start: torch.Tensor) -> None:
    _, models, _ = first_updates({"kind": "noise", "scale": 4.0})
    others_are_untouched(models, honest)
    for device in HOSTILE:
        change, true = models[device] - start, honest[device] - start
        assert float(change.norm() / true.norm()) == pytest.approx(4.0, rel=1e-4)
        assert abs(float(torch.cosine_similarity(change, true, dim=0))) < 0.2
    assert not torch.equal(models[0] - start, models[5] - start)


def test_collusion(honest: dict[int, torch.Tensor]) -> None:
    _, models, _ = first_updates({"kind": "little", "z": 1.0})
    others_are_untouched(models, honest)
    assert torch.equal(models[0], models[5])  # they all send the same
    # It lies within the cloud of honest updates: closer to their mean than most of them.
    mean = torch.stack([m for d, m in honest.items() if d not in HOSTILE]).mean(0)
    gaps = [float((m - mean).norm()) for d, m in honest.items() if d not in HOSTILE]
    assert float((models[0] - mean).norm()) < 2 * float(np.median(gaps))
    forged = a_little_is_enough(torch.tensor([[1.0], [3.0]]), 1.0)
    assert forged.tolist() == [1.0]  # the mean 2 less one standard deviation, 1


def test_label_flip(honest: dict[int, torch.Tensor]) -> None:
    sim, models, _ = first_updates({"kind": "label_flip"})
    others_are_untouched(models, honest)
    assert not torch.equal(models[0], honest[0])
    rows = torch.from_numpy(sim.views.rows(0, 0))
    true, false = sim.views.pool(0).gather(rows)[1], sim.views.pool(sim.attacks.look(0, 0)).gather(rows)[1]
    assert torch.equal(false, 9 - true)
    assert sim.attacks.look(1, 0) == 0
    # What it is tested on stays true.
    assert sim.conditions.look(0) == 0


def test_label_flip_needs_labels() -> None:
    x, y = np.ones((40, 3), dtype=np.float32), np.ones((40, 1), dtype=np.float32)
    data = Dataset.from_arrays(x, y, x, y, name="lines")
    table = {"methods": ["fedavg"], "world": {"attackers": {"kind": "label_flip"}}, "fleet": {"devices": 6}}
    with pytest.raises(ConfigError, match="lines has no labels to flip"):
        Runner(Experiment.build(table), None, dataset=data)


def test_broken_models(honest: dict[int, torch.Tensor]) -> None:
    _, models, _ = first_updates({"kind": "broken", "what": "nan"})
    others_are_untouched(models, honest)
    assert torch.isnan(models[0]).all()
    _, models, _ = first_updates({"kind": "broken", "what": "huge"})
    assert torch.isfinite(models[0]).all() and float(models[0].abs().max()) > 1e6


def test_false_claims(honest: dict[int, torch.Tensor]) -> None:
    _, models, reports = first_updates({"kind": "broken", "what": "samples"})
    assert all(torch.equal(models[d], honest[d]) for d in models)
    _, _, true = first_updates(None)
    assert reports[0].samples == {"": 100 * true[0].samples[""]}
    assert reports[1].samples == true[1].samples
    _, _, reports = first_updates({"kind": "false_times", "factor": 0.1})
    assert reports[0].compute == pytest.approx(0.1 * true[0].compute)


def message(sim: Simulation, stats: dict[str, Any]) -> Report:
    sent = sim.attacks.outgoing(Report(0, 15, 0, 15, {}, {"": 10}, 1, 0, 0.0, stats=stats))
    assert isinstance(sent, Report)
    return sent


def test_false_statistics() -> None:
    sim, _, _ = first_updates({"kind": "false_histogram", "inflate": 2.0})
    sent = message(sim, {"histogram": np.array([5.0, 0.0, 1.0], dtype=np.float32)})
    assert sent.stats["histogram"].tolist() == [2.0, 0.0, 10.0]
    assert sent.samples == {"": 20}
    sim, _, _ = first_updates({"kind": "false_links", "factor": 0.5})
    assert message(sim, {"links": np.array([2.0, 4.0])}).stats["links"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", ["sign_flip", "noise", "little", "label_flip"])
def test_attacks_survive_saving(kind: str) -> None:
    def make() -> Any:
        return runner(
            None, "hierfavg", world={"preset": "ideal", "attackers": {"kind": kind, "fraction": 0.3}},
            stop={"rounds": 3}, fleet={"devices": 12, "edges": 3},
        )  # fmt: skip

    whole = make()
    whole.run()
    one = make()
    one.simulation.start()
    steps = 0
    while one.simulation.step():
        steps += 1
        if steps % 13 == 0:
            plain, tensors = one.simulation.save()
            fresh = make()
            one.recorder.commit()
            one.recorder.connection.backup(fresh.recorder.connection)
            fresh.simulation.restore(unpack(pack(plain)), tensors)
            one = fresh
    one.recorder.commit()
    query = "SELECT * FROM metrics ORDER BY rowid"
    assert one.recorder.connection.execute(query).fetchall() == whole.recorder.connection.execute(query).fetchall()
