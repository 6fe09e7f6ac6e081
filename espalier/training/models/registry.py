"""Models by name."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from espalier.core.errors import ConfigError, nearest
from espalier.training.models import cnn, mlp, resnet, squeezenet, text, unet

Factory = Callable[..., nn.Module]

_MODELS: dict[str, Factory] = {
    "logistic": mlp.logistic,
    "mlp": mlp.mlp,
    "mlp_easf": mlp.mlp_easf,
    "mlp_d2d": mlp.mlp_d2d,
    "lenet": cnn.lenet,
    "fedavg_cnn": cnn.fedavg_cnn,
    "d2d_cnn": cnn.d2d_cnn,
    "lstm": text.lstm,
    "transformer": text.transformer,
    "resnet18": resnet.resnet18,
    "resnet_small": resnet.resnet_small,
    "squeezenet": squeezenet.squeezenet,
    "unet": unet.unet,
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
    if name.startswith(_OBJECT):
        factory = _object(name)
        options = {k: v for k, v in given.items() if _takes(factory, k)} | options
    elif ":" in name:
        factory = _imported(name)
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
        raise ConfigError(
            f"model is {name!r}; accepted: {', '.join(names())}, or 'package.module:Factory'.{nearest(name, _MODELS)}"
        )
    try:
        model = factory(**options)
    except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise ConfigError(f"model {name!r} cannot be built with {options}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model {name!r} gave a {type(model).__name__}; a torch.nn.Module is accepted.")
    return model


#: how the names of models begin that were given as objects and cannot be imported
_OBJECT = "object "
_OBJECTS: dict[str, Factory] = {}


def name_of(model: nn.Module | Factory) -> str:
    """Return the name under which :func:`build` makes a model that is given as an object.

    Classes and functions of a module have their import path. Others, such as a module with its weights, are known in
    this process alone.

    Raises:
        ConfigError: It is neither a module nor something that can be called.
    """
    if not callable(model):
        raise ConfigError(
            f"task.model is a {type(model).__name__}; accepted: a name, an nn.Module, or a class or function that "
            "makes one."
        )
    module, path = getattr(model, "__module__", None), getattr(model, "__qualname__", None)
    if not isinstance(model, nn.Module) and module and path and "<" not in path and module in sys.modules:
        return f"{module}:{path}"
    known = next((n for n, f in _OBJECTS.items() if getattr(f, "of", f) is model), None)
    if known is None:
        known = f"{_OBJECT}{path or type(model).__qualname__} {len(_OBJECTS) + 1}"
        _OBJECTS[known] = _Copies(model) if isinstance(model, nn.Module) else model
    return known


class _Copies:
    """Makes copies of a module."""

    def __init__(self, of: nn.Module) -> None:
        self.of = of

    def __call__(self) -> nn.Module:
        return copy.deepcopy(self.of)


def _object(name: str) -> Factory:
    if name not in _OBJECTS:
        raise ConfigError(
            f"model {name!r} was an object of the process that began the run. Put it into a file as a class or a "
            "function and name it 'file:Name', so that other processes find it."
        )
    return _OBJECTS[name]


def _takes(factory: Factory, name: str) -> bool:
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:
        return False
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _imported(path: str) -> Factory:
    module, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"model {path!r} cannot be imported ({error}); give 'file:Name' of a file in the current directory or "
            "'package.module:Name' of something installed."
        ) from error
    if not callable(found):
        raise ConfigError(f"model {path!r} is a {type(found).__name__}; a callable that returns a module is accepted.")
    factory: Factory = found
    return factory
