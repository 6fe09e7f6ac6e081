"""A run of which no update can be used any more ends on a fleet as it does simulated, with the same sentence."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

from espalier.core.store import Ref
from espalier.fleet.node.trainer import TrainingRequest, TrainingResult
from tests.fleet.net import Net, OneMore, manifest


def broken(*devices: int) -> object:
    def train(self: OneMore, request: TrainingRequest) -> TrainingResult:
        vector = request.work.start.clone()
        vector[request.device] += math.nan if request.device in devices else 1.0
        return TrainingResult(vector, 0.0, None, 1)

    return train


def status(net: Net) -> dict[str, str]:
    rows = net.coordinator.recorder.connection.execute("SELECT value FROM meta WHERE key = 'status'")
    found: dict[str, str] = json.loads(rows.fetchone()[0])
    return found


def run(net: Net, steps: int = 20_000) -> None:
    """Run so that a second passes between any two steps: everybody tells what there is to tell."""
    for _ in range(steps):
        if net.coordinator.finished:
            return
        net.now += 0.2
        if not net.step():
            net.idle()


def test_a_run_that_diverges_ends_and_says_so(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneMore, "train", broken(0, 1, 2, 3))
    net = Net(manifest(4, 2, 200), quick)
    run(net)
    assert net.coordinator.finished
    assert net.coordinator.round < 50
    why = status(net)["stalled"]
    assert re.match(r"The training has diverged: since round \d+ all \d+ updates had numbers that are not finite", why)
    assert "Try a lower training.lr" in why
    assert torch.isfinite(net.model()).all()


def test_a_few_devices_whose_updates_are_never_finite_do_not_end_it(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneMore, "train", broken(1))
    net = Net(manifest(4, 2, 20), quick)
    run(net)
    assert net.coordinator.finished
    assert status(net) == {"state": "finished"}
    assert float(net.model()[0]) > 0.0


def test_one_that_sends_them_as_fast_as_it_can_does_not_end_it(quick: Path) -> None:
    # where nobody waits for the others, its updates were as many as all others' together: the run had "diverged"
    net = Net(manifest(4, 1, 200, "fedasync"), quick)
    engine, conduct = net.engines[net.cloud], net.coordinator
    engine.store.told_by(Ref(5), 0)
    for told in (0, 1):  # it says that it trains, or it does not
        for _ in range(20):
            for _ in range(50):
                engine._rejected(5)
            for device in (*range(1, 4), *[0] * 30 * told):
                row = [device, "train", 0.0, 0.1]
                conduct.control(device, "notes", {
                    "events": [], "spans": [row], "scores": {}, "traffic": [], "final": False})  # fmt: skip
            conduct.evaluate()
            assert not conduct.ending
    # all of them together do
    for _ in range(20):
        for device in range(4):
            engine.store.told_by(Ref(5), device)
            engine._rejected(5)
            row = [device, "train", 0.0, 0.1]
            conduct.control(device, "notes", {
                "events": [], "spans": [row], "scores": {}, "traffic": [], "final": False})  # fmt: skip
        conduct.evaluate()
    assert conduct.ending
    assert "diverged" in conduct.stalled
