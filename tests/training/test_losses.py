import math

import pytest
import torch

from espalier.core.errors import ConfigError, TrainingError
from espalier.core.messages import Calibration
from espalier.training.losses import (
    IGNORED,
    adjusted,
    adjustment,
    checked,
    label_margin,
    label_offset,
    resolve,
    restriction,
)
from espalier.training.trainer import Trainer
from tests.training.problems import CASES, Textbook, distance, make


def squared_hinge(outputs, y):
    """A loss of a user's own: ``sum_c max(0, 1 - s_c z_c)^2`` with ``s_c`` = 1 for the label, -1 for the others."""
    sign = 2.0 * torch.nn.functional.one_hot(y, outputs.shape[1]) - 1.0
    return (1.0 - sign * outputs).clamp(min=0).square().sum(1)


def averaged(outputs, y):
    """A loss that is no loss per sample."""
    return squared_hinge(outputs, y).mean()


OWN = "tests.training.test_losses:squared_hinge"


def test_cross_entropy_by_hand():
    # Equal logits over 4 classes: -log(1/4). Logits (log 3, 0) of class 0: -log(3/4).
    loss = resolve("cross_entropy")
    assert loss(torch.zeros(1, 4), torch.tensor([2])).item() == pytest.approx(math.log(4))
    found = loss(torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([0]))
    assert found.item() == pytest.approx(-math.log(0.75))


def test_mse_is_the_mean_over_outputs():
    # ((1-0)² + (3-1)²)/2 = 2.5, and a target without the second axis is the same thing.
    loss = resolve("mse")
    assert loss(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 1.0]])).tolist() == [2.5]
    assert loss(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0])).tolist() == [1.0, 4.0]


def test_ignored_pixels_take_no_part():
    # Two classes, logits equal: every valid pixel costs log 2, whatever the share of ignored ones.
    y = torch.tensor([[[0, 1], [IGNORED, IGNORED]], [[IGNORED, IGNORED], [IGNORED, IGNORED]]])
    found = resolve("pixel_cross_entropy")(torch.zeros(2, 2, 2, 2), y)
    assert found.tolist() == pytest.approx([math.log(2), 0.0])


def test_a_calibrated_gradient_by_hand():
    # Labels 0, 0, 0, 1 of three; a tenth of the shares is uniform: 0.9 * (3/4, 1/4, 0) + 0.1/3
    # = (0.708333, 0.258333, 0.033333). With tau = 1 and equal logits the softmax is those shares, so the gradient of a
    # sample of label 1 is (0.708333, 0.258333 - 1, 0.033333): the label that the device does not have is hardly pushed.
    offset = label_offset(torch.tensor([0, 0, 0, 1]), 3, 1.0, 0.1)
    assert offset.exp().tolist() == pytest.approx([0.7083333, 0.2583333, 0.0333333], abs=1e-6)
    logits = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    terms = torch.stack([torch.ones(3), offset]).unsqueeze(0)
    resolve("cross_entropy")(adjusted(logits, terms), torch.tensor([1])).sum().backward()
    assert logits.grad.tolist()[0] == pytest.approx([0.7083333, -0.7416667, 0.0333333], abs=1e-6)
    # Without calibration every other label is pushed alike: (1/3, -2/3, 1/3).


def test_offsets_are_each_clients_own():
    # Two clients of two samples each; tau = 0 adds nothing.
    outputs = torch.arange(8.0).view(4, 2)
    terms = torch.tensor([[[1.0, 1.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, -1.0]]])
    assert adjusted(outputs, terms).tolist() == [[1, 1], [3, 3], [4, 4], [6, 6]]
    assert label_offset(torch.tensor([0, 0]), 2, 0.0, 0.1).tolist() == [0.0, 0.0]


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'cross_entropy'"):
        resolve("cross_entrpy")


def test_a_loss_that_is_already_averaged_is_refused():
    with pytest.raises(TrainingError, match="reduction='none'"):
        checked(torch.tensor(1.0), 3)


