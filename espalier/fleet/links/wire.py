"""Messages on the wire: the codec's plain form (`espalier.core.codec`), with the checks that a wire needs.

A letter's content is what a checkpoint would hold of the message, but for models: they travel beside it as the letter's
parts, and where the message has a model it has the part's number. There is no pickle and no code on the wire: the only
classes are the three messages, :class:`ControlLetter` and :class:`ModelCut`. Sizes, depth, types of arrays and classes
are checked before anything is made of what came; what a field may hold is checked by `espalier.fleet.authority`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgpack
import numpy as np

from espalier.core import codec
from espalier.core.errors import EspalierError, ProtocolError
from espalier.core.messages import Message, Order, Part, Report, Word
from espalier.core.store import Ref


@dataclasses.dataclass(frozen=True, slots=True)
class WireVersions:
    """The versions of the protocol that a node speaks, from the oldest to the newest."""

    oldest: int
    newest: int

    def common(self, other: WireVersions) -> int | None:
        """Return the newest version that both speak; None if there is none."""
        best = min(self.newest, other.newest)
        return best if best >= max(self.oldest, other.oldest) else None

    def __str__(self) -> str:
        """Say it in words."""
        return f"version {self.oldest}" if self.oldest == self.newest else f"versions {self.oldest} to {self.newest}"


#: 6: letters and manifests are signed; unsigned ones, as of the versions before, would undo that
#: 7: an origin's certificate goes over a link with its first letter only
VERSIONS = WireVersions(6, 7)
CERTIFICATES_ONCE = 7

#: values, lists and tables of a member's letter at most: they take far more time to read than bytes do
VALUES = 1 << 18
#: how deep plain data may be nested in a message; each level of tuples and tables is three of msgpack's
DEPTH = 96
_DTYPES = {"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"}
_ARRAY_AXES = 8
_LONG_DIGITS = 64
#: long whole numbers of a letter, and tuples as keys of one table: whoever writes them chooses their hashes, and a
#: table of which all hashes are one takes as many steps as the square of its size
LONG_NUMBERS = TUPLES_AS_KEYS = 1024


@codec.register
@dataclasses.dataclass(frozen=True, slots=True)
class ControlLetter:
    """What a host's runtime says to another's: a kind and plain data."""

    kind: str
    data: dict[str, Any]


@codec.register
@dataclasses.dataclass(frozen=True, slots=True)
class ModelCut:
    """Some numbers of a model: where they lie in its flat vector, and themselves as little-endian float32."""

    spans: tuple[tuple[int, int], ...]
    data: bytes


_TOP = {cls.__qualname__: len(dataclasses.fields(cls)) for cls in (Order, Report, Word, ControlLetter)}
_WITHIN = {ModelCut.__qualname__: len(dataclasses.fields(ModelCut))}


class Models(Protocol):
    """What a letter is written with: where its models go."""

    def place(self, ref: Ref) -> int:
        """Return the number of the part that holds a model."""
        ...

    def numbers(self, part: Part) -> bytes:
        """Return some numbers of a model as little-endian float32."""
        ...


#: makes a model of some of its numbers: (spans, numbers) -> its name
Restore = Callable[[tuple[tuple[int, int], ...], "np.ndarray[Any, np.dtype[np.float32]]"], Ref]


def pack(message: Message, models: Models) -> bytes:
    """Write a message; ``models`` is asked for the part that holds a model.

    Raises:
        ProtocolError: It holds something that cannot be sent.
    """

    def placed(value: Any) -> Any:
        if isinstance(value, Part):
            return ModelCut(value.spans, models.numbers(value))
        return Ref(models.place(value))

    return _packed(_replaced(message, placed))


def control(kind: str, data: Mapping[str, Any]) -> bytes:
    """Write a control letter; it carries no models."""

    def refuse(value: Any) -> Any:
        raise ProtocolError("A message between runtimes carries no models.")

    return _packed(_replaced(ControlLetter(kind, dict(data)), refuse))


def unpack(data: bytes, values: int = VALUES) -> Message | ControlLetter:
    """Read a message of so many values at most, in which models are the numbers of the letter's parts.

    Raises:
        ProtocolError: It is none, or holds what no node may send.
    """
    left, long = values, LONG_NUMBERS

    def count(several: Any) -> Any:
        nonlocal left, long
        left -= 1 + len(several)
        long -= type(several) is dict and several.get("!") == "big"
        if left < 0 or long < 0:
            raise ProtocolError(f"A letter holds more than {values} values, or {LONG_NUMBERS} long whole numbers.")
        return several

    bounds = {"max_array_len": values, "max_map_len": values, "list_hook": count, "object_hook": count}
    try:
        # the codec's own tables have texts as keys alone: others' hashes could be chosen, see TUPLES_AS_KEYS
        _check(msgpack.unpackb(data, raw=False, strict_map_key=True, **bounds), 0, _TOP)
        found = codec.unpack(data)
    except ProtocolError:
        raise
    except (EspalierError, ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(f"A letter's content cannot be read: {error}.") from error
    if not isinstance(found, Order | Report | Word | ControlLetter):
        raise ProtocolError("A letter holds no message; an order, a report, a word or a control letter is accepted.")
    return found


def enclosed(message: Message, refs: Sequence[Ref], restore: Restore, most: int) -> Message:
    """Return a message with its models in place of the numbers of parts.

    Args:
        message: What came.
        refs: The letter's models, in the order of its parts.
        restore: Makes a model of some of its numbers.
        most: So many cuts of models may be in it: each takes the room of a model.

    Raises:
        ProtocolError: It names a part that the letter does not have, or a cut makes no sense, or there are too many.
    """
    cuts = iter(range(most))

    def found(value: Any) -> Any:
        if isinstance(value, ModelCut):
            if next(cuts, None) is None:
                raise ProtocolError(f"A message has more than {most} cuts of models.")
            return _cut(value, restore)
        if not 0 <= int(value) < len(refs):
            raise ProtocolError(f"A message names part {int(value)} of a letter that has {len(refs)}.")
        return refs[int(value)]

    changed: Message = _replaced(message, found)
    return changed


def _cut(cut: ModelCut, restore: Restore) -> Part:
    spans = cut.spans
    pairs = type(spans) is tuple and all(
        type(s) is tuple and len(s) == 2 and all(type(n) is int for n in s) and 0 <= s[0] < s[1] for s in spans
    )
    if not pairs or type(cut.data) is not bytes or 4 * sum(b - a for a, b in spans) != len(cut.data):
        raise ProtocolError(f"A cut of a model at {str(spans)[:80]} has {str(cut.data)[:20]} as its numbers.")
    return Part(restore(spans, np.frombuffer(cut.data, dtype="<f4")), spans)


def _replaced(value: Any, model: Callable[[Any], Any]) -> Any:
    """Return plain data in which each model, and each cut of one, is replaced."""
    if isinstance(value, Ref | Part | ModelCut):
        return model(value)
    if isinstance(value, list):
        return [_replaced(v, model) for v in value]
    if isinstance(value, tuple):
        return tuple(_replaced(v, model) for v in value)
    if isinstance(value, Mapping):
        return {k: _replaced(v, model) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return value.astype(value.dtype.newbyteorder("<"), copy=False)
    if isinstance(value, Order | Report | Word | ControlLetter):
        names = [f.name for f in dataclasses.fields(value)]
        return type(value)(**{n: _replaced(getattr(value, n), model) for n in names})
    return value


def _packed(value: Any) -> bytes:
    try:
        data = codec.pack(value)
        # what this host would refuse itself is not sent
        _check(msgpack.unpackb(data, raw=False, strict_map_key=False), 0, _TOP)
    except ProtocolError:
        raise
    except (EspalierError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"This cannot be sent, messages hold plain data: {error}") from error
    return data


# -- what came, as msgpack reads it --------------------------------------------------------------------------


def _check(value: Any, depth: int, classes: Mapping[str, int] = _WITHIN) -> None:
    """Refuse what the codec must not make anything of."""
    if depth > DEPTH:
        raise ProtocolError(f"A message is nested more than {DEPTH} deep.")
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return
    if isinstance(value, list):
        for item in value:
            _check(item, depth + 1)
        return
    if not isinstance(value, dict) or not isinstance(value.get("!"), str):
        raise ProtocolError(f"A value of an unknown kind ({type(value).__name__}).")
    tag, inner = value["!"], value.get("v")
    if tag in ("big", "ref", "array"):
        _check_scalar(tag, value)
    elif tag not in ("tuple", "set", "dict", "data"):
        raise ProtocolError(f"A value of an unknown kind ({tag[:64]!r}).")
    elif not isinstance(inner, list):
        raise ProtocolError(f"A {tag} that is none.")
    elif tag == "set":
        _check_keys(inner)
    elif tag == "dict":
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in inner):
            raise ProtocolError("A table has another number of keys than of values.")
        _check_keys([key for key, _ in inner])
        for _, item in inner:
            _check(item, depth + 1)
    else:
        if tag == "data" and classes.get(str(value.get("c"))) != len(inner):
            raise ProtocolError(f"A {str(value.get('c'))[:64]!r} is not accepted here, or lacks fields.")
        _check(inner, depth + 1)


def _check_scalar(tag: str, value: Mapping[str, Any]) -> None:
    inner = value.get("v")
    if tag == "array":
        _check_array(value)
    elif tag == "ref" and (type(inner) is not int or inner < 0):
        raise ProtocolError("A model's part has no number.")
    elif tag == "big" and (
        not isinstance(inner, str) or len(inner) > _LONG_DIGITS or not inner.lstrip("-").isdecimal()
    ):
        raise ProtocolError(f"A long whole number has more than {_LONG_DIGITS} digits, or letters.")


def _check_keys(keys: list[Any]) -> None:
    if sum(isinstance(key, dict) for key in keys) > TUPLES_AS_KEYS:
        raise ProtocolError(f"A table has more than {TUPLES_AS_KEYS} tuples or long whole numbers as keys.")
    for key in keys:
        _check_key(key)


def _check_key(key: Any) -> None:
    if isinstance(key, dict) and key.get("!") == "big":
        _check(key, 0)
        return
    if isinstance(key, dict) and key.get("!") == "tuple" and isinstance(key.get("v"), list):
        if all(isinstance(k, str | int) or (isinstance(k, dict) and k.get("!") == "big") for k in key["v"]):
            _check(key["v"], 0)
            return
    elif isinstance(key, str | int):
        return
    raise ProtocolError(f"A table has a {type(key).__name__} as key; names, whole numbers and tuples are accepted.")


def _check_array(value: Mapping[str, Any]) -> None:
    dtype, shape, data = value.get("d"), value.get("s"), value.get("v")
    if dtype not in _DTYPES:
        raise ProtocolError(f"An array of {str(dtype)[:64]!r}; numbers and truth values are accepted.")
    sizes = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    # math.prod has no overflow: a shape that lies about the bytes is refused before anything is allocated
    if not isinstance(shape, list) or not sizes or len(shape) > _ARRAY_AXES or not isinstance(data, bytes):
        raise ProtocolError(f"An array of shape {str(shape)[:80]} cannot be.")
    if math.prod(shape) * np.dtype(dtype).itemsize != len(data):
        raise ProtocolError(f"An array of shape {str(shape)[:80]} has {len(data)} bytes.")
