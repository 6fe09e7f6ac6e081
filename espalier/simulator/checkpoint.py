"""Checkpoints: one file holds a run's whole state; it is whole or it is not there.

A safetensors file: vectors by name, the rest of the state as msgpack bytes in one more tensor, a digest of
everything in the header. Written to a temporary file, synced, renamed, and the directory synced; the one
before is kept. No pickle: reading one runs no code.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from espalier.core.codec import pack, unpack
from espalier.core.errors import RunError

VERSION = 8
KEPT_CHECKPOINTS = 2

_NAME = "state-*.safetensors"


class Saved:
    """A part of a simulation whose state is in the attributes that ``SAVED`` names."""

    SAVED: ClassVar[tuple[str, ...]]

    def save(self) -> dict[str, Any]:
        """Return the state as plain data."""
        parts = {name.lstrip("_"): getattr(self, name) for name in self.SAVED}
        return {name: part.save() if isinstance(part, Saved) else copy(part) for name, part in parts.items()}

    def restore(self, plain: dict[str, Any]) -> None:
        """Become what :meth:`save` described."""
        for name in self.SAVED:
            part, saved = getattr(self, name), plain[name.lstrip("_")]
            if isinstance(part, Saved):
                part.restore(saved)
            else:
                setattr(self, name, saved)


class Damaged(RunError):
    """A checkpoint that is truncated or altered; the one before may be whole."""


@dataclass(frozen=True)
class Checkpoint:
    """A state that was read back: plain data, vectors by name, and the newer ones that were damaged."""

    path: Path
    plain: dict[str, Any]
    tensors: dict[str, Tensor]
    damaged: tuple[str, ...] = ()


def write(folder: Path, number: int, plain: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write checkpoint ``number``; return its path."""
    state = pack(plain)
    header = {"version": str(VERSION), "number": str(number), "digest": _digest(state, tensors)}
    everything = {**tensors, "state": torch.from_numpy(np.frombuffer(state, dtype=np.uint8).copy())}
    path = folder / f"state-{number:08d}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(path, to_bytes(_apart(everything), metadata=header))
    except OSError as error:
        raise RunError(
            f"The checkpoint {path} cannot be written: {error.strerror or error}. The earlier one stays usable: "
            "free the disk (or fix its permissions) and resume."
        ) from error
    for old in sorted(folder.glob(_NAME))[:-KEPT_CHECKPOINTS]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of which no two share memory, as the format wants.

    A merge whose updates were all rejected is the very model it began with.
    """
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        at = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if at in seen else tensor.contiguous()
        seen.add(at)
    return found


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file so that it is either the old one or the whole new one, also after a power cut."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a checkpoint.

    Raises:
        Damaged: It is truncated or altered.
        RunError: Another version wrote it.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            if header.get("version", str(VERSION)) != str(VERSION):
                raise RunError(
                    f"The checkpoint {path} has version {header['version']}; this version of espalier reads "
                    f"version {VERSION}. Go on with the version that wrote it (see run.toml)."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = tensors.pop("state").numpy().tobytes()
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise Damaged(f"The checkpoint {path} cannot be read: {error}.") from error
    if header.get("digest") != _digest(state, tensors):
        raise Damaged(f"The checkpoint {path} was altered: its digest does not match.")
    return unpack(state), tensors


def newest(folder: Path, fits: Callable[[dict[str, Any]], str | None] = lambda plain: None) -> Checkpoint | None:
    """Return the newest checkpoint that can be used (None: there is none at all).

    Args:
        folder: Where they are.
        fits: Says why a run cannot be resumed from a state, or None if it can.

    Raises:
        RunError: There are checkpoints and none can be used, or another version wrote them.
    """
    errors: list[str] = []
    for path in sorted(folder.glob(_NAME), reverse=True):
        try:
            plain, tensors = read(path)
            why = fits(plain)
            if why is None:
                return Checkpoint(path, plain, tensors, tuple(errors))
            errors.append(f"The checkpoint {path} does not fit: {why}.")
        except Damaged as error:
            errors.append(str(error))
    if errors:
        raise RunError(
            "No checkpoint can be used. " + " ".join(errors) + " Restore the directory from a copy, or run again in "
            "another one."
        )
    return None


def clear(folder: Path, after: Path | None = None) -> None:
    """Put aside what a killed process left: unfinished files, and damaged checkpoints newer than ``after``."""
    with contextlib.suppress(OSError):
        for left in folder.glob("*.tmp"):
            left.unlink()
        for path in folder.glob(_NAME):
            if after is not None and path.name > after.name:
                path.rename(path.with_name(path.name + ".damaged"))


def _digest(state: bytes, tensors: dict[str, Tensor]) -> str:
    found = hashlib.blake2b(state, digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
