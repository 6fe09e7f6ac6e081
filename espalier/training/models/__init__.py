"""The bundled models, and any module of the user's by import path.

``build("lenet", input_shape=(1, 28, 28), n_classes=10)`` gives an ordinary `nn.Module`;
``build("package.module:Factory", …)`` calls the user's own.
"""

from espalier.training.models.registry import build, name_of, names

__all__ = ["build", "name_of", "names"]
