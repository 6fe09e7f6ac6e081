"""Turn what a configuration file holds into what a field's type says, or say exactly what is wrong."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin, runtime_checkable

from espalier.core.bounds import Bound
from espalier.core.errors import ConfigError, nearest


@runtime_checkable
class Buildable(Protocol):
    """A class whose objects can be built from a configuration table."""

    def build(self, value: object, where: str) -> Any:
        """Build an object from a table, a kind's name, or an object that is one already."""


def coerce(value: object, hint: Any, where: str) -> Any:
    """Return ``value`` as the type ``hint``.

    Integers become floats, lists become tuples, strings become paths, and tables become nested
    objects. Nothing else is converted: a string is never a number.

    Args:
        value: What was given.
        hint: A type: bool, int, float, str, Path, a Literal, a tuple, a dict (any table), a union of such,
            a class with a ``build`` method, or any of them annotated with a :class:`Bound`.
        where: The field's full name, for messages.

    Raises:
        ConfigError: The value is not of that type.
    """
    origin = get_origin(hint)
    if origin is Annotated:
        return _bounded(value, *get_args(hint), where=where)
    if origin in (Union, types.UnionType):
        return _union(value, get_args(hint), where)
    if origin is Literal:
        return _literal(value, get_args(hint), where)
    if origin is tuple:
        return _tuple(value, get_args(hint), where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(value, hint, where)
        return dict(value)
    if hint is type(None):
        if value is not None:
            raise _wrong(value, hint, where)
        return None
    if isinstance(hint, type) and hint in _SCALARS:
        return _scalar(value, hint, where)
    if isinstance(hint, Buildable):
        return hint.build(value, where)
    raise TypeError(f"{where}: a field of type {hint!r} cannot be configured")


def spell(hint: Any) -> str:
    """Name a type in the words of a configuration file."""
    origin = get_origin(hint)
    if origin is Annotated:
        return spell(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return " or ".join(spell(a) for a in get_args(hint) if a is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(repr(a) for a in get_args(hint))
    if origin is tuple:
        args = get_args(hint)
        if args[-1] is Ellipsis:
            return f"a list ({spell(args[0])} each)"
        return "[" + ", ".join(spell(a) for a in args) + "]"
    if isinstance(hint, type) and hint in _SCALARS:
        return _SCALARS[hint]
    return "a table"


#: whole numbers are below it: neither letters nor records hold larger ones
LONGEST = 1 << 63

_SCALARS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Path: "a path",
}


def _bounded(value: object, hint: Any, *notes: object, where: str) -> Any:
    found = coerce(value, hint, where)
    for bound in notes:
        if isinstance(bound, Bound) and not bound.holds(found):
            raise ConfigError(f"{where} = {found!r}: must be {bound}.")
    return found


def _scalar(value: object, hint: type, where: str) -> Any:
    number = None if isinstance(value, bool) else value
    if hint is float:
        if not isinstance(number, Real) or math.isnan(number):
            raise _wrong(value, hint, where)
        return float(number)
    if hint is int:
        if not isinstance(number, Integral):
            raise _wrong(value, hint, where)
        if not -LONGEST <= int(number) < LONGEST:
            raise ConfigError(f"{where}: must be a whole number of at most 64 bits.")
        return int(number)
    if hint is Path:
        if not isinstance(value, (str, Path)):
            raise _wrong(value, hint, where)
        return Path(value)
    if not isinstance(value, hint):
        raise _wrong(value, hint, where)
    return value


def _literal(value: object, options: tuple[Any, ...], where: str) -> Any:
    if isinstance(value, str | int) and value in options:
        return value
    known = ", ".join(repr(o) for o in options)
    raise ConfigError(f"{where} = {value!r}: must be one of {known}.{nearest(str(value), map(str, options))}")


def _tuple(value: object, args: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong(value, tuple[args], where)  # type: ignore[valid-type]
    if args[-1] is Ellipsis:
        return tuple(coerce(v, args[0], f"{where}[{i}]") for i, v in enumerate(value))
    if len(value) != len(args):
        raise _wrong(value, tuple[args], where)  # type: ignore[valid-type]
    return tuple(coerce(v, a, f"{where}[{i}]") for i, (v, a) in enumerate(zip(value, args, strict=True)))


def _union(value: object, args: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in args:
        return None
    errors: list[ConfigError] = []
    for arg in args:
        if arg is type(None):
            continue
        try:
            return coerce(value, arg, where)
        except ConfigError as error:
            errors.append(error)
    # A table that almost fits deserves its own message, not the list of everything that would fit.
    if len(errors) == 1 or isinstance(value, Mapping):
        raise errors[-1]
    raise ConfigError(f"{where} = {value!r}: must be {' or '.join(spell(a) for a in args if a is not type(None))}.")


def _wrong(value: object, hint: Any, where: str) -> ConfigError:
    return ConfigError(f"{where} = {value!r}: must be {spell(hint)}.")
