"""Options by name (a TOML table, ``--set key=value``) become typed arguments, or a `ConfigError`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_type_hints

from espalier.core.coerce import coerce
from espalier.core.errors import ConfigError, nearest


def checked(
    of: Callable[..., object], options: Mapping[str, Any], what: str, skip: Iterable[str] = ()
) -> dict[str, Any]:
    """Check options against the keyword parameters of a function.

    Args:
        of: The function that will take the options.
        options: Plain values by name.
        what: What the options belong to, for the message (``Dataset 'digits'``).
        skip: Parameters that the caller fills itself.

    Returns:
        The options, converted to the annotated types (a list becomes a tuple, 1 becomes 1.0).

    Raises:
        ConfigError: An unknown name (with the nearest known one) or a value of another type.
    """
    hints = get_type_hints(of)
    known = [p for p in inspect.signature(of).parameters if p not in set(skip)]
    out: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            accepted = f"accepted are {', '.join(sorted(known))}" if known else "it takes none"
            raise ConfigError(f"{what} has no option {name!r}; {accepted}.{nearest(name, known)}")
        out[name] = coerce(value, hints[name], f"{what}: option {name!r}")
    return out


def at_least(what: str, value: float, low: float) -> None:
    """Refuse a value below ``low``."""
    if not value >= low:
        raise ConfigError(f"{what} is {value}; accepted are values from {low}.")
