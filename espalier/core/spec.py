"""Configuration objects: typed, validated, frozen, and named by a kind.

A *family* (compute, links, …) is an abstract class; its members register themselves under a kind::

    class Compute(Spec, family="compute"): ...

    @dataclass(frozen=True)
    class Constant(Compute, kind="constant"):
        seconds: float = 0.1

    Compute.build({"kind": "constant", "seconds": 0.2})     # from a TOML table
    Compute.build("constant")                               # all defaults
    Constant(seconds=0.2)                                   # from Python: the same checks

A third party's kind becomes usable in configuration files as soon as its module is imported.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, get_origin, get_type_hints

from espalier.core.coerce import coerce
from espalier.core.errors import ConfigError, nearest


class Spec:
    """The base of every configuration object. Subclasses are frozen dataclasses."""

    family: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[Spec]]] = {}
    _types: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, *, family: str | None = None, kind: str | None = None) -> None:
        super().__init_subclass__()
        if family is not None:
            cls.family, cls.kinds = family, {}
        if kind is not None:
            known = cls.kinds.get(kind)
            if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ConfigError(
                    f"{cls.__module__}.{cls.__qualname__} cannot be the {cls.family} {kind!r}: that is "
                    f"{known.__module__}.{known.__qualname__}. Give it another kind."
                )
            cls.kind = kind
            cls.kinds[kind] = cls

    def __post_init__(self) -> None:
        for name, hint in self._fields().items():
            value = coerce(getattr(self, name), hint, f"{self.family}.{name}")
            object.__setattr__(self, name, value)
        self.check()

    @classmethod
    def _fields(cls) -> dict[str, Any]:
        """Return the type of each field; resolved once per class, as annotations are strings."""
        if "_types" not in cls.__dict__:
            hints = get_type_hints(cls, include_extras=True)
            for name in inspect.get_annotations(cls).keys() & cls.__dict__.keys():
                if "__dataclass_fields__" not in cls.__dict__ and get_origin(hints[name]) is not ClassVar:
                    raise ConfigError(
                        f"{cls.__qualname__}.{name}: the class must be decorated @dataclass(frozen=True)."
                    )
            cls._types = {f.name: hints[f.name] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return cls._types

    def check(self) -> None:
        """Refuse values that cannot be run; subclasses say which."""

    def require(self, holds: bool, name: str, accepted: str) -> None:
        """Raise a :class:`ConfigError` about the field ``name`` unless ``holds``."""
        if not holds:
            raise ConfigError(f"{self.family}.{name} = {getattr(self, name)!r}: must be {accepted}.")

    @classmethod
    def build(cls, value: object, where: str = "") -> Self:
        """Build a member of this family from a table with its ``kind``, or from the kind's name alone.

        Raises:
            ConfigError: An unknown kind or key (the nearest known one is named), or a wrong value.
        """
        where = where or cls.family
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and cls.kinds:
            value = {"kind": value}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} = {value!r}: must be a table{cls._listing(' with a kind')}.")
        options = dict(value)
        target = cls._choose(options, where)
        known = list(target._fields())
        for name in options:
            if name not in known:
                accepted = ", ".join(known) or "no key besides kind"
                raise ConfigError(f"{where}.{name}: unknown key; accepted: {accepted}.{nearest(str(name), known)}")
        missing = [
            f.name
            for f in dataclasses.fields(target)  # type: ignore[arg-type]
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING and f.name not in options
        ]
        if missing:
            raise ConfigError(f"{where}: {', '.join(missing)} must be given for {target.kind or target.family!r}.")
        return target(**options)

    @classmethod
    def _choose(cls, options: dict[str, Any], where: str) -> type[Self]:
        if not cls.kinds:
            return cls
        kind = options.pop("kind", None)
        if kind is None:
            raise ConfigError(f"{where}.kind: must be given{cls._listing()}.")
        chosen = cls.kinds.get(kind) if isinstance(kind, str) else None
        if chosen is None or not issubclass(chosen, cls):
            raise ConfigError(f"{where}.kind = {kind!r}: unknown{cls._listing()}.{nearest(str(kind), cls.kinds)}")
        return chosen

    @classmethod
    def _listing(cls, before: str = "") -> str:
        return f"{before}; known kinds: {', '.join(sorted(cls.kinds))}" if cls.kinds else ""

    def to_plain(self) -> dict[str, Any]:
        """Return the object as a plain table; :meth:`build` makes an equal object of it."""
        table: dict[str, Any] = {"kind": self.kind} if self.kind else {}
        for name in self._fields():
            value = getattr(self, name)
            if value is not None:
                table[name] = _plain(value)
        return table


def _plain(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.to_plain()
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return str(value) if isinstance(value, Path) else value


def without_none(value: Any) -> Any:
    """Return plain data without None: TOML has none."""
    if isinstance(value, dict):
        return {k: without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [without_none(v) for v in value]
    return value
