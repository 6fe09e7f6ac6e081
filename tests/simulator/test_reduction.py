from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from espalier.core.errors import TrainingError
from espalier.core.params import ParamSpec
from espalier.simulator.reduction import FAN, PartialSum, RunningMerge, TreeSum, is_finite, nodes, weighted_sum
from espalier.training import native

SPEC = ParamSpec.of(nn.Linear(3, 1, bias=False))
NAN = torch.tensor([1.0, math.nan, 1.0])


def added(terms: list[tuple[float, Tensor | None]]) -> Tensor | None:
    whole = TreeSum()
    for coefficient, vector in terms:
        whole.add([coefficient], [NAN if vector is None else vector])
    return whole.total()


def test_eights_are_added_first() -> None:
    # 1e16 + 1 = 1e16 in float64 (a unit in the last place is 2 there). Term by term, ten ones after 1e16 would all be
    # lost: 1e16. Along the tree: the first eight terms are 1e16 + 7 lost ones = 1e16, the next eight ones make 8,
    # and 1e16 + 8 is exact.
    terms = [(1.0, torch.full((3,), v, dtype=torch.float64)) for v in [1e16] + [1.0] * 15]
    total = added(terms)
    assert total is not None
    assert total.tolist() == [1e16 + 8] * 3


def test_the_largest_nodes_of_a_stretch() -> None:
    assert FAN == 8
    assert list(nodes(0, 5, 5)) == [(0, 5)]
    assert list(nodes(0, 16, 40)) == [(0, 8), (8, 16)]
    assert list(nodes(0, 64, 100)) == [(0, 64)]
    # the last node may be short: 96 … 99 of a hundred terms is whole, 88 … 93 is not
    assert list(nodes(88, 100, 100)) == [(88, 96), (96, 100)]
    assert list(nodes(88, 94, 100)) == [(i, i + 1) for i in range(88, 94)]
    assert [b - a for a, b in nodes(62, 130, 200)] == [1, 1, 64, 1, 1]


@settings(max_examples=80)
@given(st.data())
def test_parts_made_elsewhere_change_no_bit(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 200))
    numbers = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    left_out = data.draw(st.sets(st.integers(0, count), max_size=20))
    terms: list[tuple[float, Tensor | None]] = []
    for place in range(count):
        coefficient, vector = float(torch.rand(1, generator=numbers)), torch.randn(3, generator=numbers)
        terms.append((coefficient, None if place in left_out else vector))
    cuts = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=6))})
    pieced = TreeSum()
    for first, stop in itertools.pairwise(cuts):
        for a, b in nodes(first, stop, count):
            if b - a > 1 and data.draw(st.booleans()):
                pieced.add_node(b - a, added(terms[a:b]))
            else:
                pieced.add([c for c, _ in terms[a:b]], [NAN if v is None else v for _, v in terms[a:b]])
    whole, total = added(terms), pieced.total()
    assert pieced.count == count
    assert (whole is None and total is None) or (whole is not None and total is not None and torch.equal(whole, total))


def model(*values: float) -> Tensor:
    return torch.tensor(values)


def test_a_merge_leaves_out_what_is_not_finite() -> None:
    merge = RunningMerge(SPEC, 3)
    assert merge.add([0.5, 0.25, 0.25], [model(1, 1, 1), model(math.nan, 0, 0), model(4, 4, 4)]) == [True, False, True]
    # 0.5 · 1 + 0.25 · 4 = 1.5, scaled by (0.75 + 0.25) / 0.75 to 2
    assert merge.result(None).tolist() == [2.0, 2.0, 2.0]


def test_a_merge_of_nothing_is_the_fallback() -> None:
    merge = RunningMerge(SPEC, 1)
    merge.add([1.0], [model(math.inf, 0, 0)])
    assert merge.empty
    assert merge.result(model(7, 7, 7)).tolist() == [7.0, 7.0, 7.0]
    with pytest.raises(TrainingError, match="non-finite"):
        RunningMerge(SPEC, 1).result(None)


