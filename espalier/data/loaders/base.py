"""What a dataset's loader declares (its files, where they come from, who reads them), and its options by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from espalier.core.coerce import coerce
from espalier.core.errors import ConfigError, DataError, nearest
from espalier.data.dataset import Dataset, Kind


@dataclass(frozen=True)
class Source:
    """One file of a publisher: its address and its digest (``sha256:…`` or ``md5:…``)."""

    file: str
    url: str
    digest: str


@dataclass(frozen=True)
class Layout:
    """One way a dataset may lie in a folder.

    Attributes:
        title: The format's name.
        needs: Patterns relative to the folder; the layout is there if each matches something.
        read: Reads it: ``read(folder, **options)``.
    """

    title: str
    needs: tuple[str, ...]
    read: Callable[..., Dataset]

    def found(self, folder: Path) -> bool:
        """Whether the folder holds this layout."""
        return folder.is_dir() and all(any(_whole(folder, pattern)) for pattern in self.needs)


@dataclass(frozen=True)
class DatasetEntry:
    """A dataset of the catalogue.

    Attributes:
        name: What it is called here.
        kind: The task.
        samples: Training and test samples as published.
        classes: Classes (outputs of a regression).
        licence: As the publisher states it.
        citation: Whom to cite.
        folders: Folders that are looked at inside each data directory, in this order.
        layouts: Ways the files may lie there, in order of preference.
        aliases: Other names.
        sources: What ``fetch`` downloads.
        by_hand: If nothing can be fetched: what the user does instead.
        make: Makes the dataset without files (embedded and synthetic ones).
    """

    name: str
    kind: Kind
    samples: tuple[int, int]
    classes: int
    licence: str
    citation: str
    folders: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = ()
    aliases: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    by_hand: str = ""
    make: Callable[..., Dataset] | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The patterns of every layout, as a user reads them."""
        return tuple(f"{layout.title}: {', '.join(layout.needs)}" for layout in self.layouts)


def _whole(folder: Path, pattern: str) -> Iterator[Path]:
    """Matches of a pattern, without downloads that are not finished."""
    return (p for p in folder.glob(pattern) if p.suffix != ".part")


def one_match(folder: Path, pattern: str) -> Path:
    """The one file that matches a pattern in a folder; several are refused, except one beside its ``.gz``."""
    found = sorted(_whole(folder, pattern))
    if len(found) > 1:
        plain = [p for p in found if p.suffix not in (".gz", ".xz")]
        found = plain if len(plain) == 1 else found
    if len(found) != 1:
        names = ", ".join(p.name for p in found) or "none"
        raise DataError(f"Folder {folder} must hold one file {pattern!r}; found {names}. Remove the others.")
    return found[0]


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
