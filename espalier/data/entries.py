"""The datasets of the catalogue: what their publishers say of them is in ``datasets.toml``, who reads them is here."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from espalier.data.loaders import (
    cifar,
    cityscapes,
    digits,
    ham10000,
    har,
    idx,
    imagefolder,
    leaf,
    magnet,
    newsgroups,
    svhn,
)
from espalier.data.loaders.base import DatasetEntry, Layout, Source, checked
from espalier.data.loaders.npz import prepared

CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")

#: the ways in which each dataset's files may lie in a folder
LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "mnist": (idx.mnist_layout("mnist", tuple("0123456789")), prepared("mnist", "classification", 10)),
    "fashion-mnist": (idx.mnist_layout("fashion-mnist", CLOTHES), prepared("fashion-mnist", "classification", 10)),
    "emnist": (*idx.EMNIST_LAYOUTS, prepared("emnist", "classification", 47)),
    "femnist": leaf.LAYOUTS,
    "cifar10": (*cifar.layouts(hundred=False), prepared("cifar10", "classification", 10)),
    "cifar100": (*cifar.layouts(hundred=True), prepared("cifar100", "classification", 100)),
    "svhn": (*svhn.LAYOUTS, prepared("svhn", "classification", 10)),
    "newsgroups20": newsgroups.LAYOUTS,
    "ham10000": (*ham10000.LAYOUTS, prepared("ham10000", "classification", 7, sized=True)),
    "cityscapes": cityscapes.LAYOUTS,
    "imagenet10": (imagefolder.imagenet10_layout(),),
    "har": (*har.LAYOUTS, prepared("har", "classification", 6)),
}


def _entry(name: str, table: dict[str, Any]) -> DatasetEntry:
    sources = tuple(Source(**source) for source in table.pop("sources", ()))
    fields = checked(DatasetEntry, table, f"Dataset {name!r}")
    return DatasetEntry(name=name, layouts=LAYOUTS[name], sources=sources, **fields)


_PUBLISHED = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text(encoding="utf-8"))

ENTRIES: tuple[DatasetEntry, ...] = (
    digits.ENTRY,
    *(_entry(name, table) for name, table in _PUBLISHED.items()),
    magnet.ENTRY,
)
