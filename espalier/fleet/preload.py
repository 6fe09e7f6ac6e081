"""Imported once by the process from which a local fleet's nodes are forked: they start in milliseconds, not seconds."""

from __future__ import annotations

import sklearn.datasets
import torch.fx.experimental.symbolic_shapes

import espalier.fleet.node.launch
import espalier.simulator.dataviews
from espalier.core.method import load_methods

# torch imports symbolic_shapes (and sympy) only when a gradient is first computed
__all__ = ["espalier", "sklearn", "torch"]

load_methods()
