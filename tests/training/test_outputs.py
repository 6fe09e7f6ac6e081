"""A model that does not fit its task is told before anything runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from espalier.core.errors import ConfigError, SetupWarning
from espalier.training.losses import BY_KIND
from espalier.training.outputs import check_classes, check_outputs

X = torch.rand(6, 5)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), x


@pytest.mark.parametrize(
    ("model", "kind", "sentence"),
    [
        (nn.Linear(5, 2), "classification", "The model has 2 outputs and the data have 3 classes: give it 3."),
        (nn.Linear(5, 2), "regression", "The model has 2 outputs; the targets have 3."),
        (
            nn.Linear(4, 3),
            "classification",
            r"The model cannot take an input of shape \(5,\): .*data\.input_shape; a model gets",
        ),
        (nn.Flatten(0), "classification", r"outputs of shape \(20,\) for 4 samples"),
        (nn.Linear(5, 3), "segmentation", r"a segmentation needs \[samples, 3, height, width\]"),
        (Pair(), "classification", "The model returns a tuple; a tensor is accepted."),
    ],
)
def test_outputs_that_cannot_be_used(model: nn.Module, kind: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_outputs(model, X, kind, 3, BY_KIND[kind])


def test_outputs_that_look_like_a_mistake() -> None:
    with pytest.warns(SetupWarning, match="has 4 outputs and the data have 3 classes"):
        check_outputs(nn.Linear(5, 4), X, "classification", 3, "cross_entropy")
    with pytest.warns(SetupWarning, match="look like probabilities"):
        check_outputs(nn.Sequential(nn.Linear(5, 3), nn.Softmax(1)), X, "classification", 3, "cross_entropy")


def test_a_good_model_is_neither_told_nor_changed() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Dropout())
    wide = nn.Linear(5, 7)
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    check_outputs(model, X, "classification", 3, "cross_entropy")
    check_outputs(wide, X, "classification", 3, lambda outputs, y: outputs.sum(1))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items()) and model.training
    assert torch.equal(state, torch.get_rng_state())


def test_classes_that_cannot_be_learnt() -> None:
    with pytest.warns(SetupWarning, match=r"no training sample has \(2\)"):
        check_classes(torch.tensor([0, 1, 1]), torch.tensor([0, 2]))
    check_classes(torch.tensor([0, 1, 2]), torch.tensor([0, 2]))
