from __future__ import annotations

import numpy as np

from espalier.core.seeds import key, stream


def test_a_stream_is_philox_with_the_addresss_key() -> None:
    for seed, path in ((0, ()), (3, ("batches", 7)), (2**40, ("select", 5, "x", 1))):
        mine, plain = stream(seed, *path), np.random.Generator(np.random.Philox(key=key(seed, *path)))
        assert np.array_equal(mine.random(33), plain.random(33))
        assert np.array_equal(mine.permutation(97), plain.permutation(97))
        assert np.array_equal(mine.standard_normal(8), plain.standard_normal(8))
