"""UCI HAR's text files."""

from pathlib import Path

import numpy as np
import pytest

from espalier.core.errors import DataError
from espalier.data.loaders.har import CHANNELS
from espalier.data.registry import load


def write(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for part, n in (("train", 5), ("test", 3)):
        signals = folder / part / "Inertial Signals"
        signals.mkdir(parents=True)
        for c, channel in enumerate(CHANNELS):
            np.savetxt(signals / f"{channel}_{part}.txt", rng.random((n, 128)) + c, fmt="%16.7e")
        (folder / part / f"y_{part}.txt").write_text("\n".join(str(1 + i % 6) for i in range(n)))
        (folder / part / f"subject_{part}.txt").write_text("\n".join(str(10 + i // 2) for i in range(n)))


def test_reads_nine_channels_and_subjects(tmp_path: Path) -> None:
    write(tmp_path / "UCI HAR Dataset")
    data = load("uci-har", tmp_path)
    assert tuple(data.x_train.shape) == (5, 9, 128)
    assert data.y_train.tolist() == [0, 1, 2, 3, 4]
    assert data.owner_train is not None and data.owner_train.tolist() == [0, 0, 1, 1, 2]
    assert (data.x_train[:, 4].floor() == 4).all()


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("train/y_train.txt", "1\n2", "2 labels"),
        ("train/y_train.txt", "", "y_train.txt is truncated"),
        ("train/subject_train.txt", "1\nx\n", "subject_train.txt is truncated"),
        ("test/Inertial Signals/body_acc_x_test.txt", "1 2\n3", "body_acc_x_test.txt is truncated"),
        ("test/Inertial Signals/body_acc_x_test.txt", "1 2\n3 4\n5 6", r"shapes \[\(3, 2\), \(3, 128\)\]"),
    ],
)
def test_damage_is_named(tmp_path: Path, file: str, content: str, said: str) -> None:
    write(tmp_path / "har")
    (tmp_path / "har" / file).write_text(content)
    with pytest.raises(DataError, match=said):
        load("har", tmp_path)
