"""CFLHKD on street scenes in Cityscapes' folder format, drawn here: three cities, each with colours of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import espalier
from espalier.data import registry
from espalier.data.dataset import Dataset
from espalier.methods.cflhkd.measures import shocks

#: colours of sky, building and road; labelIds 23, 11 and 7
CITIES = {
    "aachen": ((90, 140, 230), (150, 90, 60), (70, 70, 75)),
    "bremen": ((190, 190, 195), (120, 60, 60), (100, 95, 90)),
    "ulm": ((240, 170, 110), (200, 200, 190), (50, 50, 60)),
}
SETTING: dict[str, Any] = {
    "task": {"dataset": "cityscapes", "model": "unet", "model_options": {"width": 4, "depth": 2}},
    "partition": {"kind": "owner", "level": "edge", "fraction": 0.8, "val_fraction": 0.1},
    "fleet": {"devices": 6, "edges": 3},
    "training": {"batch_size": 4, "updates": 2, "lr": 0.1},
    "stop": {"rounds": 6},
    "record": {"spans": False},
}
METHOD = {"name": "cflhkd", "share_every": 3, "cluster_every": 3, "tell_every": 3}


def draw(folder: Path, part: str, city: str, number: int) -> None:
    """Draw a street: sky above, houses of random height, the road below, a void strip where the car's bonnet is."""
    rng = np.random.default_rng([number, *city.encode(), *part.encode()])
    labels = np.full((32, 64), 23, np.uint8)
    left = 0
    while left < 64:
        wide = int(rng.integers(6, 16))
        labels[int(rng.integers(4, 18)) : 22, left : left + wide] = 11
        left += wide + int(rng.integers(0, 5))
    labels[22:] = 7
    labels[-2:] = 1
    sky, house, road = CITIES[city]
    colours = np.zeros((256, 3))
    colours[[23, 11, 7, 1]] = sky, house, road, (20, 20, 20)
    image = np.clip(colours[labels] + rng.normal(0, 12, (32, 64, 3)), 0, 255).astype(np.uint8)
    stem = f"{city}_{number:06d}_000019"
    for top, name, picture in (("leftImg8bit", "leftImg8bit", image), ("gtFine", "gtFine_labelIds", labels)):
        path = folder / top / part / city / f"{stem}_{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)


@pytest.fixture(scope="module")
def streets(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("data")
    for city in CITIES:
        for number in range(20):
            draw(folder / "cityscapes", "train", city, number)
        for number in range(6):
            draw(folder / "cityscapes", "val", city, number)
    return registry.load("cityscapes", folder, size=[16, 32])


def test_it_learns_to_segment_and_counts_miou(streets: Dataset) -> None:
    run = espalier.simulate(METHOD, SETTING, dataset=streets)
    frame = run.frame()
    # Three of 19 classes occur; guessing one of them everywhere gives at most a third of the pixels.
    assert frame["miou_device"].iloc[-1] > 0.6 > frame["miou_device"].iloc[0]
    assert frame["miou_global"].iloc[-1] > 0.5
    # Accuracies on held-out pixels went into the blend.
    assert [e["round"] for e in run.events("weights")] == [3, 6]


def test_cities_that_grow_darker(streets: Dataset) -> None:
    world = {
        "preset": "ideal",
        "drift": {"kind": "gradual", "feature": "brightness", "start": 3, "end": 6, "amount": -0.4},
    }
    run = espalier.simulate(METHOD, {**SETTING, "world": world, "stop": {"rounds": 8}}, dataset=streets)
    (found,) = shocks(run, "miou_device")
    # Features drift, labels do not: nobody tells, and the clusters stay.
    assert found.devices == 6
    assert all(e["why"] in ("start", "schedule") for e in run.events("arranged"))


def test_distillation_of_pixels(streets: Dataset) -> None:
    run = espalier.simulate({**METHOD, "distil": 1}, SETTING, dataset=streets)
    assert run.frame()["miou_global"].iloc[-1] > 0.5
