"""Changed pools: pure per row, and by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ConfigError, DataError
from espalier.data.dataset import VOID, ArrayPool
from espalier.data.drift import look_through, rotated, rotated_labels
from espalier.data.registry import load

DIGITS = load("digits")


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_no_change_is_the_pool_itself() -> None:
    assert look_through(DIGITS.train_pool) is DIGITS.train_pool


def test_labels_are_permuted_and_images_are_not() -> None:
    swap = np.array([1, 0, 2, 3, 4, 5, 6, 7, 8, 9])
    pool = look_through(DIGITS.train_pool, labels=swap)
    x, y = pool.gather(torch.arange(50))
    before_x, before_y = DIGITS.train_pool.gather(torch.arange(50))
    assert torch.equal(x, before_x)
    assert y.tolist() == swap[before_y.numpy()].tolist()


def test_brightness_is_added_and_images_stay_in_range() -> None:
    base = ArrayPool(torch.tensor([0.1, 0.9]).reshape(2, 1, 1, 1), rows(0, 1))
    assert look_through(base, brightness=0.25).gather(rows(0, 1))[0].flatten().tolist() == pytest.approx([0.35, 1.0])
    # Features that are no image have no range.
    flat = ArrayPool(torch.tensor([[0.1], [0.9]]), rows(0, 1))
    assert look_through(flat, brightness=0.25).gather(rows(1))[0].item() == pytest.approx(1.15)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 1437), min_size=1, max_size=30), st.integers(0, 5))
def test_a_row_looks_the_same_whenever_it_is_gathered(numbers: list[int], seed: int) -> None:
    pool = look_through(DIGITS.train_pool, noise=0.2, rotation=17.0, brightness=0.1, seed=seed)
    together = pool.gather(torch.tensor(numbers))[0]
    alone = torch.cat([pool.gather(rows(n))[0] for n in numbers])
    assert torch.equal(together, alone)


def test_noise_has_its_size_and_its_own_stream_per_seed_and_part() -> None:
    base = ArrayPool(torch.zeros(500, 40), torch.zeros(500, dtype=torch.int64))
    everything = torch.arange(500)
    noise = look_through(base, noise=0.3, seed=1).gather(everything)[0]
    assert float(noise.std()) == pytest.approx(0.3, rel=0.02) and float(noise.mean()) == pytest.approx(0, abs=0.01)
    for other in (look_through(base, noise=0.3, seed=2), look_through(base, noise=0.3, seed=1, part="test")):
        correlation = np.corrcoef(other.gather(everything)[0].flatten(), noise.flatten())[0, 1]
        assert abs(correlation) < 0.03
    # Twice the noise is the same draw, twice as loud: a gradual drift does not flicker.
    assert torch.allclose(look_through(base, noise=0.6, seed=1).gather(everything)[0], 2 * noise)


def test_a_quarter_turn_is_counter_clockwise() -> None:
    image = torch.arange(9.0).reshape(1, 1, 3, 3)
    # 0 1 2      2 5 8
    # 3 4 5  →   1 4 7
    # 6 7 8      0 3 6
    want = [[2, 5, 8], [1, 4, 7], [0, 3, 6]]
    assert rotated(image, 90.0)[0, 0].round(decimals=4).tolist() == want
    assert rotated_labels(image[:, 0].long(), 90.0)[0].tolist() == want
    assert torch.allclose(rotated(rotated(image, 90.0), -90.0), image, atol=1e-5)


def test_half_a_turn_of_an_oblong_image_keeps_it_whole() -> None:
    image = torch.arange(8.0).reshape(1, 1, 2, 4)
    assert torch.allclose(rotated(image, 180.0), image.flip(2, 3), atol=1e-5)


def test_what_turns_in_from_outside_is_void() -> None:
    labels = rotated_labels(torch.full((1, 9, 9), 3), 45.0)
    assert labels[0, 0, 0] == VOID and labels[0, 4, 4] == 3


def test_label_images_turn_with_their_scenes_and_void_stays_void() -> None:
    y = torch.full((1, 3, 3), 2)
    y[0, 0, 0] = VOID
    pool = look_through(ArrayPool(torch.rand(1, 3, 3, 3), y), rotation=90.0, labels=np.array([0, 1, 5]))
    assert pool.gather(rows(0))[1][0].tolist() == [[5, 5, 5], [5, 5, 5], [VOID, 5, 5]]


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"noise": -0.1}, ConfigError, "noise is -0.1"),
        ({"rotation": float("inf")}, ConfigError, "rotation is inf"),
    ],
)
def test_amounts_that_mean_nothing_are_refused(changes: dict[str, float], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        look_through(DIGITS.train_pool, **changes)  # type: ignore[arg-type]


def test_data_that_cannot_change_so_is_refused() -> None:
    tokens = ArrayPool(torch.zeros(2, 5, dtype=torch.int64), rows(0, 1))
    with pytest.raises(DataError, match="Token ids"):
        look_through(tokens, noise=0.1)
    flat = ArrayPool(torch.zeros(2, 5), torch.zeros(2, 1))
    with pytest.raises(DataError, match="Only images can be turned"):
        look_through(flat, rotation=5.0)
    with pytest.raises(DataError, match="Only classes can be permuted"):
        look_through(flat, labels=np.array([0]))
