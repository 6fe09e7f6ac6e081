"""Messages as protobuf and back. What comes from the network is checked here, before any node sees it.

Only plain data travels: None, bool, int, float, str, bytes, list, tuple, set, dict, numpy arrays of numbers, and
references to models, which become numbers of the letter's parts. There is no pickle and no code on the wire.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from espalier.core.errors import ProtocolError
from espalier.core.messages import Message, Order, Part, Report, Word
from espalier.core.store import Ref
from espalier.fleet.links.protocol import espalier_pb2 as pb

VERSION = 1

#: how deep plain data may be nested in a message
DEPTH = 32
#: a device's number, a server's, and the level of a role above it
_ADDRESS = 1 << 48
_COUNT = 1 << 62
_DTYPES = {"|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"}


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


def pack(message: Message, models: Models) -> pb.Content:
    """Turn a message into protobuf; ``models`` is asked for the part that holds a model."""
    match message:
        case Order():
            order = pb.Order(
                id=message.id, sender=message.sender, to=message.to, models=_models(message.models, models),
                updates=message.updates, round=message.round, clock=message.clock, sent=message.sent,
                budget=message.budget, anchor=None if message.anchor is None else models.place(message.anchor),
                ask=message.ask, args=to_value(message.args, models), back=message.back,
            )  # fmt: skip
            return pb.Content(order=order)
        case Report():
            report = pb.Report(
                order=message.order, dispatcher=message.dispatcher, sender=message.sender, to=message.to,
                models=_models(message.models, models),
                samples=[pb.Samples(group=g, count=n) for g, n in message.samples.items()], updates=message.updates,
                round=message.round, sent=message.sent, download=message.download, compute=message.compute,
                stats=to_value(message.stats, models),
            )  # fmt: skip
            return pb.Content(report=report)
        case Word():
            word = pb.Word(
                kind=message.kind, sender=message.sender, to=message.to, sent=message.sent,
                data=to_value(message.data, models),
            )  # fmt: skip
            return pb.Content(word=word)


def control(kind: str, data: Mapping[str, Any]) -> pb.Content:
    """Make a message between two runtimes."""
    return pb.Content(control=pb.Control(kind=kind, data=to_value(dict(data), NoModels())))


def unpack(content: pb.Content, models: Sequence[Ref], restore: Restore | None = None) -> Message:
    """Turn protobuf into a message whose models are the given references.

    Args:
        content: What came.
        models: The letter's models, in the order of its parts.
        restore: Makes a model of some of its numbers.

    Raises:
        ProtocolError: A field is missing or has a value that no node may send.
    """
    found = _Models(models, restore)
    match content.WhichOneof("kind"):
        case "order":
            return _order(content.order, found)
        case "report":
            return _report(content.report, found)
        case "word":
            word = content.word
            if not word.kind or len(word.kind) > 64:
                raise ProtocolError(f"A word's kind has {len(word.kind)} letters; 1 to 64 are accepted.")
            return Word(
                word.kind, _address(word.sender), _address(word.to), _real(word.sent, "sent"),
                _table(word.data, found, "data"),
            )  # fmt: skip
    raise ProtocolError("A letter holds no message; an order, a report or a word is accepted.")


def unpack_control(content: pb.Content) -> tuple[str, dict[str, Any]]:
    """Turn a message between runtimes into its kind and data."""
    return content.control.kind, _table(content.control.data, _Models((), None), "control")


# -- messages -----------------------------------------------------------------------------------------------


class _Models:
    """The models of a letter by their part's number; a number that has no part is refused."""

    def __init__(self, refs: Sequence[Ref], restore: Restore | None) -> None:
        self._refs, self._restore = refs, restore

    def __getitem__(self, part: int) -> Ref:
        if not 0 <= part < len(self._refs):
            raise ProtocolError(f"A message names part {part} of a letter that has {len(self._refs)}.")
        return self._refs[part]

    def cut(self, cut: pb.Cut) -> Part:
        spans = tuple(zip(cut.starts, cut.stops, strict=False))
        size = sum(stop - start for start, stop in spans)
        if len(cut.starts) != len(cut.stops) or any(a >= b for a, b in spans) or 4 * size != len(cut.data):
            raise ProtocolError(f"A cut of a model at {spans[:4]} has {len(cut.data)} bytes.")
        if self._restore is None:
            raise ProtocolError("A cut of a model where none is accepted.")
        return Part(self._restore(spans, np.frombuffer(cut.data, dtype="<f4")), spans)

    def named(self, entries: Iterable[pb.Model]) -> dict[str, Ref]:
        found: dict[str, Ref] = {}
        for entry in entries:
            if entry.group in found:
                raise ProtocolError(f"A message has two models of the group {entry.group!r}.")
            found[entry.group] = self[entry.part]
        return found


def _models(named: Mapping[str, Ref], models: Models) -> list[pb.Model]:
    return [pb.Model(group=group, part=models.place(ref)) for group, ref in named.items()]


def _order(order: pb.Order, models: _Models) -> Order:
    return Order(
        _count(order.id, "id"), _address(order.sender), _address(order.to), models.named(order.models),
        _count(order.updates, "updates"), _count(order.round, "round"), _count(order.clock, "clock"),
        _real(order.sent, "sent"), _real(order.budget, "budget") if order.HasField("budget") else None,
        models[order.anchor] if order.HasField("anchor") else None,
        order.ask if order.HasField("ask") else None, _table(order.args, models, "args"), order.back,
    )  # fmt: skip


def _report(report: pb.Report, models: _Models) -> Report:
    return Report(
        _count(report.order, "order"), _address(report.dispatcher), _address(report.sender), _address(report.to),
        models.named(report.models), {s.group: _count(s.count, "samples") for s in report.samples},
        _count(report.updates, "updates"), _count(report.round, "round"), _real(report.sent, "sent"),
        _real(report.download, "download"), _real(report.compute, "compute"), _table(report.stats, models, "stats"),
    )  # fmt: skip


