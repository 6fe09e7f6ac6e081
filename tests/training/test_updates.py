import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.training.updates import state_size, update_for
from espalier.training.work import Optimizer, TrainerJob
from tests.training.problems import Memory

POOL = Memory(torch.zeros(1, 1), torch.zeros(1))


def job(optimizer, **options):
    rows = np.zeros(1, dtype=np.int64)
    return TrainerJob(start=torch.zeros(2), pool=POOL, rows=rows, batch_size=1, optimizer=optimizer, seed=0, **options)


def step(jobs, value, gradient, *, inside=False, steps=1):
    """Step ``value [K, n]`` with a constant gradient and return the update."""
    update = update_for(jobs, [value], [(0, value.shape[1])], value.shape[1], inside=inside)
    for _ in range(steps):
        update.before()
        if update.stale:
            update.sinks[0].zero_()
        update.sinks[0].add_(gradient * update.scale.unsqueeze(1))
        update.after()
    return update


def test_the_proximal_step_by_hand():
    # w=2, anchor 0, g=1, lr=.1, mu=.5: w - lr(g + mu(w-anchor)) = 2 - .1(1 + 1) = 1.8.
    value = torch.tensor([[2.0]], dtype=torch.float64)
    step([job(Optimizer(lr=0.1), anchor=torch.zeros(1), mu=0.5)], value, torch.ones(1, 1, dtype=torch.float64))
    assert value.item() == pytest.approx(1.8)


def test_momentum_takes_the_pull_in_first():
    # d1 = 1 + .5·2 = 2, w = 2-.2 = 1.8; d2 = .9·2 + 1 + .5·1.8 = 3.7, w = 1.8-.37 = 1.43.
    value = torch.tensor([[2.0]], dtype=torch.float64)
    work = job(Optimizer(lr=0.1, momentum=0.9), anchor=torch.zeros(1), mu=0.5)
    step([work], value, torch.ones(1, 1, dtype=torch.float64), steps=2)
    assert value.item() == pytest.approx(1.43)


@pytest.mark.parametrize("inside", [False, True])
def test_the_corrected_step_by_hand(inside):
    # w=2, g=1, correction .5, lr=.1: w - lr(g + c) = 2 - .15 = 1.85, and once more 1.7.
    value = torch.tensor([[2.0]], dtype=torch.float64)
    work = job(Optimizer(lr=0.1), correction=torch.full((1,), 0.5))
    step([work], value, torch.ones(1, 1, dtype=torch.float64), inside=inside, steps=2)
    assert value.item() == pytest.approx(1.7)


def test_momentum_takes_the_correction_in_first():
    # d1 = 1 + .5 = 1.5, w = 2 - .15 = 1.85; d2 = .9·1.5 + 1.5 = 2.85, w = 1.85 - .285 = 1.565.
    value = torch.tensor([[2.0]], dtype=torch.float64)
    work = job(Optimizer(lr=0.1, momentum=0.9), correction=torch.full((1,), 0.5))
    step([work], value, torch.ones(1, 1, dtype=torch.float64), steps=2)
    assert value.item() == pytest.approx(1.565)


def test_weight_decay_leaves_the_anchor_alone():
    # g + wd·w + mu(w-anchor) = 1 + .1·2 + .5·(2-4) = .2; w = 2 - .1·.2 = 1.98.
    value = torch.tensor([[2.0]], dtype=torch.float64)
    work = job(Optimizer(lr=0.1, weight_decay=0.1), anchor=torch.full((1,), 4.0), mu=0.5)
    step([work], value, torch.ones(1, 1, dtype=torch.float64))
    assert value.item() == pytest.approx(1.98)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["sgd", "adam"]),
    momentum=st.sampled_from([0.0, 0.9]),
    nesterov=st.booleans(),
    decay=st.sampled_from([0.0, 0.03]),
    lr=st.floats(1e-4, 0.5),
    steps=st.integers(1, 4),
    inside=st.booleans(),
)
def test_every_update_is_torch_optims(name, momentum, nesterov, decay, lr, steps, inside):
    momentum = 0.0 if name == "adam" else momentum
    optimizer = Optimizer(name, lr, momentum, decay, nesterov and momentum > 0)
    g = torch.Generator().manual_seed(0)
    value = torch.randn(1, 3, generator=g, dtype=torch.float64)
    gradient = torch.randn(1, 3, generator=g, dtype=torch.float64)
    weight = torch.nn.Parameter(value.clone())
    if name == "adam":
        theirs = torch.optim.Adam([weight], lr, weight_decay=decay)
    else:
        theirs = torch.optim.SGD([weight], lr, momentum=momentum, weight_decay=decay, nesterov=optimizer.nesterov)
    for _ in range(steps):
        weight.grad = gradient.clone()
        theirs.step()
    step([job(optimizer)], value, gradient, inside=inside, steps=steps)
    assert torch.allclose(value, weight.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "optimizer", [Optimizer(momentum=0.9), Optimizer(momentum=0.9, nesterov=True), Optimizer("adam")]
)
def test_memory_continues_where_it_stopped(optimizer):
    value = torch.ones(1, 3, dtype=torch.float64)
    gradient = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    whole = value.clone()
    step([job(optimizer)], whole, gradient, steps=5)
    memory = step([job(optimizer)], value, gradient, steps=2).state(0, 3)
    assert memory is not None and memory.shape == (state_size(job(optimizer), 3),)
    step([job(optimizer, optimizer_state=memory)], value, gradient, steps=3)
    assert torch.allclose(value, whole, rtol=1e-12)


@pytest.mark.parametrize("optimizer", [Optimizer(), Optimizer(momentum=0.9), Optimizer("adam")])
def test_a_client_that_was_cut_off_keeps_its_memory(optimizer):
    both = torch.ones(2, 3)
    gradient = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    update = step([job(optimizer)] * 2, both, gradient)
    before = update.state(1, 3)
    update.shrink(1)
    update.before()
    update.after()
    after = update.state(1, 3)
    assert (before is None and after is None) or torch.equal(before, after)
