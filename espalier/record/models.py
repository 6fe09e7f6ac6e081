"""The models that a run keeps: the global one, clusters', edges', devices'. Written at the end, found by who uses them.

``models/NAME.safetensors`` is a state dict: ``global``, ``global-GROUP`` (a cluster's), ``edge-N``. Devices that have
models of their own are rows of one file, ``models/devices.safetensors``. Who uses which is in the run's record. How
devices use a model with their label prior, if they do, is in ``models/priors.safetensors``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from espalier.core.errors import RunError
from espalier.core.params import ParamSpec

DEVICES, PRIORS = "devices", "priors"
#: by what a device multiplies a model's outputs, and what it adds to them ``[n_classes]``
Prior = tuple[float, NDArray[np.float64]]


class WithPrior(nn.Module):
    """A model as a device uses it: its outputs times a factor, and the logarithm of the device's label prior."""

    def __init__(self, model: nn.Module, factor: float, prior: NDArray[np.float64]) -> None:
        """Take a model whose outputs are logits."""
        super().__init__()
        self.model = model
        like = next((p.dtype for p in model.parameters()), torch.float32)
        self.register_buffer("factor", torch.tensor(factor, dtype=like))
        self.register_buffer("prior", torch.as_tensor(prior, dtype=like))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the device's answers."""
        found: Tensor = self.get_buffer("factor") * self.model(x) + self.get_buffer("prior")
        return found


@dataclass(frozen=True)
class KeptModels:
    """Final models as flat vectors, and who uses which.

    Attributes:
        named: The root's by group and the edges', by name.
        personal: Devices' own, by device.
        edges: Which of the named ones each edge uses; an edge without one for all is not there.
        devices: Which of the named ones each device uses ("": its own); empty if nobody wants to know.
        priors: How devices use them with their label priors, by device.
    """

    named: Mapping[str, Tensor]
    personal: Mapping[int, Tensor] = field(default_factory=dict)
    edges: Mapping[int, str] = field(default_factory=dict)
    devices: Sequence[str] = ()
    priors: Mapping[int, Prior] = field(default_factory=dict)

    def files(self, spec: ParamSpec) -> Iterator[tuple[str, bytes]]:
        """Yield the files to write: name and content."""
        for name, vector in self.named.items():
            views = {k: v.clone() for k, v in spec.views(vector).items()}
            yield f"{name}.safetensors", to_bytes(views)
        if self.personal:
            rows = {"device": torch.tensor(list(self.personal)), "vector": torch.stack(list(self.personal.values()))}
            yield f"{DEVICES}.safetensors", to_bytes(rows)
        if self.priors:
            factors, offsets = zip(*self.priors.values(), strict=True)
            rows = {"device": torch.tensor(list(self.priors)), "factor": torch.tensor(factors, dtype=torch.float64)}
            yield f"{PRIORS}.safetensors", to_bytes({**rows, "prior": torch.from_numpy(np.stack(offsets))})

    def users(self) -> dict[str, Any]:
        """Return who uses which, as plain data."""
        names = list(dict.fromkeys(self.devices))
        return {
            "edges": {str(k): v for k, v in self.edges.items()},
            "names": names,
            "devices": [names.index(n) for n in self.devices],
        }

    @property
    def known(self) -> list[str]:
        """The names of what can be asked for."""
        return [*self.named, *(f"device-{d}" for d in self.personal)]

    def find(self, name: str, spec: ParamSpec) -> Tensor:
        """Return a model by name."""
        if name in self.named:
            return self.named[name]
        device = name.removeprefix("device-")
        if device != name and device.isdecimal() and int(device) in self.personal:
            return self.personal[int(device)]
        raise unknown(name, self.known)

    def prior(self, device: int) -> Prior | None:
        """Return how a device uses a model with its label prior."""
        return self.priors.get(device)


@dataclass(frozen=True)
class SavedModels:
    """The models of a run directory."""

    folder: Path

    @property
    def known(self) -> list[str]:
        """The names of what can be asked for."""
        found = [p.stem for p in sorted(self.folder.glob("*.safetensors")) if p.stem not in (DEVICES, PRIORS)]
        return [*found, *(f"device-{d}" for d in self._owners())]

    def find(self, name: str, spec: ParamSpec) -> Tensor:
        """Return a model by name."""
        path = self.folder / f"{name}.safetensors"
        if path.is_file() and name not in (DEVICES, PRIORS):
            return spec.flatten(load_file(path))
        owners = self._owners()
        device = name.removeprefix("device-")
        if device == name or not device.isdecimal() or int(device) not in owners:
            raise unknown(name, self.known)
        with safe_open(self.folder / f"{DEVICES}.safetensors", framework="pt") as file:
            row: Tensor = file.get_slice("vector")[owners.index(int(device))]
        return row

    def prior(self, device: int) -> Prior | None:
        """Return how a device uses a model with its label prior."""
        path = self.folder / f"{PRIORS}.safetensors"
        rows = load_file(path) if path.is_file() else {"device": torch.zeros(0)}
        found = (rows["device"] == device).nonzero()
        return (float(rows["factor"][found[0]]), rows["prior"][found[0, 0]].numpy()) if len(found) else None

    def _owners(self) -> list[int]:
        path = self.folder / f"{DEVICES}.safetensors"
        if not path.is_file():
            return []
        with safe_open(path, framework="pt") as file:
            found: list[int] = file.get_tensor("device").tolist()
        return found


def unknown(name: str, known: Sequence[str]) -> RunError:
    """Return the error for a model that was not kept."""
    shown = ", ".join(known[:8]) + (f" … ({len(known)})" if len(known) > 8 else "") or "none yet"
    return RunError(f"The run has no model {name!r}; known: {shown}. The setting record.models says which are kept.")
