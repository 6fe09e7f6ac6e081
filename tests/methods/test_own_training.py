"""A user's own loss, optimiser, schedule and metrics in whole runs: they take effect, and are there after a resume."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from espalier.testing.conformance import BASE, resume
from tests.methods.test_equivalences import final

HALVED = {"kind": "step", "gamma": 0.5, "every": 1}


def scaled_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Return twice the cross-entropy of each sample."""
    return 2.0 * torch.nn.functional.cross_entropy(outputs, y, reduction="none")


def halving(clock: int) -> float:
    """Return half of the rate of the round before."""
    return float(0.5**clock)


def right(outputs: Tensor, y: Tensor) -> float:
    """Return the share of right answers."""
    return float((outputs.argmax(1) == y).double().mean())


def training(**changes: Any) -> dict[str, Any]:
    return {"training": {**BASE["training"], "precision": "float64", **changes}}


def test_a_schedule_is_followed_round_by_round() -> None:
    stepped = final("hierfavg", **training(schedule=HALVED))
    assert torch.equal(stepped, final("hierfavg", **training(lr_decay=0.5)))
    assert torch.equal(
        stepped, final("hierfavg", **training(schedule={"kind": "function", "path": f"{__name__}:halving"}))
    )
    assert not torch.equal(stepped, final("hierfavg", **training()))


def test_twice_the_loss_is_twice_the_rate() -> None:
    task = {**BASE["task"], "loss": f"{__name__}:scaled_entropy"}
    torch.testing.assert_close(
        final("hierfavg", task=task), final("hierfavg", **training(lr=0.2)), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("method", ["scaffold", "ditto", "fedrep", "fedbuff", "power_of_choice"])
def test_what_is_a_users_own_is_there_after_a_resume(method: str) -> None:
    task = {**BASE["task"], "loss": f"{__name__}:scaled_entropy", "metrics": ["f1", "auc", "ece", f"{__name__}:right"]}
    resume(method, often=(31,), task=task, stop={"rounds": 2}, **training(schedule=HALVED))
