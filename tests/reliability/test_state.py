"""The shape of what is saved, and the versions that name it: who changes one has to change the other."""

from __future__ import annotations

import dataclasses
import hashlib
import pkgutil
from importlib import import_module

from espalier.core import codec
from espalier.fleet.node import journal
from espalier.simulator import checkpoint

#: (a checkpoint's version, a journal's format, the shape below)
KNOWN = (8, 8, "aae031154b2f5814")


#: where saved classes are
PACKAGES = ("core", "fleet", "methods", "policies", "simulator")


def shape() -> str:
    """Return a short name for all fields of all saved classes."""
    for package in PACKAGES:
        found = import_module(f"espalier.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            import_module(module.name)
    lines = [
        f"{name}.{field.name}: {field.type}"
        for name, cls in sorted(codec._REGISTRY.items())
        if cls.__module__.startswith("espalier.")
        for field in dataclasses.fields(cls)
    ]
    assert lines
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def test_a_state_of_another_shape_has_another_version() -> None:
    """A checkpoint or a journal of an older version is refused by its number, not by what cannot be read in it."""
    assert (checkpoint.VERSION, journal.FORMAT, shape()) == KNOWN, (
        "What is saved has changed: raise checkpoint.VERSION and journal.FORMAT, then write the three down here."
    )
