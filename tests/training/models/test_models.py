import pytest
import torch
from torch import nn

from espalier.core.errors import ConfigError
from espalier.core.params import ParamSpec
from espalier.training.models import build, names
from espalier.training.models.mlp import CubeRoot


def count(name, shape, classes, **options):
    module = build(name, input_shape=shape, n_classes=classes, **options)
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        # 25·1·32+32 + 25·32·64+64 + 3136·512+512 + 512·10+10
        ("fedavg_cnn", (1, 28, 28), 10, 1_663_370),
        ("fedavg_cnn", (3, 32, 32), 10, 2_156_490),
        # 456 + 2416 + 400·120+120 + 120·84+84 + 84·10+10
        ("d2d_cnn", (3, 32, 32), 10, 62_006),
        ("lenet", (1, 28, 28), 10, 61_706),
        ("mlp", (1, 28, 28), 10, 199_210),
        ("mlp_easf", (1, 28, 28), 10, 567_434),
        # 48·2048+2048 + 2(2048²+2048) + 2048·6+6
        ("mlp_d2d", (48,), 6, 8_505_350),
        ("logistic", (1, 8, 8), 10, 650),
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("resnet18", (3, 64, 64), 1000, 11_689_512),
        ("squeezenet", (3, 32, 32), 100, 773_796),
        ("squeezenet", (3, 224, 224), 1000, 1_235_496),
    ],
)
def test_parameters_are_as_many_as_published(name, shape, classes, expected):
    assert count(name, shape, classes) == expected


def test_the_d2d_papers_smallest_convolution_has_456_numbers():
    spec = ParamSpec.of(build("d2d_cnn", input_shape=(3, 32, 32), n_classes=10))
    assert sum(e.stop - e.start for e in spec.entries if e.name.startswith("0.")) == 456


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("lenet", (1, 8, 8), {}),
        ("lenet", (3, 33, 20), {}),
        ("fedavg_cnn", (1, 30, 27), {}),
        ("d2d_cnn", (1, 17, 32), {}),
        ("resnet18", (3, 64, 64), {}),
        ("resnet_small", (1, 9, 9), {"width": 5}),
        ("resnet_small", (3, 16, 15), {"width": 4, "stride": 2}),
        ("squeezenet", (1, 16, 17), {}),
        ("squeezenet", (3, 64, 64), {}),
        ("bag_of_words", (7,), {"vocabulary": 20}),
        ("lstm", (7,), {"vocabulary": 20}),
        ("transformer", (7,), {"vocabulary": 20}),
        ("mlp", (3, 4), {"hidden": [5], "dropout": 0.5}),
    ],
)
def test_any_size_of_input_gives_a_score_per_class(name, shape, options):
    module = build(name, input_shape=shape, n_classes=4, **options)
    x = torch.randint(0, 20, (2, *shape)) if "vocabulary" in options else torch.randn(2, *shape)
    assert module(x).shape == (2, 4)


def test_a_unet_scores_every_pixel():
    module = build("unet", input_shape=(3, 16, 24), n_classes=5, width=2)
    assert module(torch.randn(2, 3, 16, 24)).shape == (2, 5, 16, 24)


@pytest.mark.parametrize("name", ["bag_of_words", "lstm", "transformer"])
def test_padding_says_nothing(name):
    module = build(name, input_shape=(6,), n_classes=3, vocabulary=9).eval()
    text = torch.tensor([[3, 5, 2, 0, 0, 0]])
    if name != "lstm":
        longer = torch.tensor([[3, 5, 2]])
        assert torch.allclose(module(text), module(longer), atol=1e-6)
    empty = module(torch.zeros(2, 6, dtype=torch.int64))
    assert torch.isfinite(empty).all()


def test_the_cube_root_keeps_the_sign():
    assert torch.allclose(CubeRoot()(torch.tensor([-8.0, 0.0, 27.0])), torch.tensor([-2.0, 0.0, 3.0]))


@pytest.mark.parametrize(
    ("name", "shape", "options", "word"),
    [
        ("lenett", (1, 8, 8), {}, "Did you mean 'lenet'"),
        ("mlp", (4,), {"hiden": (3,)}, "Did you mean 'hidden'"),
        ("logistic", (4,), {"hidden": (3,)}, "accepted: none"),
        ("mlp", (4,), {"hidden": (0,)}, "model.hidden"),
        ("lenet", (8,), {}, "channels, height, width.* fit 'mlp' and 'logistic'"),
        ("cnn", (33,), {}, "model is 'cnn'; .* Rows of numbers, such as a table's, fit 'mlp' and 'logistic'"),
        ("d2d_cnn", (1, 8, 8), {}, "at least 16"),
        ("resnet18", (8,), {}, "channels, height, width"),
        ("resnet_small", (1, 8, 8), {"width": 0}, "model.width"),
        ("resnet_small", (1, 8, 8), {"stride": 0}, "model.stride"),
        ("squeezenet", (1, 8, 8), {}, "at least 16"),
        ("unet", (1, 12, 12), {}, "multiples of 8"),
        ("unet", (1, 8, 8), {"depth": 0}, "model.depth"),
        ("lstm", (1, 8), {"vocabulary": 5}, r"shape \(length,\)"),
        ("lstm", (8,), {"vocabulary": 0}, "model.vocabulary"),
        ("transformer", (8,), {"vocabulary": 5, "size": 10, "heads": 4}, "multiple of heads"),
        ("nowhere.at_all:Model", (8,), {}, "cannot be imported"),
        ("torch.nn:Nothing", (8,), {}, "cannot be imported"),
        ("math:pi", (8,), {}, "a callable"),
        ("builtins:dict", (8,), {}, "gave a dict"),
    ],
)
def test_what_cannot_be_built_is_refused(name, shape, options, word):
    with pytest.raises(ConfigError, match=word):
        build(name, input_shape=shape, n_classes=3, **options)


def made(n_classes, size=2):
    return nn.Linear(size, n_classes)


def test_a_users_factory_gets_what_it_takes():
    module = build(f"{__name__}:made", input_shape=(9,), n_classes=4, size=7)
    assert isinstance(module, nn.Linear)
    assert (module.in_features, module.out_features) == (7, 4)
    assert isinstance(build("torch.nn:Linear", input_shape=(9,), n_classes=4, in_features=2, out_features=3), nn.Linear)


def test_names_are_listed():
    assert set(names()) >= {"lenet", "fedavg_cnn", "d2d_cnn", "mlp", "lstm", "transformer", "resnet18", "unet"}


class Lazy(nn.Module):
    """Sizes that the first inputs decide; ``gap``: inputs that it cannot take."""

    def __init__(self, n_classes: int, gap: bool = False) -> None:
        super().__init__()
        first = nn.Conv2d(1, 1, 3) if gap else nn.LazyLinear(8)
        self.layers = nn.Sequential(first, nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(n_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


def test_lazy_layers_take_the_sizes_of_the_data() -> None:
    model = build(f"{__name__}:Lazy", input_shape=(5,), n_classes=3)
    assert [tuple(p.shape) for p in model.parameters()] == [(8, 5), (8,), (8,), (8,), (3, 8), (3,)]
    assert model.training and int(dict(model.named_buffers())["layers.1.num_batches_tracked"]) == 0
    with pytest.raises(ConfigError, match="cannot be built with n_classes = 3, gap = True"):
        build(f"{__name__}:Lazy", input_shape=(5,), n_classes=3, gap=True)
