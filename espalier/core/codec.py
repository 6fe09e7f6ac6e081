"""Plain data to bytes and back: msgpack, with the project's own dataclasses by name. No pickle.

Every state, event and message of a run is made of None, bool, int, float, str, bytes, list, tuple, set,
dict, numpy arrays and dataclasses registered here. Anything else is refused, so that a checkpoint can
never hold what another process cannot read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import attrgetter, methodcaller
from types import MappingProxyType
from typing import Any, TypeVar

import msgpack
import numpy as np

from espalier.core.errors import ConfigError, RunError
from espalier.core.store import Ref

T = TypeVar("T")

_REGISTRY: dict[str, type] = {}


def register(cls: type[T]) -> type[T]:
    """Let a dataclass travel in checkpoints and messages (also usable as a decorator).

    Raises:
        ConfigError: Another class has the name: what was saved as one would be read as the other.
    """
    known = _REGISTRY.get(cls.__qualname__)
    if known is not None and known.__module__ != cls.__module__:
        raise ConfigError(
            f"{cls.__module__}.{cls.__qualname__} cannot be registered: {known.__module__} has registered a class of "
            "that name, under which it is saved. Rename yours."
        )
    _REGISTRY[cls.__qualname__] = cls
    return cls


@cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls) if f.init)


def pack(value: Any) -> bytes:
    """Turn plain data into bytes."""
    packed: bytes = msgpack.packb(_plain(value), use_bin_type=True)
    return packed


def unpack(data: bytes) -> Any:
    """Turn bytes back into the data they were made of."""
    try:
        return _rich(msgpack.unpackb(data, raw=False, strict_map_key=False))
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise RunError(f"The saved state cannot be read: {type(error).__name__}: {error}.") from error


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str, bytes):
        # msgpack holds 64-bit integers; longer ones (seeds) go as text
        if type(value) is int and not -(2**63) <= value < 2**64:
            return {"!": "big", "v": str(value)}
        return value
    if type(value) is Ref:
        return {"!": "ref", "v": int(value)}
    if type(value) is list:
        return [_plain(v) for v in value]
    if isinstance(value, tuple):
        return {"!": "tuple", "v": [_plain(v) for v in value]}
    if isinstance(value, set | frozenset):
        return {"!": "set", "v": [_plain(v) for v in sorted(value)]}
    if isinstance(value, Mapping):
        return {"!": "dict", "v": [[_plain(k), _plain(v)] for k, v in value.items()]}
    if isinstance(value, np.ndarray):
        return {
            "!": "array",
            "d": value.dtype.str,
            "s": list(value.shape),
            "v": np.ascontiguousarray(value).tobytes(),
        }
    if isinstance(value, np.generic):
        return _plain(value.item())
    kind: Any = type(value)
    name = kind.__qualname__
    if _REGISTRY.get(name) is kind:
        return {"!": "data", "c": name, "v": [_plain(getattr(value, n)) for n in _names(kind)]}
    raise RunError(
        f"A {type(value).__module__}.{name} cannot be saved: a node's state and messages hold plain data and "
        "dataclasses registered with espalier.core.codec.register."
    )


def _rich(value: Any) -> Any:
    if isinstance(value, list):
        return [_rich(v) for v in value]
    if not isinstance(value, dict):
        return value
    kind = value["!"]
    match kind:
        case "big":
            return int(value["v"])
        case "ref":
            return Ref(value["v"])
        case "tuple":
            return tuple(_rich(v) for v in value["v"])
        case "set":
            return {_rich(v) for v in value["v"]}
        case "dict":
            return {_rich(k): _rich(v) for k, v in value["v"]}
        case "array":
            return np.frombuffer(value["v"], dtype=np.dtype(value["d"])).reshape(value["s"]).copy()
        case "data":
            cls = _REGISTRY[value["c"]]
            return cls(**dict(zip(_names(cls), (_rich(v) for v in value["v"]), strict=True)))
    raise KeyError(kind)


def refs_in(value: Any, found: set[int]) -> None:
    """Collect every :class:`Ref` inside plain data."""
    todo = [value]
    while todo:
        value = todo.pop()
        kind: Any = type(value)
        if kind is Ref:
            found.add(int(value))
        elif (parts := _parts(kind)) is not None:
            todo.extend(parts(value))


@cache
def _parts(cls: Any) -> Callable[[Any], Iterable[Any]] | None:
    """Return what lists the parts of a value of this type; None: a Ref cannot be inside."""
    if issubclass(cls, list | tuple | set | frozenset):
        return iter
    if issubclass(cls, dict | MappingProxyType):
        return methodcaller("values")
    plain = dataclasses.is_dataclass(cls)
    names = _names(cls) if plain else ()
    # the first twice: of one name alone it would be no tuple
    return attrgetter(names[0], *names) if names else None
