"""Checkpoints: one file holds a run's whole state; it is whole or it is not there.

A safetensors file: vectors by name, the rest of the state as msgpack bytes in one more tensor, a digest of
everything in the header. Written to a temporary file, synced, renamed, and the directory synced; the one
before is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from espalier.core.codec import pack, unpack
from espalier.core.errors import RunError

VERSION = 1
KEEP = 2


def write(folder: Path, number: int, plain: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write checkpoint ``number``; return its path."""
    state = pack(plain)
    header = {"version": str(VERSION), "number": str(number), "digest": _digest(state, tensors)}
    everything = {**tensors, "state": torch.from_numpy(np.frombuffer(state, dtype=np.uint8).copy())}
    path = folder / f"state-{number:08d}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(path, to_bytes({k: t.contiguous() for k, t in everything.items()}, metadata=header))
    except OSError as error:
        raise RunError(
            f"The checkpoint {path} cannot be written: {error.strerror or error}. The earlier one stays usable: "
            "free the disk (or fix its permissions) and resume."
        ) from error
    for old in sorted(folder.glob("state-*.safetensors"))[:-KEEP]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


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
    """Read a checkpoint; a damaged one is an error."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"The checkpoint {path} cannot be read: {error}.") from error
    if header.get("version") != str(VERSION):
        raise RunError(
            f"The checkpoint {path} has version {header.get('version')}; this version of espalier reads {VERSION}."
        )
    state = tensors.pop("state").numpy().tobytes()
    if header.get("digest") != _digest(state, tensors):
        raise RunError(f"The checkpoint {path} was altered: its digest does not match.")
    return unpack(state), tensors


def newest(folder: Path) -> tuple[Path, dict[str, Any], dict[str, Tensor]] | None:
    """Return the newest checkpoint that can be read (None: there is none at all).

    Raises:
        RunError: There are checkpoints and every one is damaged.
    """
    errors = []
    for path in sorted(folder.glob("state-*.safetensors"), reverse=True):
        try:
            return path, *read(path)
        except RunError as error:
            errors.append(str(error))
    if errors:
        raise RunError("No checkpoint can be read. " + " ".join(errors))
    return None


def _digest(state: bytes, tensors: dict[str, Tensor]) -> str:
    found = hashlib.blake2b(state, digest_size=16)
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].contiguous().numpy().tobytes())
    return found.hexdigest()
