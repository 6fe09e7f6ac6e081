"""The embedded dataset."""

import numpy as np
import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.data.registry import load


def test_real_digits_split_once_and_for_all() -> None:
    data = load("digits")
    assert tuple(data.x_train.shape) == (1438, 1, 8, 8) and tuple(data.x_test.shape) == (359, 1, 8, 8)
    assert float(data.x_train.min()) == 0.0 and float(data.x_train.max()) == 1.0
    assert torch.equal(load("digits").x_test, data.x_test)
    # 1,797 digits, 174 to 183 of each; a fifth of each class is tested.
    whole = np.bincount(np.concatenate([data.cell_train, data.cell_test]))
    assert whole.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (np.abs(np.bincount(data.cell_test) - whole / 5) < 1).all()


def test_train_and_test_share_no_image() -> None:
    data = load("digits", test_fraction=0.5)
    seen = {x.numpy().tobytes() for x in data.x_train}
    assert not any(x.numpy().tobytes() in seen for x in data.x_test)


def test_a_share_out_of_bounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="test_fraction"):
        load("digits", test_fraction=1.0)