def _address(value: int) -> int:
    if not 0 <= value < _ADDRESS:
        raise ProtocolError(f"{value} is no address; 0 to {_ADDRESS - 1} is accepted.")
    return value


def _count(value: int, name: str) -> int:
    if not 0 <= value < _COUNT:
        raise ProtocolError(f"{name} is {value}; 0 or more is accepted.")
    return value


def _real(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise ProtocolError(f"{name} is {value}; a finite number is accepted.")
    return value


def _table(value: pb.Value, models: _Models, name: str) -> dict[str, Any]:
    found = from_value(value, models) if value.WhichOneof("kind") else {}
    if not isinstance(found, dict) or not all(isinstance(k, str) for k in found):
        raise ProtocolError(f"{name} is a {type(found).__name__}; a table with names as keys is accepted.")
    return found


# -- plain data ----------------------------------------------------------------------------------------------


class NoModels:
    """For messages between runtimes, which carry no models."""

    def place(self, ref: Ref) -> int:
        """Refuse."""
        raise ProtocolError("A message between runtimes carries no models.")

    def numbers(self, part: Part) -> bytes:
        """Refuse."""
        raise ProtocolError("A message between runtimes carries no models.")


def to_value(data: Any, models: Models) -> pb.Value:
    """Turn plain data into protobuf."""
    match data:
        case None:
            return pb.Value(nothing=True)
        case bool() | np.bool_():
            return pb.Value(truth=bool(data))
        case Ref():
            return pb.Value(model=models.place(data))
        case Part():
            starts, stops = zip(*data.spans, strict=True) if data.spans else ((), ())
            return pb.Value(cut=pb.Cut(starts=starts, stops=stops, data=models.numbers(data)))
        case int() | np.integer():
            small = -(2**63) <= int(data) < 2**63
            return pb.Value(whole=int(data)) if small else pb.Value(big=str(int(data)))
        case float() | np.floating():
            return pb.Value(real=float(data))
        case str():
            return pb.Value(text=data)
        case bytes():
            return pb.Value(raw=data)
        case list():
            return pb.Value(items=_items(data, models))
        case tuple():
            return pb.Value(row=_items(data, models))
        case set() | frozenset():
            return pb.Value(bag=_items(sorted(data), models))
        case Mapping():
            return pb.Value(
                table=pb.Table(keys=_items(data, models).values, values=_items(data.values(), models).values)
            )
        case np.ndarray():
            array = np.ascontiguousarray(data)
            array = array.astype(array.dtype.newbyteorder("<"), copy=False)
            if array.dtype.str not in _DTYPES:
                raise ProtocolError(f"An array of {array.dtype} cannot be sent; numbers and truth values can.")
            return pb.Value(array=pb.Array(dtype=array.dtype.str, shape=array.shape, data=array.tobytes()))
    raise ProtocolError(f"A {type(data).__module__}.{type(data).__name__} cannot be sent: messages hold plain data.")


def from_value(value: pb.Value, models: _Models, depth: int = 0) -> Any:
    """Turn protobuf into plain data."""
    if depth > DEPTH:
        raise ProtocolError(f"A message is nested more than {DEPTH} deep.")
    match value.WhichOneof("kind"):
        case "nothing":
            return None
        case "truth":
            return value.truth
        case "whole":
            return value.whole
        case "real":
            return value.real
        case "text":
            return value.text
        case "raw":
            return value.raw
        case "model":
            return models[value.model]
        case "cut":
            return models.cut(value.cut)
        case "items":
            return [from_value(v, models, depth + 1) for v in value.items.values]
        case "row":
            return tuple(from_value(v, models, depth + 1) for v in value.row.values)
        case "bag":
            return {_key(v, models, depth) for v in value.bag.values}
        case "table":
            if len(value.table.keys) != len(value.table.values):
                raise ProtocolError("A table has another number of keys than of values.")
            pairs = zip(value.table.keys, value.table.values, strict=True)
            return {_key(k, models, depth): from_value(v, models, depth + 1) for k, v in pairs}
        case "array":
            return _array(value.array)
        case "big":
            if len(value.big) > 64 or not value.big.lstrip("-").isdecimal():
                raise ProtocolError("A long whole number has more than 64 digits, or letters.")
            return int(value.big)
    raise ProtocolError("A value of an unknown kind; the sender's version may be newer than this one.")


def _items(data: Iterable[Any], models: Models) -> pb.Items:
    return pb.Items(values=[to_value(v, models) for v in data])


def _key(value: pb.Value, models: _Models, depth: int) -> Any:
    found = from_value(value, models, depth + 1)
    if isinstance(found, str | int | bool) or (
        isinstance(found, tuple) and all(isinstance(k, str | int) for k in found)
    ):
        return found
    raise ProtocolError(f"A table has a {type(found).__name__} as key; names, whole numbers and tuples are accepted.")


def _array(array: pb.Array) -> np.ndarray[Any, np.dtype[Any]]:
    if array.dtype not in _DTYPES:
        raise ProtocolError(f"An array of {array.dtype!r}; numbers and truth values are accepted.")
    dtype = np.dtype(array.dtype)
    # math.prod has no overflow: a shape that lies about the bytes is refused before anything is allocated.
    if len(array.shape) > 8 or math.prod(array.shape) * dtype.itemsize != len(array.data):
        raise ProtocolError(f"An array of shape {tuple(array.shape)} has {len(array.data)} bytes.")
    return np.frombuffer(array.data, dtype=dtype).reshape(tuple(array.shape)).copy()
