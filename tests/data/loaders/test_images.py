"""Folders of images: HAM10000, Cityscapes, one folder per class."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from espalier.core.errors import ConfigError, DataError
from espalier.data.dataset import VOID
from espalier.data.loaders.cityscapes import CLASSES, train_ids
from espalier.data.registry import load


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, quality=95)


# -- HAM10000 ---------------------------------------------------------------------------------------------


def write_ham(folder: Path, *, sites: bool = True, delimiter: str = ",") -> None:
    """30 lesions of three classes at two clinics, every third with two images."""
    columns = ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization", *(["dataset"] * sites)]
    lines = [delimiter.join(columns)]
    number = 0
    for lesion in range(30):
        for _ in range(2 if lesion % 3 == 0 else 1):
            dx = ("nv", "mel", "bkl")[lesion // 10]
            site = ["vidir_modern" if lesion % 2 else "rosendahl"] * sites
            lines.append(
                delimiter.join([f"HAM_{lesion}", f"ISIC_{number}", dx, "histo", "50.0", "male", "back", *site])
            )
            part = f"HAM10000_images_part_{1 + number % 2}"
            picture(folder / part / f"ISIC_{number}.jpg", (10 * number % 250, 100, 200), (60, 45))
            number += 1
    (folder / f"HAM10000_metadata.{'csv' if delimiter == ',' else 'tab'}").write_text("\n".join(lines))


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_ham10000_splits_by_lesion_and_knows_the_clinics(tmp_path: Path, delimiter: str) -> None:
    write_ham(tmp_path / "ham10000", delimiter=delimiter)
    data = load("ham10000", tmp_path, size=16)
    assert data.input_shape == (3, 16, 16)
    assert data.meta["owners"] == ("rosendahl", "vidir_modern")
    # Two clinics × three classes, five lesions each: one lesion of each stratum is tested.
    assert 6 <= len(data.x_test) <= 12
    assert len(data.x_train) + len(data.x_test) == 40
    # The first channel tells the images of this test apart; no lesion is in both parts.
    seen = {round(float(x[0].mean()) * 255) for x in data.x_train}
    assert len(seen) > 20
    again = load("ham10000", tmp_path, size=16)
    assert torch.equal(data.x_test, again.x_test)


def test_ham10000_without_clinics_has_no_owners(tmp_path: Path) -> None:
    write_ham(tmp_path / "ham10000", sites=False)
    assert load("ham10000", tmp_path, size=8).owner_train is None


def test_ham10000_says_what_is_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "ham10000"
    write_ham(folder)
    table = folder / "HAM10000_metadata.csv"
    good = table.read_text()
    table.write_text(good.replace("nv", "wart", 1))
    with pytest.raises(DataError, match="line 2 has dx='wart'"):
        load("ham10000", tmp_path)
    table.write_text(good.replace("image_id", "image"))
    with pytest.raises(DataError, match="no column 'image_id'"):
        load("ham10000", tmp_path)
    table.write_text(good)
    (folder / "HAM10000_images_part_1" / "ISIC_0.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of 40 images of the table are missing, the first is ISIC_0\.jpg"):
        load("ham10000", tmp_path)
    (folder / "HAM10000_images_part_1" / "ISIC_0.jpg").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"ISIC_0\.jpg cannot be decoded"):
        load("ham10000", tmp_path)
    table.write_text("")
    with pytest.raises(DataError, match="no rows"):
        load("ham10000", tmp_path)


# -- Cityscapes -------------------------------------------------------------------------------------------


def labels_png(path: Path, labels: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(labels, "L").save(path)


def write_cityscapes(folder: Path) -> None:
    """Streets: road (7) below, sky (23) above, a car (26); the ego vehicle (1) is void."""
    for part, cities in (("train", ("aachen", "ulm")), ("val", ("munster",))):
        for city in cities:
            for frame in range(3):
                labels = np.full((32, 64), 7, np.uint8)
                labels[: 24 if city == "ulm" else 8] = 23
                labels[-4:] = 1
                labels[20:24, 10:20] = 26
                stem = f"{city}_{frame:06d}_000019"
                picture(folder / "leftImg8bit" / part / city / f"{stem}_leftImg8bit.png", (9, 9, 9 + frame), (64, 32))
                labels_png(folder / "gtFine" / part / city / f"{stem}_gtFine_labelIds.png", labels)
                # The published folders hold other label images too.
                labels_png(folder / "gtFine" / part / city / f"{stem}_gtFine_instanceIds.png", labels)


def test_cityscapes_scenes_cities_and_majorities(tmp_path: Path) -> None:
    write_cityscapes(tmp_path / "cityscapes")
    data = load("cityscapes", tmp_path, size=[16, 32])
    assert (data.kind, data.n_classes, data.n_cells) == ("segmentation", 19, 19)
    assert tuple(data.x_train.shape) == (6, 3, 16, 32) and tuple(data.y_train.shape) == (6, 16, 32)
    # Road is 0, sky 10, car 13, the ego vehicle void; Aachen's scenes are mostly road, Ulm's mostly sky.
    assert torch.unique(data.y_train).tolist() == [0, 10, 13, VOID]
    assert data.cell_train.tolist() == [0, 0, 0, 10, 10, 10]
    assert data.owner_train is not None and data.owner_train.tolist() == [0, 0, 0, 2, 2, 2]
    assert data.meta["owners"] == ("aachen", "munster", "ulm")


def test_cityscapes_by_city(tmp_path: Path) -> None:
    write_cityscapes(tmp_path / "cityscapes")
    data = load("cityscapes", tmp_path, size=[8, 16], cells="city")
    assert data.n_cells == 3 and data.cell_train.tolist() == [0, 0, 0, 2, 2, 2]
    assert data.cell_test.tolist() == [1, 1, 1]
    with pytest.raises(ConfigError, match="cells"):
        load("cityscapes", tmp_path, cells="town")


def test_cityscapes_refuses_a_scene_without_labels(tmp_path: Path) -> None:
    write_cityscapes(tmp_path / "cityscapes")
    next((tmp_path / "cityscapes/gtFine/val/munster").glob("*labelIds.png")).unlink()
    with pytest.raises(DataError, match="has no label image"):
        load("cityscapes", tmp_path)


def test_train_ids() -> None:
    assert train_ids(np.array([[7, 8, 0], [33, 29, 255]], np.uint8)).tolist() == [[0, 1, VOID], [18, VOID, VOID]]
    assert len(CLASSES) == 19


# -- one folder per class ---------------------------------------------------------------------------------


def test_a_folder_with_parts(tmp_path: Path) -> None:
    for part, n in (("train", 3), ("val", 1)):
        for number, name in enumerate(("n01", "n02")):
            for i in range(n):
                picture(tmp_path / "imagenet10" / part / name / f"{i}.JPEG", (100 * number, 0, 0))
    data = load("imagenet10", tmp_path, size=8)
    assert data.meta["classes"] == ("n01", "n02")
    assert data.y_train.tolist() == [0, 0, 0, 1, 1, 1] and data.input_shape == (3, 8, 8)
    own = load(str(tmp_path / "imagenet10"), size=8)
    assert own.name == "imagenet10" and torch.equal(own.x_train, data.x_train)


def test_a_folder_without_parts_is_split(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        for i in range(10):
            picture(tmp_path / "pets" / name / f"{i}.png", (i, 0, 0))
    data = load(str(tmp_path / "pets"), size=4)
    assert data.y_test.tolist() == [0, 0, 1, 1]
    assert len(data.x_train) == 16


def test_wide_images_are_cut_not_squeezed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        path = tmp_path / "wide" / name / "x.png"
        path.parent.mkdir(parents=True)
        image = np.zeros((10, 30, 3), np.uint8)
        image[:, 10:20] = 255
        for i in range(5):
            Image.fromarray(image).save(path.with_stem(f"x{i}"))
    # The middle square of 30 × 10 pixels is the white third.
    assert float(load(str(tmp_path / "wide"), size=4).x_train[..., 1:3, 1:3].min()) == 1.0


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x" / "empty").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no images"):
        load(str(tmp_path / "x"))
    picture(tmp_path / "x" / "empty" / "1.png", (0, 0, 0))
    with pytest.raises(DataError, match="at least two are needed"):
        load(str(tmp_path / "x"))
    picture(tmp_path / "y" / "train" / "a" / "1.png", (0, 0, 0))
    picture(tmp_path / "y" / "test" / "b" / "1.png", (0, 0, 0))
    with pytest.raises(DataError, match="the classes a, b are in one part only"):
        load(str(tmp_path / "y"))
