"""Arrays become a dataset, or an error that says why not."""

import numpy as np
import pytest
import torch

from espalier.core.errors import DataError
from espalier.data.dataset import VOID, Dataset


def small(**changes: object) -> Dataset:
    given: dict[str, object] = {
        "x_train": np.zeros((4, 3)),
        "y_train": [0, 1, 2, 1],
        "x_test": np.zeros((2, 3)),
        "y_test": [2, 0],
    }
    return Dataset.from_arrays(**{**given, **changes})  # type: ignore[arg-type]


def test_classes_are_the_cells() -> None:
    data = small()
    assert (data.kind, data.n_classes, data.n_cells) == ("classification", 3, 3)
    assert data.cell_train.tolist() == [0, 1, 2, 1]
    assert data.x_train.dtype == torch.float32 and data.y_train.dtype == torch.int64
    assert data.input_shape == (3,)
    assert data.vocabulary is None


def test_pools_gather_rows_and_stay_the_same_object() -> None:
    data = small(x_train=np.arange(12).reshape(4, 3).astype(float))
    x, y = data.pool().gather(torch.tensor([2, 0, 2]))
    assert x.tolist() == [[6, 7, 8], [0, 1, 2], [6, 7, 8]]
    assert y.tolist() == [2, 0, 2]
    assert data.pool("test") is data.test_pool
    assert len(data.pool()) == 4


def test_pixels_are_scaled_and_brought_to_channels_first() -> None:
    grey = small(x_train=np.full((4, 5, 6), 255, np.uint8), x_test=np.zeros((2, 5, 6), np.uint8))
    assert grey.input_shape == (1, 5, 6)
    assert float(grey.x_train.min()) == 1.0
    colour = np.zeros((4, 5, 6, 3), np.uint8)
    colour[..., 2] = 51
    last = small(x_train=colour, x_test=colour[:2])
    assert last.input_shape == (3, 5, 6)
    # 51 / 255 = 0.2, in the third channel only.
    assert last.x_train[0, :, 0, 0].tolist() == pytest.approx([0, 0, 0.2])


def test_other_integers_are_token_ids() -> None:
    data = small(x_train=np.ones((4, 7), np.int32), x_test=np.ones((2, 7), np.int32), meta={"vocabulary": 9})
    assert data.x_train.dtype == torch.int64
    assert data.vocabulary == 9


def test_floats_are_a_regression_of_one_cell() -> None:
    data = small(y_train=np.ones((4, 2)), y_test=np.ones((2, 2)))
    assert (data.kind, data.n_classes, data.n_cells) == ("regression", 2, 1)


def test_label_images_are_a_segmentation_by_majority() -> None:
    y = np.array([[[0, 1], [1, VOID]], [[VOID, VOID], [VOID, 2]]])
    data = small(x_train=np.zeros((2, 3, 2, 2)), y_train=y, x_test=np.zeros((2, 3, 2, 2)), y_test=y)
    assert (data.kind, data.n_classes) == ("segmentation", 3)
    # The first image has two pixels of 1 and one of 0; the second has only 2, the rest is void.
    assert data.cell_train.tolist() == [1, 2]


def test_names_become_numbers() -> None:
    data = small(
        y_train=["cat", "dog", "eel", "dog"],
        y_test=["eel", "cat"],
        owner_train=["ann", "bob", "ann", "bob"],
        owner_test=["cy", "ann"],
    )
    assert data.y_train.tolist() == [0, 1, 2, 1]
    assert data.meta["classes"] == ("cat", "dog", "eel")
    assert data.owner_train is not None and data.owner_train.tolist() == [0, 1, 0, 1]
    assert data.owner_test is not None and data.owner_test.tolist() == [2, 0]
    assert data.meta["owners"] == ("ann", "bob", "cy")


def test_the_callers_arrays_are_copied() -> None:
    x = np.zeros((4, 3), np.float32)
    data = small(x_train=x)
    x[:] = 1
    assert float(data.x_train.max()) == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y_train": [0, 1]}, "y_train has 2 rows, x_train has 4"),
        ({"x_test": np.zeros((2, 4))}, "they must agree"),
        ({"y_train": [0, -1, 2, 1]}, "numbered from 0"),
        ({"n_classes": 2}, "class 2 with n_classes=2"),
        ({"x_train": np.full((4, 3), np.nan)}, "not finite"),
        ({"x_train": np.zeros(4)}, "at least two axes"),
        ({"x_train": np.array([["a"]] * 4)}, "accepted are pixels"),
        ({"owner_train": [1, 2]}, "owner_train has 2 rows"),
        ({"owner_train": [1] * 4, "owner_test": ["a", "b"]}, "give the same type"),
        ({"cell_train": [0, 0, 0, 0]}, "give both cell_train and cell_test"),
        ({"cell_train": [0, -1, 0, 0], "cell_test": [0, 0]}, "accepted are 0…"),
        ({"kind": "classification", "y_train": np.zeros((4, 2), int)}, "whole numbers with 1 axis"),
        ({"x_train": np.zeros((0, 3)), "y_train": np.zeros(0, int)}, "no rows"),
        ({"y_train": np.ones((4, 2)), "y_test": np.ones((2, 3))}, "2 and 3 outputs"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(DataError, match=said):
        small(**changes)


def test_floats_that_are_whole_numbers_are_not_taken_for_amounts() -> None:
    x, y = np.zeros((6, 2)), np.array([0.0, 1.0, 2.0, 0.0, 1.0, 2.0])
    with pytest.raises(DataError, match=r"whole numbers \(0, 1, 2 …\).*kind='regression'"):
        Dataset.from_arrays(x, y, x, y)
    assert Dataset.from_arrays(x, y, x, y, kind="regression").kind == "regression"
    assert Dataset.from_arrays(x, y.astype(int), x, y.astype(int)).kind == "classification"
    # measured amounts are what they were
    assert Dataset.from_arrays(x, y + 0.25, x, y).kind == "regression"
