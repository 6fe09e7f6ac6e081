"""The models that a run keeps: the global one, clusters', edges', devices'. Written at the end, found by who uses them.

``models/NAME.safetensors`` is a state dict: ``global``, ``global-GROUP`` (a cluster's), ``edge-N``. Devices that have
models of their own are rows of one file, ``models/devices.safetensors``. Who uses which is in the run's record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from espalier.core.errors import RunError
from espalier.core.params import ParamSpec

DEVICES = "devices"


@dataclass(frozen=True)
class KeptModels:
    """Final models as flat vectors, and who uses which.

    Attributes:
        named: The root's by group and the edges', by name.
        personal: Devices' own, by device.
        edges: Which of the named ones each edge uses; an edge without one for all is not there.
        devices: Which of the named ones each device uses ("": its own); empty if nobody wants to know.
    """

    named: Mapping[str, Tensor]
    personal: Mapping[int, Tensor] = field(default_factory=dict)
    edges: Mapping[int, str] = field(default_factory=dict)
    devices: Sequence[str] = ()

    def files(self, spec: ParamSpec) -> Iterator[tuple[str, bytes]]:
        """Yield the files to write: name and content."""
        for name, vector in self.named.items():
            views = {k: v.clone() for k, v in spec.views(vector).items()}
            yield f"{name}.safetensors", to_bytes(views)
        if self.personal:
            rows = {"device": torch.tensor(list(self.personal)), "vector": torch.stack(list(self.personal.values()))}
            yield f"{DEVICES}.safetensors", to_bytes(rows)

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


@dataclass(frozen=True)
class SavedModels:
    """The models of a run directory."""

    folder: Path

    @property
    def known(self) -> list[str]:
        """The names of what can be asked for."""
        found = [p.stem for p in sorted(self.folder.glob("*.safetensors")) if p.stem != DEVICES]
        return [*found, *(f"device-{d}" for d in self._owners())]

    def find(self, name: str, spec: ParamSpec) -> Tensor:
        """Return a model by name."""
        path = self.folder / f"{name}.safetensors"
        if path.is_file() and name != DEVICES:
            return spec.flatten(load_file(path))
        owners = self._owners()
        device = name.removeprefix("device-")
        if device == name or not device.isdecimal() or int(device) not in owners:
            raise unknown(name, self.known)
        with safe_open(self.folder / f"{DEVICES}.safetensors", framework="pt") as file:
            row: Tensor = file.get_slice("vector")[owners.index(int(device))]
        return row

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
