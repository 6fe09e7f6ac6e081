import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.training.merged.products import add_product, aligned, product

SIDE = st.integers(1, 12)


def stacks(k, a, m, b, *, turned=False):
    g = torch.Generator().manual_seed(a * 1000 + m * 100 + b)
    left = torch.randn(k, m, a, generator=g).transpose(1, 2) if turned else torch.randn(k, a, m, generator=g)
    return left, torch.randn(k, m, b, generator=g), torch.randn(k, a, b, generator=g)


@settings(deadline=None, max_examples=100)
@given(a=SIDE, m=st.integers(1, 40), b=SIDE, turned=st.booleans())
def test_a_clients_product_does_not_depend_on_its_place(a, m, b, turned):
    left, right, plus = stacks(5, a, m, b, turned=turned)
    whole, summed, total = product(left, right), product(left, right, plus[:, :1]), plus.clone()
    add_product(total, left, right, fresh=False)
    for k in range(5):
        one = [t[k : k + 1].clone() for t in (right, plus)]
        alone = left[k : k + 1].transpose(1, 2).clone().transpose(1, 2) if turned else left[k : k + 1].clone()
        assert torch.equal(product(alone, one[0]), whole[k : k + 1])
        assert torch.equal(product(alone, one[0], one[1][:, :1]), summed[k : k + 1])
        add_product(one[1], alone, one[0], fresh=False)
        assert torch.equal(one[1], total[k : k + 1])


@pytest.mark.parametrize(("a", "m", "b"), [(9, 20, 6), (8, 5, 4), (1, 1, 1)])
def test_it_is_the_product(a, m, b):
    left, right, plus = (t.double() for t in stacks(3, a, m, b))
    expected = torch.einsum("kam,kmb->kab", left, right)
    assert torch.allclose(product(left, right), expected)
    assert torch.allclose(product(left, right, plus), expected + plus)
    for fresh in (False, True):
        total = plus.clone()
        add_product(total, left, right, fresh=fresh)
        assert torch.allclose(total, expected if fresh else expected + plus)


def test_alignment_keeps_values_and_layout():
    stack = torch.arange(54.0).view(2, 9, 3)
    for given_ in (stack, stack.transpose(1, 2), torch.arange(55.0)[1:].view(2, 9, 3)):
        found = aligned(given_)
        assert torch.equal(found, given_)
        assert found.stride()[1:] == given_.stride()[1:]
        assert all(found[k].data_ptr() % 16 == 0 for k in range(2))
    whole = torch.zeros(2, 4, 4)
    assert aligned(whole) is whole
