import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.training.merged.pool import shortcut


def both(x, *args, **kwargs):
    """Output and gradient of the shortcut and of the library, for an upstream gradient that tells places apart."""
    found = []
    for pooled in (lambda t: shortcut(F.max_pool2d, t, *args, **kwargs), lambda t: F.max_pool2d(t, *args, **kwargs)):
        leaf = x.clone().requires_grad_()
        out = pooled(leaf)
        out.backward(torch.arange(1.0, out.numel() + 1).view(out.shape))
        found.append((out.detach(), leaf.grad))
    return found


@settings(deadline=None, max_examples=50)
@given(
    values=st.lists(st.integers(-2, 2), min_size=96, max_size=96),
    shape=st.sampled_from([(1, 6, 4, 4), (2, 3, 4, 4), (3, 2, 2, 8), (4, 1, 6, 4), (6, 4, 4)]),
)
def test_it_is_the_library_bit_for_bit_ties_included(values, shape):
    ours, theirs = both(torch.tensor(values, dtype=torch.float32).view(shape), 2)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_other_windows_go_to_the_library():
    x = torch.randn(2, 3, 7, 8)
    for args, kwargs in [((2,), {}), ((3, 2, 1), {}), ((2, 2), {"ceil_mode": True}), ((2, 1), {}), (((1, 2),), {})]:
        ours, theirs = both(x, *args, **kwargs)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_strides_may_be_given_in_any_way():
    x = torch.randn(2, 3, 4, 4)
    for args, kwargs in [(((2, 2), (2, 2)), {}), ((2,), {"stride": 2, "padding": 0})]:
        ours, theirs = both(x, *args, **kwargs)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
