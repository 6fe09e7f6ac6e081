"""Numbers with addresses: pure, uniform, independent, and the same one by one or all at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from espalier.core.seeds import key
from espalier.world.draws import Field, between, chosen, exponential, normal, whole

_MASK = (1 << 64) - 1


def test_one_address_worked_by_hand() -> None:
    # The published SplitMix64 step: add the golden ratio, then mix. With the key (low, high) and one
    # index i: mix(mix(low + (i+1)·golden) ^ high), and the top 53 bits make the number.
    def mix(h: int) -> int:
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & _MASK
        return h ^ (h >> 31)

    # SplitMix64 seeded with 0 gives 0xE220A8397B1DCDAF first (Vigna's reference output).
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    expected = ((mix(0xE220A8397B1DCDAF ^ 5) >> 11) + 0.5) / 2**53
    assert Field(0, 5).at(0) == expected


def test_key_comes_from_the_seed_tree() -> None:
    number = key(3, "world", "links", "pairs")
    assert Field.of(3, "links", "pairs") == Field(number & _MASK, number >> 64)


@given(st.integers(0, 2**40), st.lists(st.integers(0, 2**50), min_size=1, max_size=3))
def test_scalar_and_array_agree_bit_for_bit(seed: int, index: list[int]) -> None:
    field = Field.of(seed, "x")
    assert field.many(*index)[0] == field.at(*index)


def test_broadcasts() -> None:
    field = Field.of(0, "x")
    grid = field.many(np.arange(3)[:, None], np.arange(4)[None, :])
    assert grid.shape == (3, 4)
    assert grid[2, 1] == field.at(2, 1)


@pytest.mark.parametrize("axis", [0, 1])
def test_uniform_along_each_index(axis: int) -> None:
    run = np.arange(20_000)
    numbers = Field.of(1, "x").many(*((run, 7) if axis == 0 else (7, run)))
    assert kstest(numbers, "uniform").pvalue > 1e-3
    assert numbers.min() > 0 and numbers.max() < 1


def test_neighbouring_addresses_are_uncorrelated() -> None:
    field, run = Field.of(2, "x"), np.arange(20_000)
    base = field.many(run, 0)
    others = [field.many(run, 1), field.many(run + 1, 0), Field.of(3, "x").many(run, 0), Field.of(2, "y").many(run, 0)]
    for other in others:
        # The correlation of n independent pairs scatters by 1/√n = .007: four times that.
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.03


def test_shapes_of_draws() -> None:
    u = Field.of(4, "x").many(np.arange(50_000))
    assert kstest(exponential(u, 5.0), "expon", args=(0, 5)).pvalue > 1e-3
    assert kstest(normal(u), "norm").pvalue > 1e-3
    assert kstest(between(u, (2.0, 3.0)), "uniform", args=(2, 1)).pvalue > 1e-3
    counts = np.bincount(whole(u, (0, 5)).astype(int), minlength=6)
    assert len(counts) == 6 and abs(counts / 50_000 - 1 / 6).max() < 0.01


def test_equal_ends_are_exact_and_may_be_infinite() -> None:
    assert between(np.array([0.3]), (np.inf, np.inf))[0] == np.inf
    assert between(np.array([0.3]), (0.1, 0.1))[0] == 0.1


@given(st.integers(1, 300), st.floats(0, 1))
def test_chosen_is_an_exact_count(n: int, fraction: float) -> None:
    assert chosen(Field.of(0, "x").many(np.arange(n)), fraction).sum() == round(fraction * n)
