"""Finding datasets by name; what is said when they are not there."""

from pathlib import Path

import numpy as np
import pytest

from espalier.core.errors import ConfigError, DataError
from espalier.data.entries import ENTRIES
from espalier.data.registry import cache, catalogue, fetch, find, load, places


@pytest.fixture(autouse=True)
def no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ESPALIER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def prepared_svhn(folder: Path, value: int) -> None:
    folder.mkdir(parents=True)
    x = np.full((4, 3, 32, 32), value, np.uint8)
    np.savez(folder / "svhn.npz", x_train=x, y_train=[0, 1, 2, 9], x_test=x, y_test=[0, 1, 2, 9])


def test_the_catalogue_lists_everything_that_is_promised() -> None:
    names = [info.name for info in catalogue()]
    assert names == [
        "digits",
        "mnist",
        "fashion-mnist",
        "emnist",
        "femnist",
        "cifar10",
        "cifar100",
        "svhn",
        "newsgroups20",
        "ham10000",
        "cityscapes",
        "imagenet10",
        "har",
        "magnet",
    ]
    for info in catalogue():
        assert info.licence and info.citation and sum(info.samples) > 0
        assert info.embedded or info.files


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_every_entry_can_be_had_somehow(entry: object) -> None:
    ways = [entry.make is not None, bool(entry.sources), bool(entry.by_hand)]  # type: ignore[attr-defined]
    assert sum(ways) == 1


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Fashion_MNIST", "fashion-mnist"),
        ("CIFAR-10", "cifar10"),
        ("20 Newsgroups", "newsgroups20"),
        ("fmnist", "fashion-mnist"),
    ],
)
def test_names_are_forgiving(said: str, meant: str) -> None:
    assert find(said).name == meant


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(DataError, match=r"no dataset 'mnits'.*Did you mean 'mnist'"):
        load("mnits")


def test_a_missing_dataset_names_files_places_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        load("cifar10", tmp_path / "here")
    text = str(error.value)
    assert "cifar-10-python.tar.gz" in text and "data_batch_1" in text
    assert str(tmp_path / "here") in text and str(cache()) in text
    assert "`espalier data fetch cifar10`" in text


def test_what_cannot_be_fetched_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Register at cityscapes-dataset.com"):
        load("cityscapes", tmp_path)
    with pytest.raises(DataError, match=r"cannot be fetched by a program. Register at"):
        fetch("cityscapes", tmp_path)
    with pytest.raises(DataError, match="Nothing to fetch"):
        fetch("digits", tmp_path)


def test_the_given_directory_comes_before_the_environment_and_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared_svhn(cache() / "svhn", 0)
    assert load("svhn").x_train.max() == 0
    prepared_svhn(tmp_path / "env" / "SVHN", 51)
    monkeypatch.setenv("ESPALIER_DATA", str(tmp_path / "env"))
    assert load("svhn").x_train.max() == pytest.approx(0.2)
    prepared_svhn(tmp_path / "given" / "svhn", 255)
    assert load("svhn", tmp_path / "given").x_train.max() == 1
    assert places(tmp_path / "given") == [tmp_path / "given", tmp_path / "env", cache()]
    where = {info.name: info.where for info in catalogue(tmp_path / "given")}
    assert where["svhn"] == tmp_path / "given" / "svhn" and where["mnist"] is None


def test_options_are_checked_by_name_and_type() -> None:
    with pytest.raises(ConfigError, match=r"no option 'test_fractoin'.*Did you mean 'test_fraction'"):
        load("digits", test_fractoin=0.5)
    with pytest.raises(ConfigError, match=r"Dataset 'digits': option 'test_fraction' = 'half': must be a number"):
        load("digits", test_fraction="half")


def test_an_unfinished_download_is_not_taken_for_data(tmp_path: Path) -> None:
    folder = tmp_path / "newsgroups20"
    folder.mkdir()
    (folder / "20news-bydate.tar.gz.part").write_bytes(b"half")
    with pytest.raises(DataError, match="was not found"):
        load("newsgroups20", tmp_path)


def test_a_users_folder_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no folder"):
        load(str(tmp_path / "pets"))


def test_pixels_are_standardised_on_request() -> None:
    # (0 - .5)/.25 = -2 and (1 - .5)/.25 = 2
    plain, changed = load("digits"), load("digits", mean=[0.5], std=[0.25])
    assert float(plain.x_train.min()) == 0.0
    assert (float(changed.x_train.min()), float(changed.x_train.max())) == (-2.0, 2.0)
    assert np.allclose(changed.x_test.numpy(), (plain.x_test.numpy() - 0.5) / 0.25)


def test_only_images_can_be_standardised_channel_by_channel() -> None:
    with pytest.raises(DataError, match="shape"):
        load("magnet", samples=100, test_samples=50, mean=[0.5])
    with pytest.raises(DataError, match="for each channel"):
        load("digits", mean=[0.5, 0.5, 0.5])