@pytest.mark.parametrize("found", [1.0, [1.0, 2.0, 3.0], torch.zeros(3, 1)])
def test_what_is_no_number_per_sample_is_refused(found):
    with pytest.raises(TrainingError, match="one number per sample, shape \\(3,\\)"):
        checked(found, 3)


def test_an_own_loss_is_found_by_its_import_path():
    # logits (2, 0) of class 0: s = (1, -1), max(0, 1-2)^2 + max(0, 1+0)^2 = 1; of class 1: (1+2)^2 + (1-0)^2 = 10.
    found = resolve(OWN)(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
    assert found.tolist() == [1.0, 10.0]
    with pytest.raises(ConfigError, match=r"task.loss = tests.training.test_losses:nothing: cannot be imported"):
        resolve("tests.training.test_losses:nothing")


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("loss", [OWN, lambda outputs, y: (outputs.gather(1, y[:, None])[:, 0] - 1).abs()])
def test_an_own_loss_trains_as_a_plain_loop_does(loss, batched):
    # clients of 11, 3 and 6 samples in batches of 4: last batches are padded, and padding takes no part
    case = CASES[1]
    module, pool = case.module(), case.pool(20)
    jobs = make(module, pool, [11, 3, 6], dtype=torch.float64, updates=2)
    trainer = Trainer(module, loss, batched=batched)
    for job, result in zip(jobs, trainer.run(jobs), strict=True):
        expected, mean = Textbook(module, loss).run(job)
        assert distance(result.vector, expected, job.start) < 1e-12
        assert result.loss == pytest.approx(mean, rel=1e-12)
    assert trainer.batched == batched


def test_a_loss_that_mixes_samples_is_trained_one_client_at_a_time():
    # a contrast with the batch's mean: merged, a client would see other clients' samples
    def contrast(outputs, y):
        return squared_hinge(outputs - outputs.mean(0), y)

    case = CASES[1]
    module, pool = case.module(), case.pool(20)
    jobs = make(module, pool, [8, 8], dtype=torch.float64, updates=1)
    with pytest.warns(UserWarning, match="a client's result depends on other clients' samples"):
        found = list(Trainer(module, contrast).run(jobs))
    for job, result in zip(jobs, found, strict=True):
        assert distance(result.vector, Textbook(module, contrast).run(job)[0], job.start) < 1e-12


def test_margins_and_restrictions_by_hand():
    # 16^(-1/4) = 1/2, 1^(-1/4) = 1, (1e-8)^(-1/4) = 100
    counts = torch.tensor([16.0, 1.0, 0.0], dtype=torch.float64)
    assert label_margin(counts, 0.5).tolist() == pytest.approx([0.25, 0.5, 50.0])
    assert restriction(counts, 0.5).tolist() == [1.0, 1.0, 0.5]
    labels = torch.tensor([0] * 16 + [1])
    assert adjustment(labels, 3, Calibration(0.5, form="margins"))[1].tolist() == pytest.approx([-0.25, -0.5, -50.0])
    assert adjustment(labels, 3, Calibration(0.5, form="restricted")).tolist() == [[1.0, 1.0, 0.5], [0.0, 0.0, 0.0]]


def test_a_label_that_a_device_lacks_is_pushed_down_less():
    # Of equal logits 2: plain, every label has 1/3. Restricted by 1/2 the third has e / (2 e^2 + e) = 0.155, and its
    # gradient half of that. With margins it has nothing.
    labels = torch.tensor([0, 1])
    for form, pushed in (("restricted", 0.5 / (1 + 2 * math.e)), ("margins", 0.0)):
        logits = torch.full((1, 3), 2.0, dtype=torch.float64, requires_grad=True)
        terms = adjustment(labels, 3, Calibration(0.5, form=form)).unsqueeze(0)
        resolve("cross_entropy")(adjusted(logits, terms), torch.tensor([0])).sum().backward()
        assert float(logits.grad[0, 2]) == pytest.approx(pushed, abs=1e-12)