def test_a_whole_sum_comes_finished_and_a_node_in_float64() -> None:
    whole = RunningMerge(SPEC, 2)
    for value in (1.0, 3.0):
        whole.add([0.5], [model(value, value, value)])
    part = whole.part()
    assert part.whole and part.total is not None and part.total.dtype == torch.float32
    assert part.total.tolist() == [2.0, 2.0, 2.0]
    node = RunningMerge(SPEC, 20)
    node.add([0.5], [model(1, 2, 3)])
    part = node.part()
    assert not part.whole and part.total is not None and part.total.dtype == torch.float64


def test_integer_buffers_come_from_the_largest_contributor() -> None:
    spec = ParamSpec.of(nn.BatchNorm1d(1))  # weight, bias, mean, variance | one counter
    assert (spec.n_float, spec.size) == (4, 5)
    here = RunningMerge(spec, 11)
    for _ in range(8):
        here.add([0.1], [torch.tensor([0.0, 0, 0, 0, 7])])
    parts = RunningMerge(spec, 11)
    for coefficient, counter in ((0.2, 8), (0.3, 9), (0.2, 10)):
        parts.add([coefficient], [torch.tensor([1.0, 1, 1, 1, counter])])
    tail = parts.part().tail
    assert tail is not None and (tail[0], int(tail[1])) == (0.3, 9)
    here.count(0.2, True)
    here.count(0.3, True)
    here.count(0.2, True, PartialSum(3, torch.full((4,), 0.7, dtype=torch.float64), False, torch.float32, tail))
    assert here.result(None)[4] == 9


@pytest.mark.parametrize("size", [1, 7, 1024, 5000])
def test_native_sums_have_the_bits_of_plain_ones(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.Generator().manual_seed(size)
    vectors = [torch.randn(size, generator=numbers) for _ in range(8)]
    coefficients = torch.rand(8, generator=numbers, dtype=torch.float64).tolist()
    start = torch.randn(size, generator=numbers, dtype=torch.float64)
    found = [weighted_sum(coefficients, vectors, start.clone()), weighted_sum(coefficients[:3], vectors[:3], None)]
    monkeypatch.setattr(native, "kernels", lambda: None)
    plain = [weighted_sum(coefficients, vectors, start.clone()), weighted_sum(coefficients[:3], vectors[:3], None)]
    for (one, finite), (other, _) in zip(found, plain, strict=True):
        assert one is not None and other is not None and torch.equal(one, other) and all(finite)


def test_a_sum_beyond_float32_makes_no_model_unfit() -> None:
    # 3e38 is a float32; two of them are not
    large = torch.full((3,), 3e38)
    assert is_finite(large) and not is_finite(torch.tensor([1.0, math.inf, 0.0]))
    assert weighted_sum([0.5], [large], None)[1] == [True]


@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_merge_that_comes_at_once_has_the_bits_of_one_that_comes_piecemeal(count: int) -> None:
    spec = ParamSpec.of(nn.Linear(5000, 1, bias=False))
    numbers = torch.Generator().manual_seed(count)
    vectors = [torch.randn(5000, generator=numbers) for _ in range(count)]
    shares = torch.rand(count, generator=numbers, dtype=torch.float64).tolist()
    whole, pieces = RunningMerge(spec, count), RunningMerge(spec, count)
    assert whole.add(shares, vectors) == [True] * count
    for share, vector in zip(shares, vectors, strict=True):
        pieces.add([share], [vector])
    assert not whole.empty and whole.result(None).dtype == torch.float32
    assert torch.equal(whole.result(None), pieces.result(None))
    vectors[0][17] = math.nan
    spoilt = RunningMerge(spec, count)
    assert spoilt.add(shares, vectors) == [False] + [True] * (count - 1)
