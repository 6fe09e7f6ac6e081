"""The bundled models, and any module of the user's by import path.

``build("lenet", input_shape=(1, 28, 28), n_classes=10)`` gives an ordinary `nn.Module`;
``build("package.module:Factory", …)`` calls the user's own.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from espalier.core import code
from espalier.core.errors import ConfigError, nearest, raised
from espalier.training.models import images, mlp, text

Factory = Callable[..., nn.Module]

_MODELS: dict[str, Factory] = {
    "logistic": mlp.logistic,
    "mlp": mlp.mlp,
    "mlp_easf": mlp.mlp_easf,
    "mlp_d2d": mlp.mlp_d2d,
    "lenet": images.lenet,
    "fedavg_cnn": images.fedavg_cnn,
    "d2d_cnn": images.d2d_cnn,
    "bag_of_words": text.bag_of_words,
    "lstm": text.lstm,
    "transformer": text.transformer,
    "resnet18": images.resnet18,
    "resnet_small": images.resnet_small,
    "squeezenet": images.squeezenet,
    "unet": images.unet,
}


def names() -> list[str]:
    """Names of the bundled models."""
    return sorted(_MODELS)


def build(name: str, *, input_shape: tuple[int, ...], n_classes: int, **options: Any) -> nn.Module:
    """Build a model.

    Args:
        name: A bundled model's name, or ``package.module:Factory`` for a callable of the user's. That is
            called with ``options`` and with those of ``input_shape`` and ``n_classes`` that it takes.
        input_shape: Shape of one input, without the batch axis; ``(length,)`` for token ids.
        n_classes: Outputs: classes of a classifier, values of a regression, classes per pixel.
        options: The model's own options.
    """
    given = {"input_shape": tuple(input_shape), "n_classes": n_classes}
    if code.is_own(name):
        factory = _own(name)
        options = {k: v for k, v in given.items() if _takes(factory, k)} | options
    elif name in _MODELS:
        factory = _MODELS[name]
        known = [p for p in inspect.signature(factory).parameters if p not in given]
        for key in options:
            if key not in known:
                raise ConfigError(
                    f"model option {key!r} is not known to {name!r}; accepted: {', '.join(known) or 'none'}."
                    f"{nearest(key, known)}"
                )
        options = given | options
    else:
        rows = len(input_shape) == 1 and "vocabulary" not in options
        meant = mlp.FOR_ROWS if rows else nearest(name, _MODELS)
        raise ConfigError(f"model is {name!r}; accepted: {', '.join(names())}, or 'package.module:Factory'.{meant}")
    try:
        model = factory(**options)
        if isinstance(model, nn.Module) and any(map(is_lazy, model.parameters())):
            _fit(model, torch.zeros(2, *input_shape, dtype=torch.long if "vocabulary" in options else torch.float32))
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's code raises
        said = ", ".join(f"{k} = {v!r}" for k, v in options.items()) or "no options"
        raise ConfigError(f"Model {code.short_name(name)!r} cannot be built with {said}: {raised(error)}.") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"Model {code.short_name(name)!r} gave a {type(model).__name__}; a torch.nn.Module is accepted."
        )
    return model


def name_of(model: nn.Module | Factory) -> str:
    """Return the name under which :func:`build` makes a model that is given as an object.

    Raises:
        ConfigError: It is neither a module nor something that can be called.
    """
    return code.name_of(model, "task.model", "a name, an nn.Module, or a class or function that makes one")


def _fit(model: nn.Module, x: Tensor) -> None:
    """Let lazy layers take the sizes that the inputs give them."""
    with torch.no_grad():
        model.eval()(x)
    model.train()


def _own(name: str) -> Factory:
    """Return what makes a model of the user's own: of a module with its weights, copies."""
    found = code.named(name, "task.model")
    return partial(copy.deepcopy, found) if isinstance(found, nn.Module) else found


def _takes(factory: Factory, name: str) -> bool:
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:
        return False
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
