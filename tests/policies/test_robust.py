from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from torch import Tensor

from espalier.core.errors import TrainingError
from espalier.core.seeds import stream
from espalier.policies import robust
from espalier.policies.robust import (
    clipped_mean,
    coordinate_median,
    geometric_median,
    krum,
    krum_scores,
    multi_krum,
    squared_distances,
    trimmed_mean,
)
from espalier.simulator.attacks import sign_flip

MERGES = {
    "median": coordinate_median,
    "trimmed": lambda u: trimmed_mean(u, (len(u) - 1) // 3),
    "krum": lambda u: krum(u, (len(u) - 3) // 2),
    "multi_krum": lambda u: multi_krum(u, (len(u) - 3) // 2),
    "clipped": lambda u: clipped_mean(u, torch.zeros_like(u[0])),
    "geometric": geometric_median,
}


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def random_updates(k: int, p: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(stream(seed, "updates", k, p).standard_normal((k, p)))


# By hand


def test_median_by_hand():
    assert coordinate_median(tensor([1, 9], [2, 0], [100, 5])).tolist() == [2, 5]
    # Four values: the mean of the two in the middle.
    assert coordinate_median(tensor([1], [2], [4], [100])).tolist() == [3]
    # Weights 1, 1, 3 of values 1, 2, 10: half of 5 is reached inside the third.
    weights = torch.tensor([1.0, 1.0, 3.0])
    assert coordinate_median(tensor([1], [2], [10]), weights).tolist() == [10]
    # Weights 1, 1, 2: exactly half lies below, the middle is between 2 and 10.
    assert coordinate_median(tensor([1], [2], [10]), torch.tensor([1, 1, 2])).tolist() == [6]


def test_trimmed_mean_by_hand():
    updates = tensor([1, 50], [2, 1], [3, 2], [4, 3], [1000, 4])
    assert trimmed_mean(updates, 1).tolist() == [3, 3]  # (2+3+4)/3 and (2+3+4)/3
    # Weights 1, 1, 3, 1, 1: (2 + 3·3 + 4)/5 = 3; second column keeps 2 (w 3), 3 (w 1), 4 (w 1): 13/5.
    weighted = trimmed_mean(updates, 1, torch.tensor([1.0, 1, 3, 1, 1]))
    assert weighted.tolist() == pytest.approx([3, 2.6])


def test_krum_by_hand():
    # 0, 1, 3, 4, 100 with f = 1: each sums its 5−1−2 = 2 smallest squared distances to the others.
    # 0: 1+9 = 10; 1: 1+4 = 5; 3: 1+4 = 5; 4: 1+9 = 10; 100: 96²+97² = 18625. First of the best: 1.
    updates = tensor([0], [1], [3], [4], [100])
    assert krum_scores(updates, 1).tolist() == pytest.approx([10, 5, 5, 10, 18625])
    assert krum(updates, 1).tolist() == [1]
    # Two best (K − f − 2): (1+3)/2; weighted 1:3 → (1·1 + 3·3)/4.
    assert multi_krum(updates, 1).tolist() == [2]
    assert multi_krum(updates, 1, weights=torch.tensor([9.0, 1, 3, 9, 9])).tolist() == [2.5]


def test_clipped_mean_by_hand():
    # Changes from (1,1): (3,4) of length 5 and (0,1) of length 1. Bound 2.5 halves the first:
    # (1,1) + ((1.5,2) + (0,1))/2 = (1.75, 2.5).
    updates = tensor([4, 5], [1, 2])
    assert clipped_mean(updates, torch.ones(2), bound=2.5).tolist() == pytest.approx([1.75, 2.5])
    # Lengths 5, 1, 1: the median is 1, so the long one becomes (0.6, 0.8).
    updates = tensor([4, 5], [1, 2], [1, 2])
    assert clipped_mean(updates, torch.ones(2)).tolist() == pytest.approx([1 + 0.2, 1 + 2.8 / 3])


def test_geometric_median_by_hand():
    # The corners of a square and its centre; the Fermat point of an equilateral triangle is its centre.
    square = tensor([0, 0], [0, 2], [2, 0], [2, 2])
    assert geometric_median(square).tolist() == pytest.approx([1, 1], abs=1e-6)
    triangle = tensor([0, 0], [2, 0], [1, 3**0.5])
    assert geometric_median(triangle).tolist() == pytest.approx([1, 3**-0.5], abs=1e-6)
    # A triangle with an angle above 120° has its median in that corner.
    flat = tensor([-10, 0], [10, 0], [0, 1])
    assert geometric_median(flat).tolist() == pytest.approx([0, 1], abs=1e-4)
    # On a line it is the median, 2, also where the mean (35/5 = 7), from which the iteration starts, is an update.
    assert geometric_median(tensor([0], [1], [2], [7], [25])).tolist() == pytest.approx([2], abs=1e-4)
    # And the weighted median with weights: 3 of 5 at 10.
    line = geometric_median(tensor([0], [1], [10]), torch.tensor([1.0, 1.0, 3.0]))
    assert line.tolist() == pytest.approx([10], abs=1e-4)


# What every merge promises


@pytest.mark.parametrize("name", MERGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_updates_come_back(name, dtype):
    w = random_updates(1, 1000)[0].to(dtype)
    merged = MERGES[name](w.repeat(7, 1))
    assert merged.dtype == dtype
    torch.testing.assert_close(merged, w, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["median", "trimmed", "multi_krum", "clipped", "geometric"])
def test_equal_updates_come_back_whatever_the_weights(name):
    w, weights = random_updates(1, 50)[0], torch.tensor([1.0, 7, 0.5, 3, 3, 90, 2])
    u = w.repeat(7, 1)
    merged = {
        "median": lambda: coordinate_median(u, weights),
        "trimmed": lambda: trimmed_mean(u, 2, weights),
        "multi_krum": lambda: multi_krum(u, 2, weights=weights),
        "clipped": lambda: clipped_mean(u, w + 1, weights=weights),
        "geometric": lambda: geometric_median(u, weights),
    }[name]()
    torch.testing.assert_close(merged, w, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", MERGES)
def test_order_and_blocks_do_not_matter(name, monkeypatch):
    updates = random_updates(9, 101)
    whole = MERGES[name](updates)
    shuffled = MERGES[name](updates[torch.from_numpy(stream(1, "order").permutation(9))])
    torch.testing.assert_close(shuffled, whole, rtol=0, atol=1e-9)
    monkeypatch.setattr(robust, "_BLOCK", 9 * 10)
    torch.testing.assert_close(MERGES[name](updates), whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", MERGES)
def test_inputs_are_left_alone(name):
    updates = random_updates(7, 20)
    before = updates.clone()
    merged = MERGES[name](updates)
    merged += 1
    assert torch.equal(updates, before)


@pytest.mark.parametrize("name", [n for n in MERGES if n != "clipped"])
@pytest.mark.parametrize("far", [1e3, 1e12, 1e30])
def test_a_minority_cannot_carry_the_merge_away(name, far):
    # 4 of 11 send something enormous: the merge stays among the honest seven.
    honest = random_updates(7, 40)
    updates = torch.cat([honest, torch.full((4, 40), far, dtype=torch.float64)])
    merged = {
        "median": lambda: coordinate_median(updates),
        "trimmed": lambda: trimmed_mean(updates, 4),
        "krum": lambda: krum(updates, 4),
        "multi_krum": lambda: multi_krum(updates, 4),
        "geometric": lambda: geometric_median(updates),
    }[name]()
    centre = honest.mean(dim=0)
    assert (merged - centre).norm() <= 2 * (honest - centre).norm(dim=1).max()
    assert (updates.mean(dim=0) - centre).norm() > 1e2


def test_a_majority_can():
    updates = torch.cat([torch.zeros(3, 5), torch.full((4, 5), 1e6)])
    assert coordinate_median(updates).min() == 1e6
    assert geometric_median(updates).min() == pytest.approx(1e6)


def test_clipping_bounds_the_pull_of_a_minority():
    # Three of ten send a change of length 1e9; each can pull by at most the median honest length, over ten.
    honest = random_updates(7, 40) * 0.1
    hostile = torch.full((3, 40), 1e9, dtype=torch.float64)
    merged = clipped_mean(torch.cat([honest, hostile]), torch.zeros(40))
    assert merged.norm() <= honest.norm(dim=1).max()


def test_honest_distances_survive_an_enormous_neighbour():
    honest = random_updates(5, 30)
    updates = torch.cat([honest, torch.full((1, 30), 1e30, dtype=torch.float64)])
    plain = (honest[:, None] - honest).square().sum(dim=2)
    torch.testing.assert_close(squared_distances(updates)[:5, :5], plain, rtol=1e-9, atol=1e-12)


# Against plain implementations

small = st.tuples(st.integers(1, 9), st.integers(1, 4)).flatmap(
    lambda shape: hnp.arrays(np.float64, shape, elements=st.integers(-5, 5).map(float))
)


@given(small, st.data())
def test_median_and_trimmed_mean_equal_the_plain_ones(values, data):
    updates = torch.from_numpy(values)
    np.testing.assert_allclose(coordinate_median(updates).numpy(), np.median(values, axis=0))
    trim = data.draw(st.integers(0, (len(values) - 1) // 2))
    kept = np.sort(values, axis=0)[trim : len(values) - trim]
    np.testing.assert_allclose(trimmed_mean(updates, trim).numpy(), kept.mean(axis=0), atol=1e-12)
    # A whole weight is that many copies of the update.
    copies = np.array(data.draw(st.lists(st.integers(1, 3), min_size=len(values), max_size=len(values))))
    weighted = coordinate_median(updates, torch.from_numpy(copies))
    np.testing.assert_allclose(weighted.numpy(), np.median(np.repeat(values, copies, axis=0), axis=0))


@given(
    st.integers(0, 3).flatmap(
        lambda f: st.tuples(
            st.just(f),
            hnp.arrays(
                np.float64,
                st.tuples(st.integers(2 * f + 3, 2 * f + 6), st.integers(1, 3)),
                elements=st.integers(-9, 9).map(float),
            ),
        )
    )
)
def test_krum_scores_equal_the_plain_ones(case):
    f, values = case
    k = len(values)
    plain = [
        sum(sorted(((values[i] - values[j]) ** 2).sum() for j in range(k) if j != i)[: k - f - 2]) for i in range(k)
    ]
    np.testing.assert_allclose(krum_scores(torch.from_numpy(values), f).numpy(), plain, atol=1e-9)


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(3, 7), st.just(2)), elements=st.integers(-6, 6).map(float)),
    st.data(),
)
@settings(max_examples=40, deadline=None)
def test_geometric_median_is_the_least_sum_of_distances(values, data):
    # one more that is near the first, or next to it
    values = np.vstack([values, values[:1] + data.draw(st.sampled_from([1.0, 1e-6, 1e-8, 1e-10]))])
    weights = np.array(data.draw(st.lists(st.integers(1, 4), min_size=len(values), max_size=len(values))))

    def cost(point):
        return float((weights * np.linalg.norm(values - point, axis=1)).sum())

    found = cost(geometric_median(torch.from_numpy(values), torch.from_numpy(weights)).numpy())
    starts = [*values, values.mean(axis=0)]
    best = min(float(minimize(cost, s, method="Nelder-Mead").fun) for s in starts)
    assert found <= best * (1 + 1e-4) + 1e-9


def test_geometric_median_that_is_an_update_is_found_exactly():
    """The two others pull at (1, 3) with 1.9987 of its own 2: nearing it step by step would take for ever."""
    values = torch.tensor([[0.0, 0.0], [0.0, -1.0], [1.0, 3.0]], dtype=torch.float64)
    weights = torch.tensor([1.0, 1.0, 2.0])
    assert torch.allclose(geometric_median(values, weights), values[2], rtol=0, atol=1e-12)
    assert not torch.allclose(geometric_median(values, torch.tensor([1.0, 1.0, 1.9])), values[2], rtol=0, atol=1e-3)


# Errors


def test_distances_that_overflow_are_refused():
    with pytest.raises(TrainingError, match="too far apart"):
        geometric_median(tensor([0], [0], [1e200]))


# On real data


def test_digits_survive_sign_flips_where_the_mean_does_not():
    x, y = load_digits(return_X_y=True)
    inputs = torch.from_numpy(np.column_stack([x / 16.0, np.ones(len(x))])).float()
    labels = torch.from_numpy(y)
    order = torch.from_numpy(stream(0, "split").permutation(len(y)))
    test, parts = order[:400], order[400:].chunk(10)

    def train(model: Tensor, rows: Tensor) -> Tensor:
        weight = model.reshape(65, 10).clone().requires_grad_()
        for _ in range(5):
            loss = torch.nn.functional.cross_entropy(inputs[rows] @ weight, labels[rows])
            (grad,) = torch.autograd.grad(loss, weight)
            weight = (weight - 2.0 * grad).detach().requires_grad_()
        return weight.detach().ravel()

    def accuracy(merge) -> float:
        model = torch.zeros(650)
        for _ in range(8):
            updates = [train(model, rows) for rows in parts]
            updates[:3] = [sign_flip(u, model, 5.0) for u in updates[:3]]
            model = merge(torch.stack(updates), model)
        predicted = (inputs[test] @ model.reshape(65, 10)).argmax(dim=1)
        return float((predicted == labels[test]).float().mean())

    assert accuracy(lambda u, m: u.mean(dim=0)) < 0.3
    for merge in (
        lambda u, m: coordinate_median(u),
        lambda u, m: trimmed_mean(u, 3),
        lambda u, m: krum(u, 3),
        lambda u, m: multi_krum(u, 3),
        lambda u, m: clipped_mean(u, m),
        lambda u, m: geometric_median(u),
    ):
        assert accuracy(merge) > 0.8
