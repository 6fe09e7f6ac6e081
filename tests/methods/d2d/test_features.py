from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from espalier.core.errors import ConfigError
from espalier.core.params import ParamSpec
from espalier.methods.d2d.features import crop_slices, mean_prediction
from espalier.training.models import build

from . import reference
from .digits import digits_fleet


def paper_cnn() -> nn.Module:
    """Table 13 on 3×32×32 inputs."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def test_crop_of_the_papers_cnn():
    # D13: conv1 has 6·3·5·5 + 6 = 456 of 62,006 numbers, 0.735 %: the paper's "0.7 %". conv2 has 2,416.
    spec = ParamSpec.of(paper_cnn())
    assert spec.size == 62_006
    assert crop_slices(spec) == (slice(0, 450), slice(450, 456))
    assert sum(p.stop - p.start for p in crop_slices(spec, 2)) == 456 + 2416
    with pytest.raises(ConfigError, match="2 layers"):
        crop_slices(spec, 3)


def test_crop_takes_the_smallest_layer_wherever_it_is():
    # Conv 1→8 3×3 without bias: 72; conv 8→2 1×1: 16 + 2. BatchNorm and the last layer are no convolutions.
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1), nn.Flatten(), nn.Linear(72, 1)
    )
    spec = ParamSpec.of(net)
    names = {e.name: e for e in spec.entries}
    assert crop_slices(spec) == tuple(slice(names[n].start, names[n].stop) for n in ("2.weight", "2.bias"))
    both = crop_slices(spec, 2)
    assert sum(p.stop - p.start for p in both) == 18 + 72
    assert both[0].start == names["0.weight"].start


def test_crop_leaves_shortcuts_out():
    # ResNet-18, colour images: the stem has 3·3·3·64 = 1,728 weights here, each of the next convolutions 3·3·64·64 =
    # 36,864. The 1×1 projection 64 → 128 on the first shortcut has 8,192, fewer than they: it is no layer of its own.
    spec = ParamSpec.of(build("resnet18", input_shape=(3, 32, 32), n_classes=100))
    projection = next(e for e in spec.parameters if "shortcut" in e.name and len(e.shape) == 4)
    assert projection.stop - projection.start == 8192
    assert [p.stop - p.start for p in crop_slices(spec, 4)] == [1728, 36_864, 36_864, 36_864]


def test_a_model_without_convolutions_is_cropped_to_its_smallest_layer():
    spec = ParamSpec.of(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    assert sum(p.stop - p.start for p in crop_slices(spec)) == 51
    assert crop_slices(ParamSpec.of(nn.Linear(4, 2))) == (slice(0, 8), slice(8, 10))


def test_prediction_is_the_mean_over_whole_batches():
    # D14: 20 samples in batches of 16: the mean of the first 16 (0…15 → 7.5), not the sum over 20.
    logits = np.arange(20.0)[:, None] * np.array([1.0, -2.0])
    assert mean_prediction(logits, 16).tolist() == [7.5, -15.0]
    assert mean_prediction(logits[:5], 16).tolist() == [2.0, -4.0]


def test_digits_every_feature_orders_clusters_alike():
    # A cluster of one label pair against one of all labels: whichever feature is used, the mixed one is closer.
    fleet = digits_fleet()
    mixed, narrow = np.arange(10), np.array([0, 10, 20, 30])
    for features in (fleet.gradients, fleet.gradients[:, -10:], fleet.counts / fleet.samples[:, None]):
        angle = reference.angles(features, fleet.samples)
        assert angle.of(mixed) < angle.of(narrow)
