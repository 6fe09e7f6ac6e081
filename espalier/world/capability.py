"""What a device may do: some lack the power, storage or bandwidth to aggregate (EASF's case study)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espalier.core.bounds import Share
from espalier.core.errors import WorldError
from espalier.core.spec import Spec
from espalier.world.draws import Field, chosen
from espalier.world.shape import Shape


class Capability(Spec, ABC, family="capability"):
    """Which devices may be aggregators."""

    @abstractmethod
    def mask(self, shape: Shape) -> NDArray[np.bool_]:
        """Tell which devices may aggregate, [N]."""


@dataclass(frozen=True)
class Everyone(Capability, kind="all"):
    """Every device may aggregate."""

    def mask(self, shape: Shape) -> NDArray[np.bool_]:
        """Choose all."""
        return np.ones(shape.n_devices, dtype=np.bool_)


@dataclass(frozen=True)
class Fraction(Capability, kind="fraction"):
    """A fraction of the devices, chosen by the seed, may aggregate; at least one does."""

    fraction: Share = 0.5

    def mask(self, shape: Shape) -> NDArray[np.bool_]:
        """Choose a fraction."""
        u = Field.of(shape.seed, "capability").many(np.arange(shape.n_devices))
        return chosen(u, max(self.fraction, 1 / shape.n_devices))


@dataclass(frozen=True)
class Listed(Capability, kind="listed"):
    """The listed devices may aggregate, and no others."""

    devices: tuple[int, ...]

    def check(self) -> None:
        """Refuse an empty list."""
        self.require(len(self.devices) > 0, "devices", "a list of at least one device")

    def mask(self, shape: Shape) -> NDArray[np.bool_]:
        """Choose the listed ones."""
        mask = np.zeros(shape.n_devices, dtype=np.bool_)
        for device in self.devices:
            if not 0 <= device < shape.n_devices:
                raise WorldError(f"capability.devices has {device}: must be a device, 0 … {shape.n_devices - 1}.")
            mask[device] = True
        return mask
