"""FEMNIST as LEAF writes it."""

import json
from pathlib import Path

import numpy as np
import pytest

from espalier.core.errors import DataError
from espalier.data.registry import load


def leaf(users: dict[str, list[int]]) -> dict[str, object]:
    rng = np.random.default_rng(0)
    return {
        "users": list(users),
        "num_samples": [len(y) for y in users.values()],
        "user_data": {u: {"x": rng.random((len(y), 784)).round(3).tolist(), "y": y} for u, y in users.items()},
    }


def write(root: Path) -> Path:
    for part, files in (
        ("train", {"all_data_0.json": {"f0": [1, 61], "f1": [5]}, "all_data_1.json": {"f2": [7, 7, 8]}}),
        ("test", {"all_data_0.json": {"f0": [2], "f2": [9]}}),
    ):
        folder = root / "femnist" / part
        folder.mkdir(parents=True)
        for name, users in files.items():
            (folder / name).write_text(json.dumps(leaf(users)))
    return root / "femnist"


def test_reads_writers_over_several_files(tmp_path: Path) -> None:
    write(tmp_path)
    data = load("femnist", tmp_path)
    assert tuple(data.x_train.shape) == (6, 1, 28, 28)
    assert data.n_classes == 62 and data.y_train.tolist() == [1, 61, 5, 7, 7, 8]
    assert data.owner_train is not None and data.owner_train.tolist() == [0, 0, 1, 2, 2, 2]
    assert data.owner_test is not None and data.owner_test.tolist() == [0, 2]
    assert data.meta["owners"] == ("f0", "f1", "f2")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"users": [', "truncated"),
        (json.dumps({"users": ["a"]}), "no 'num_samples'"),
        (json.dumps({**leaf({"a": [1, 2]}), "num_samples": [3]}), "num_samples 3"),
        (json.dumps({**leaf({"a": [1]}), "user_data": {}}), "no 'a'"),
        (json.dumps({"users": [], "num_samples": [], "user_data": {}}), "holds no users"),
        (json.dumps([1, 2]), "truncated or of another format"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: str, said: str) -> None:
    folder = write(tmp_path)
    (folder / "test" / "all_data_0.json").write_text(content)
    with pytest.raises(DataError, match=said):
        load("femnist", tmp_path)
